package controller

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/pkg/model"
)

const (
	root           = "../.."
	controllerUser = "system:serviceaccount:fairlead-system:controller"
	xdsServerUser  = "system:serviceaccount:fairlead-system:xds-server"
	deadline       = 30 * time.Second
)

func testConfig() Config {
	return Config{
		Domain: "tunnels.example.com", Namespace: "fairlead-system",
		Public:    model.Endpoint{Host: "gw.example.com", Port: 443},
		APIServer: model.Endpoint{Host: "10.1.1.1", Port: 6443},
		Connect:   model.Endpoint{Host: "10.1.1.1", Port: 3128},
		DNS:       TunnelDNSNo, LeafLifetime: 24 * time.Hour, TokenLifetime: 24 * time.Hour, TokenUses: 3,
		XDSServerUser: xdsServerUser,
	}
}

// management is a real kube-apiserver with the real manager, which has the permissions of deploy/kubernetes and no more.
type management struct {
	client.WithWatch // of an administrator, without cache
	xdsServer        client.Client
	xdsServerConfig  *rest.Config
}

// shared is one for all tests of the package; nil where the real parts are missing or not wanted.
var shared *management

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := runWithManagement(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runWithManagement(m *testing.M) (int, error) {
	assets, err := filepath.Abs(filepath.Join(root, "bin"))
	if err != nil {
		return 0, err
	}
	if _, err := os.Stat(filepath.Join(assets, "kube-apiserver")); testing.Short() || (err != nil && os.Getenv("REAL_PARTS_REQUIRED") != "1") {
		return m.Run(), nil
	}
	environment := &envtest.Environment{
		BinaryAssetsDirectory: assets,
		ErrorIfCRDPathMissing: true,
		CRDDirectoryPaths: []string{
			filepath.Join(root, "deploy/kubernetes/crd"),
			filepath.Join(assets, "capi-config/crd/bases/cluster.x-k8s.io_clusters.yaml"),
		},
	}
	config, err := environment.Start()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done, err := startManager(ctx, config)
	code := 1
	if err == nil {
		code = m.Run()
	}
	cancel() // the apiserver does not end while somebody watches
	if done != nil {
		err = errors.Join(err, <-done)
	}
	return code, errors.Join(err, environment.Stop())
}

func startManager(ctx context.Context, config *rest.Config) (chan error, error) {
	config.QPS = -1
	scheme, err := NewScheme()
	if err != nil {
		return nil, err
	}
	if err := eventsv1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	admin, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	if err := applyDeployed(ctx, admin, "namespace.yaml", "controller.yaml", "xds-server.yaml"); err != nil {
		return nil, err
	}
	xdsServerConfig := impersonate(config, xdsServerUser)
	xdsServer, err := client.New(xdsServerConfig, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	shared = &management{admin, xdsServer, xdsServerConfig}
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
	mgr, err := ctrl.NewManager(impersonate(config, controllerUser), ctrl.Options{
		Scheme: scheme, Cache: CacheOptions(testConfig()), Metrics: server.Options{BindAddress: "0"},
		LeaderElection: true, LeaderElectionID: "fairlead-controller", LeaderElectionNamespace: testConfig().Namespace,
	})
	if err != nil {
		return nil, err
	}
	if err := Setup(mgr, testConfig(), log); err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	return done, nil
}

func impersonate(config *rest.Config, user string) *rest.Config {
	config = rest.CopyConfig(config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	return config
}

// applyDeployed applies what others install, so that a missing permission fails these tests.
func applyDeployed(ctx context.Context, admin client.Client, files ...string) error {
	for _, file := range files {
		data, err := os.ReadFile(filepath.Join(root, "deploy/kubernetes", file))
		if err != nil {
			return err
		}
		for _, document := range strings.Split(string(data), "\n---\n") {
			o := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			if err := admin.Create(ctx, o); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return nil
}

// apiserver returns the shared management cluster, or skips the test.
func apiserver(t *testing.T) *management {
	t.Helper()
	if shared == nil {
		t.Skip("needs bin/kube-apiserver, and not -short: run make tools")
	}
	return shared
}

// newNamespace makes a namespace for one test. Nobody deletes it: there is no namespace controller.
func newNamespace(t *testing.T, m *management) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	if err := m.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// eventually waits until check finds nothing wrong.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, deadline, true, func(context.Context) (bool, error) {
		last = check()
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("after %s: %v", deadline, last)
	}
}
