package csr_test

import (
	"os"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/fairlead/fairlead/internal/kubetest"
)

var server kubetest.Server

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(server.Run(m))
}

// apiserver returns an administrator's client of a real kube-apiserver.
func apiserver(t *testing.T) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(server.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	return client
}
