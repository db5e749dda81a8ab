// Package kubetest starts a real kube-apiserver for the tests of a package, and makes what several of them need in it:
// clients, namespaces, deployed manifests, Clusters. It knows neither our controllers nor what they do with the objects.
package kubetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// Server is one kube-apiserver for all tests of a package. It starts when the first test asks for it, so that tests
// without it stay quick. The zero value is good and has no CRDs.
type Server struct {
	// CRDs says whether Fairlead's CRD and those of Cluster API's Cluster and Machine are installed.
	CRDs bool
	// Prepare, if any, is called once after the start, with an administrator's config of its own. If it fails, each test
	// that asks for the server fails. Its ctx ends after the last test.
	Prepare func(ctx context.Context, config *rest.Config) error
	// End, if any, waits for what Prepare has left running. It is called after ctx has ended, if Prepare has succeeded.
	End func() error

	environment *envtest.Environment // nil: not started
	prepared    bool
	start       func() (*rest.Config, error)
}

// Run runs the tests of a package and stops the server. The result is the exit code, for TestMain; it isn't zero if the
// server or what Prepare has started doesn't end well.
func (s *Server) Run(m *testing.M) int { return RunAll(m, s) }

// RunAll is Run for the tests of a package that need several servers.
func RunAll(m *testing.M, servers ...*Server) int {
	ctx, cancel := context.WithCancel(context.Background())
	for _, s := range servers {
		s.start = sync.OnceValues(func() (*rest.Config, error) { return s.begin(ctx) })
	}
	code := m.Run()
	cancel() // an apiserver does not end while somebody watches
	for _, s := range servers {
		if err := s.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping kube-apiserver:", err)
			code = max(code, 1)
		}
	}
	return code
}

// Config says how to reach the server as an administrator; each caller has a copy. Without bin/kube-apiserver the test is
// skipped, or fails if REAL_PARTS_REQUIRED is set. With -short every test that calls it is skipped.
func (s *Server) Config(t testing.TB) *rest.Config {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real kube-apiserver, which -short leaves out")
	}
	assets, err := inRepository("bin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(assets, "kube-apiserver")); err != nil {
		if os.Getenv("REAL_PARTS_REQUIRED") != "" {
			t.Fatalf("no kube-apiserver: run `make tools`: %v", err)
		}
		t.Skipf("no kube-apiserver: run `make tools`: %v", err)
	}
	if s.start == nil {
		t.Fatal("TestMain does not call Run")
	}
	config, err := s.start()
	if err != nil {
		t.Fatal(err)
	}
	return rest.CopyConfig(config)
}

// Etcd is the URL of the etcd in which the server keeps its objects, for a test that needs more of them than requests make soon. The server must
// have been started.
func (s *Server) Etcd() string { return s.environment.ControlPlane.Etcd.URL.String() }

func (s *Server) begin(ctx context.Context) (*rest.Config, error) {
	root, err := inRepository("")
	if err != nil {
		return nil, err
	}
	s.environment = &envtest.Environment{BinaryAssetsDirectory: filepath.Join(root, "bin"), ErrorIfCRDPathMissing: true}
	if s.CRDs {
		s.environment.CRDDirectoryPaths = []string{
			filepath.Join(root, "deploy/kubernetes/crd"),
			filepath.Join(root, "bin/capi-config/crd/bases/cluster.x-k8s.io_clusters.yaml"),
			filepath.Join(root, "bin/capi-config/crd/bases/cluster.x-k8s.io_machines.yaml"),
		}
	}
	config, err := s.environment.Start()
	if err != nil {
		return nil, fmt.Errorf("starting kube-apiserver: %w", err)
	}
	if s.Prepare != nil {
		if err := s.Prepare(ctx, rest.CopyConfig(config)); err != nil {
			return nil, fmt.Errorf("preparing kube-apiserver: %w", err)
		}
	}
	s.prepared = true
	return config, nil
}

func (s *Server) stop() error {
	var err error
	if s.prepared && s.End != nil {
		err = s.End()
	}
	// A start that failed late, at the CRDs, has left processes behind.
	if s.environment != nil && s.environment.Config != nil {
		err = errors.Join(err, s.environment.Stop())
	}
	return err
}

// inRepository is the path of something in the repository, whose root is the folder of go.mod at or above the package
// under test.
func inRepository(path string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, path), nil
		}
	}
	return "", errors.New("no go.mod above the test")
}
