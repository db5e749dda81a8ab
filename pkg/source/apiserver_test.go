package source_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

const root = "../.."

// environment is one real kube-apiserver for all tests of the package, with our CRDs and Cluster API's.
var environment = &envtest.Environment{
	BinaryAssetsDirectory: filepath.Join(root, "bin"),
	ErrorIfCRDPathMissing: true,
	CRDDirectoryPaths: []string{
		filepath.Join(root, "deploy/kubernetes/crd"),
		filepath.Join(root, "bin/capi-config/crd/bases/cluster.x-k8s.io_clusters.yaml"),
	},
}

var start = sync.OnceValues(environment.Start)

// apiserver returns how to reach the kube-apiserver. Without one it skips the test, or fails it where real parts are
// required.
func apiserver(t *testing.T) *rest.Config {
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
	return config
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
