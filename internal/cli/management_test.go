package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
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

var (
	// server runs the real controller with leaves that are valid for a second, so a rotation takes 12 s.
	server = kubetest.Server{CRDs: true, Prepare: startController, End: func() error { return <-controllerEnded }}

	controllerEnded = make(chan error, 1)
)

func TestMain(m *testing.M) {
	if os.Getenv(edgeVariable) != "" {
		os.Exit(playEdge(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(kubetest.RunAll(m, &server, &target))
}

// run runs the whole program under its own name.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return Run(ctx, "fairlead", args, stdout, stderr)
}

func startController(ctx context.Context, config *rest.Config) error {
	return startControllerOf(ctx, config, "tunnels.example.com", controllerEnded)
}

func startControllerOf(ctx context.Context, config *rest.Config, domain model.TunnelDomain, ended chan<- error) error {
	ctrl.SetLogger(logr.Discard())
	config.QPS = -1
	admin, err := kubetest.NewClient(config)
	if err != nil {
		return err
	}
	if err := kubetest.Deploy(ctx, admin, "namespace.yaml"); err != nil {
		return err
	}
	c := controller.Config{
		Domain: domain, Namespace: "fairlead-system", DNS: controller.TunnelDNSNo, XDSServerUser: "x",
		Public: model.Endpoint{
			Host: "gw.example.com",
			Port: 443,
		}, APIServer: model.Endpoint{Host: "10.1.1.1", Port: 6443}, Connect: model.Endpoint{Host: "10.1.1.1", Port: 3128},
		LeafLifetime: time.Second, TokenLifetime: time.Hour, TokenUses: 2,
	}
	scheme, err := controller.NewScheme()
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Cache: controller.CacheOptions(c), Metrics: metrics.Options{BindAddress: "0"},
		Controller: ctrlconfig.Controller{SkipNameValidation: ptr.To(true)}, // the process runs two controllers
	})
	if err != nil {
		return err
	}
	if err := controller.Setup(mgr, c, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	go func() { ended <- mgr.Start(ctx) }()
	return nil
}

// person is a user with a kubeconfig.
type person struct {
	client.Client
	kubeconfig string
}

func newPerson(t *testing.T) *person {
	t.Helper()
	return newPersonOf(t, server.Config(t))
}

func newPersonOf(t *testing.T, config *rest.Config) *person {
	t.Helper()
	admin, err := kubetest.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	out := clientcmdapi.NewConfig()
	out.Clusters["m"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	out.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
	out.Contexts["good"] = &clientcmdapi.Context{Cluster: "m", AuthInfo: "admin"}
	out.Contexts["other"] = &clientcmdapi.Context{Cluster: "nowhere", AuthInfo: "admin"}
	out.CurrentContext = "other"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*out, path); err != nil {
		t.Fatal(err)
	}
	return &person{admin, path}
}

// does runs the program and returns its output.
func (p *person) does(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	var stdout, stderr strings.Builder
	code := run(t.Context(), append(args, "--kubeconfig="+p.kubeconfig, "--context=good"), &stdout, &stderr)
	if (code == 0) != (stderr.Len() == 0) {
		t.Errorf("exit code %d, but %q", code, stderr.String())
	}
	if code != 0 {
		return stdout.String(), fmt.Errorf("%s", strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// must runs a command that has to succeed, and to print all of the texts.
func (p *person) must(t *testing.T, want []string, args ...string) string {
	t.Helper()
	out, err := p.does(t, args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	for _, text := range want {
		if !strings.Contains(out, text) {
			t.Errorf("%v: %q is not in\n%s", args, text, out)
		}
	}
	return out
}

// mustNot runs a command that has to fail with a text.
func (p *person) mustNot(t *testing.T, want string, args ...string) {
	t.Helper()
	if _, err := p.does(t, args...); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v: got %v, want %q", args, err, want)
	}
}
