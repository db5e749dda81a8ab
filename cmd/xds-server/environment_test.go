package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	user   = "system:serviceaccount:fairlead-system:xds-server"
	domain = model.TunnelDomain("tunnels.example.com")
)

// kube has the deployed permissions of the xds-server.
var kube = kubetest.Server{CRDs: true, Prepare: func(ctx context.Context, config *rest.Config) error {
	admin, err := kubetest.NewClient(config)
	if err != nil {
		return err
	}
	return kubetest.Deploy(ctx, admin, "namespace.yaml", "xds-server.yaml")
}}

// TestMain does not set controller-runtime's logger: the program sets it, and only the first call has an effect.
func TestMain(m *testing.M) { os.Exit(kube.Run(m)) }

// management is a real kube-apiserver with Fairlead's CRD and the permissions of deploy/kubernetes.
type management struct {
	client.Client
	config         *rest.Config
	xdsServer      model.Endpoint // queried by the controller; zero: none
	inspect, otlp  string         // addresses of inspection, and of the collector of traces
	metrics        string         // address of the metrics, including those of each workload cluster; empty: none
	stopController func()
}

func newManagement(t *testing.T) *management {
	t.Helper()
	config := kube.Config(t)
	scheme, err := controller.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	admin, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return &management{Client: admin, config: config, inspect: "0"}
}

// startController runs the real controller until stopController is called or the test ends.
func (m *management) startController(t *testing.T) {
	t.Helper()
	config := controller.Config{
		Domain: domain, Namespace: "fairlead-system", DNS: controller.TunnelDNSNo, XDSServerUser: user,
		Public: model.Endpoint{
			Host: "gw.example.com",
			Port: 443,
		}, APIServer: model.Endpoint{Host: "10.1.1.1", Port: 6443}, Connect: model.Endpoint{Host: "10.1.1.1", Port: 3128},
		LeafLifetime: time.Hour, TokenLifetime: time.Hour, TokenUses: 2,
		XDSServer: m.xdsServer,
	}
	mgr, err := ctrl.NewManager(m.config, ctrl.Options{
		Scheme: m.Scheme(), Cache: controller.CacheOptions(config), Metrics: metrics.Options{BindAddress: "0"},
		// the process runs several controllers in turn
		Controller: ctrlconfig.Controller{SkipNameValidation: ptr.To(true)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := controller.Setup(mgr, config, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	m.stopController = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("running controller: %v", err)
		}
	})
	t.Cleanup(m.stopController)
}

// kubeconfig returns a kubeconfig with the xds-server's permissions.
func (m *management) kubeconfig(t *testing.T) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["m"] = &clientcmdapi.Cluster{Server: m.config.Host, CertificateAuthorityData: m.config.CAData}
	config.AuthInfos["x"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: m.config.CertData,
		ClientKeyData:         m.config.KeyData,
		Impersonate:           user,
	}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "m", AuthInfo: "x"}
	config.CurrentContext = "c"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// get sends a health check.
func get(t *testing.T, at model.Endpoint, path string) error {
	t.Helper()
	_, err := body(t, at, path)
	return err
}

// scrapedOf returns an error unless the metrics contain all of the lines.
func scrapedOf(t *testing.T, at model.Endpoint, lines ...string) {
	t.Helper()
	text, err := body(t, at, "/metrics")
	for _, line := range lines {
		if err != nil || !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("%s is not in what is served, %v", line, err)
		}
	}
}

func body(t *testing.T, at model.Endpoint, path string) (string, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at.String()+path, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("%s: %s", response.Status, text))
	}
	return string(text), errors.Join(err, response.Body.Close())
}
