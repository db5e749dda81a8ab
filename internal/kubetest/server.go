// Package kubetest starts a real kube-apiserver for the tests of a package, and makes what several tests need in it:
// clients, namespaces, deployed manifests, Clusters. It knows nothing about our controllers and what they do with the
// objects.
package kubetest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/fairlead/fairlead/internal/freeport"
)

// Server is one kube-apiserver for all tests of a package. It starts when the first test calls Config, so that tests
// without it stay fast. The zero value is ready to use and installs no CRDs.
type Server struct {
	// CRDs installs Fairlead's CRD and Cluster API's CRDs of Cluster and Machine.
	CRDs bool
	// Flags are further flags of kube-apiserver, without hyphens.
	Flags map[string]string
	// Prepare, if not nil, is called once after the start, with its own administrator's config. If it fails, each test
	// that calls Config fails. Its ctx ends after the last test.
	Prepare func(ctx context.Context, config *rest.Config) error
	// End, if not nil, waits for the goroutines that Prepare has started. It is called after ctx has ended, if Prepare
	// succeeded.
	End func() error

	environment *envtest.Environment // nil: not started
	prepared    bool
	start       func() (*rest.Config, error)
}

// Run runs the tests of a package, stops the server and returns the exit code for TestMain. The code is not zero if the
// server, or what Prepare has started, fails to end.
func (s *Server) Run(m *testing.M) int { return RunAll(m, s) }

// RunAll is Run for a package whose tests need several servers.
func RunAll(m *testing.M, servers ...*Server) int {
	ctx, cancel := context.WithCancel(context.Background())
	for _, s := range servers {
		s.start = sync.OnceValues(func() (*rest.Config, error) { return s.begin(ctx) })
	}
	code := m.Run()
	cancel() // an apiserver does not exit while a watch is open
	for _, s := range servers {
		if err := s.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping kube-apiserver:", err)
			code = max(code, 1)
		}
	}
	return code
}

// Config returns a config to reach the server as an administrator; each caller gets its own copy. Without
// bin/kube-apiserver the test is skipped, or fails if REAL_PARTS_REQUIRED is set. With -short the test is skipped.
func (s *Server) Config(t testing.TB) *rest.Config {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real kube-apiserver, which -short leaves out")
	}
	assets, err := parts()
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

// Etcd returns the URL of the etcd that stores the server's objects, for a test that needs more objects than requests
// can create in a short time. The server must have been started.
func (s *Server) Etcd() string { return s.environment.ControlPlane.Etcd.URL.String() }

func (s *Server) begin(ctx context.Context) (*rest.Config, error) {
	root, err := inRepository("")
	if err != nil {
		return nil, err
	}
	assets, err := parts()
	if err != nil {
		return nil, err
	}
	s.environment = &envtest.Environment{BinaryAssetsDirectory: assets, ErrorIfCRDPathMissing: true}
	if err := s.choosePorts(); err != nil {
		return nil, err
	}
	if s.CRDs {
		s.environment.CRDDirectoryPaths = []string{
			filepath.Join(root, "deploy/kubernetes/crd"),
			filepath.Join(assets, "capi-config/crd/bases/cluster.x-k8s.io_clusters.yaml"),
			filepath.Join(assets, "capi-config/crd/bases/cluster.x-k8s.io_machines.yaml"),
		}
	}
	for name, value := range s.Flags {
		s.environment.ControlPlane.GetAPIServer().Configure().Set(name, value)
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

// choosePorts replaces envtest's own choice, which a connection of another test can take before the server listens.
func (s *Server) choosePorts() error {
	apiserver, err := freeport.Choose()
	if err != nil {
		return err
	}
	etcd, err := freeport.ChooseAddress()
	if err != nil {
		return err
	}
	plane := &s.environment.ControlPlane
	server := plane.GetAPIServer()
	server.Address, server.Port = "127.0.0.1", strconv.Itoa(apiserver)
	plane.Etcd = &envtest.Etcd{URL: &url.URL{Scheme: "http", Host: etcd}}
	return nil
}

func (s *Server) stop() error {
	var err error
	if s.prepared && s.End != nil {
		err = s.End()
	}
	// A start that fails late, at the CRDs, leaves processes behind.
	if s.environment != nil && s.environment.Config != nil {
		err = errors.Join(err, s.environment.Stop())
	}
	return err
}

// parts returns the folder of the real parts: $FAIRLEAD_PARTS, or bin of the repository.
func parts() (string, error) {
	if folder := os.Getenv("FAIRLEAD_PARTS"); folder != "" {
		return filepath.Abs(folder)
	}
	return inRepository("bin")
}

// inRepository returns a path in the repository, whose root is the folder of go.mod: the folder of the package under
// test or one above it.
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
