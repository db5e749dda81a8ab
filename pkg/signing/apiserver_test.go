package signing_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

const root = "../.."

// environment is one real kube-apiserver for all tests of the package.
var environment = &envtest.Environment{BinaryAssetsDirectory: filepath.Join(root, "bin")}

var start = sync.OnceValues(environment.Start)

// apiserver returns an administrator's client. Without a kube-apiserver it skips the test, or fails it where real parts
// are required.
func apiserver(t *testing.T) kubernetes.Interface {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root, "bin/kube-apiserver")); err != nil || testing.Short() {
		if os.Getenv("REAL_PARTS_REQUIRED") != "" {
			t.Fatal("there is no bin/kube-apiserver, or -short leaves it out: run `make tools`")
		}
		t.Skip("there is no bin/kube-apiserver, or -short leaves it out: run `make tools`")
	}
	config, err := start()
	if err != nil {
		t.Fatalf("starting kube-apiserver: %v", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	code := m.Run()
	if environment.Config != nil {
		if err := environment.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping kube-apiserver:", err)
		}
	}
	os.Exit(code)
}
