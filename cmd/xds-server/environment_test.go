package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/fairlead/fairlead/pkg/controller"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	root     = "../.."
	user     = "system:serviceaccount:fairlead-system:xds-server"
	domain   = model.TunnelDomain("tunnels.example.com")
	patience = 30 * time.Second
)

// management is a real kube-apiserver with Fairlead's CRD and the permissions of deploy/kubernetes.
type management struct {
	client.Client
	config *rest.Config
}

func newManagement(t *testing.T) *management {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root, "bin/kube-apiserver")); err != nil || testing.Short() {
		if os.Getenv("REAL_PARTS_REQUIRED") != "" {
			t.Fatal("there is no bin/kube-apiserver, or -short leaves it out: run `make tools`")
		}
		t.Skip("there is no bin/kube-apiserver, or -short leaves it out: run `make tools`")
	}
	environment := &envtest.Environment{
		BinaryAssetsDirectory: filepath.Join(root, "bin"), ErrorIfCRDPathMissing: true,
		CRDDirectoryPaths: []string{filepath.Join(root, "deploy/kubernetes/crd"), filepath.Join(root, "bin/capi-config/crd/bases/cluster.x-k8s.io_clusters.yaml")},
	}
	config, err := environment.Start()
	if err != nil {
		t.Fatalf("starting kube-apiserver: %v", err)
	}
	t.Cleanup(func() {
		if err := environment.Stop(); err != nil {
			t.Errorf("stopping kube-apiserver: %v", err)
		}
	})
	scheme, err := controller.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	admin, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	m := &management{admin, config}
	m.apply(t, "namespace.yaml")
	m.apply(t, "xds-server.yaml")
	return m
}

// apply creates what a deployed file holds.
func (m *management) apply(t *testing.T, name string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "deploy/kubernetes", name))
	if err != nil {
		t.Fatal(err)
	}
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096); ; {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		if len(object.Object) == 0 {
			continue
		}
		if err := m.Create(t.Context(), object); err != nil {
			t.Fatalf("creating %s of %s: %v", object.GetKind(), name, err)
		}
	}
}

// startController runs the real controller.
func (m *management) startController(t *testing.T) {
	t.Helper()
	config := controller.Config{
		Domain: domain, Namespace: "fairlead-system", DNS: controller.TunnelDNSNo, XDSServerUser: user,
		Public: model.Endpoint{Host: "gw.example.com", Port: 443}, APIServer: model.Endpoint{Host: "10.1.1.1", Port: 6443}, Connect: model.Endpoint{Host: "10.1.1.1", Port: 3128},
		LeafLifetime: time.Hour, TokenLifetime: time.Hour, TokenUses: 2,
	}
	mgr, err := ctrl.NewManager(m.config, ctrl.Options{Scheme: m.Scheme(), Cache: controller.CacheOptions(config), Metrics: metrics.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := controller.Setup(mgr, config, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("running controller: %v", err)
		}
	})
}

// kubeconfig is one with the xds-server's permissions.
func (m *management) kubeconfig(t *testing.T) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["m"] = &clientcmdapi.Cluster{Server: m.config.Host, CertificateAuthorityData: m.config.CAData}
	config.AuthInfos["x"] = &clientcmdapi.AuthInfo{ClientCertificateData: m.config.CertData, ClientKeyData: m.config.KeyData, Impersonate: user}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "m", AuthInfo: "x"}
	config.CurrentContext = "c"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// freePort is one that nobody listens on.
func freePort(t *testing.T) model.Endpoint {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e, err := model.ParseEndpoint(listener.Addr().String())
	if err := errors.Join(err, listener.Close()); err != nil {
		t.Fatal(err)
	}
	return e
}

// eventually waits until something works.
func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	deadline := time.After(patience)
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s: %v", what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// get asks a health check.
func get(t *testing.T, at model.Endpoint, path string) error {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at.String()+path, http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("%s: %s", response.Status, body))
	}
	return errors.Join(err, response.Body.Close())
}
