// Command runtime-extension serves the hooks of Cluster API's Runtime SDK that add edges to control-plane machines: see
// pkg/capi/hooks. It writes nothing and reads only Tunnels. Only Cluster API's core manager may call the hooks, with a
// client certificate, because answers reveal which Tunnels exist and what is wrong with them. Discovery answers all.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	runtimecatalog "sigs.k8s.io/cluster-api/api/runtime/catalog"
	runtimehooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
	"sigs.k8s.io/cluster-api/exp/runtime/server"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/command"
	"github.com/fairlead/fairlead/internal/kubelog"
	"github.com/fairlead/fairlead/internal/logging"
	"github.com/fairlead/fairlead/internal/memory"
	"github.com/fairlead/fairlead/internal/version"
	"github.com/fairlead/fairlead/pkg/capi/hooks"
	"github.com/fairlead/fairlead/pkg/capi/inject"
)

func main() { command.Main(run) }

// run runs the program and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return command.Run(ctx, rootCommand(), args, stdout, stderr)
}

// flags holds the command line.
type flags struct {
	defaults                  inject.Variable
	listen, certDir, clientCA string
	kubeconfig, healthListen  string
	logging                   logging.Flags
	host                      string
	port                      int
}

func rootCommand() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "runtime-extension",
		Short: "Add edges to the control-plane machines of managed topologies",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), cmd.ErrOrStderr()) },
	}
	set := cmd.Flags()
	set.StringVar(
		&f.defaults.TunnelDomain, "tunnel-domain", "",
		"tunnel domain of the installation: the default of the variable "+inject.VariableName+" (required)",
	)
	set.StringVar(
		&f.defaults.Image, "edge-image", "", "image of the edge for new Clusters (required); existing Clusters keep theirs",
	)
	set.Int32Var(
		&f.defaults.APIServerPort, "api-server-port", inject.DefaultAPIServerPort,
		"where the apiservers of new Clusters listen on their machines",
	)
	set.StringVar(&f.listen, "listen", ":9443", "address of the hooks, HTTPS")
	set.StringVar(
		&f.certDir, "cert-dir", "/etc/fairlead/runtime-extension", "folder of tls.crt and tls.key; reloaded when they change",
	)
	set.StringVar(
		&f.clientCA,
		"client-ca",
		"",
		"file with the CA of the client certificates of callers, in PEM (required): Cluster API presents one with "+
			"--runtime-extension-client-cert-file; read at the start",
	)
	set.StringVar(&f.healthListen, "health-listen", ":8081", "address of /healthz and /readyz; 0 for none")
	set.StringVar(
		&f.kubeconfig, "kubeconfig", "", "kubeconfig of the management cluster (default: the ServiceAccount of the Pod)",
	)
	f.logging.AddTo(set)
	return command.Versioned(cmd)
}

// run validates everything before it starts anything.
func (f *flags) run(ctx context.Context, stderr io.Writer) error {
	log, err := f.logging.New(stderr)
	if err != nil {
		return err
	}
	kubelog.SetLogger(log)
	memory.Bound(0, log)
	if err := f.splitListen(); err != nil {
		return err
	}
	tunnels, err := f.client()
	if err != nil {
		return err
	}
	hooks, err := hooks.New(f.defaults, tunnels, time.Now)
	if err != nil {
		return fmt.Errorf("--tunnel-domain, --edge-image, --api-server-port: %w", err)
	}
	callers, err := f.callers()
	if err != nil {
		return err
	}
	serving, err := f.server(hooks, callers)
	if err != nil {
		return err
	}
	log.Info(
		"runtime extension starts", version.Attr(), "tunnel_domain", f.defaults.TunnelDomain, "edge_image",
		f.defaults.Image, "listen", f.listen,
	)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := serving.Start(ctx); err != nil {
			return fmt.Errorf("serving hooks: %w", err)
		}
		return nil
	})
	group.Go(func() error { return serveHealth(ctx, f.healthListen, serving.StartedChecker()) })
	return group.Wait()
}

func (f *flags) splitListen() error {
	host, port, err := net.SplitHostPort(f.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return fmt.Errorf("--listen: port %q is not a number from 1 to 65535", port)
	}
	f.host, f.port = host, int(n)
	return nil
}

// client returns a client that reads Tunnels from the apiserver. It has no cache, because each new Cluster causes only
// one request.
func (f *flags) client() (client.Reader, error) {
	config, err := f.restConfig()
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("building scheme: %w", err)
	}
	tunnels, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("creating client of the management cluster: %w", err)
	}
	return tunnels, nil
}

func (f *flags) restConfig() (*rest.Config, error) {
	// An empty path selects the Pod's own configuration.
	config, err := clientcmd.BuildConfigFromFlags("", f.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig of the management cluster: %w", err)
	}
	config.UserAgent = "fairlead-runtime-extension"
	return config, nil
}

// callers returns the CAs of permitted callers. They are required.
func (f *flags) callers() (*x509.CertPool, error) {
	if f.clientCA == "" {
		return nil, errors.New(
			"--client-ca: name the file with the CA of the client certificate that Cluster API presents: see docs/machines.md",
		)
	}
	data, err := os.ReadFile(f.clientCA)
	if err != nil {
		return nil, fmt.Errorf("--client-ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("--client-ca: %s has no certificate in PEM", f.clientCA)
	}
	return pool, nil
}

func (f *flags) server(hooks *hooks.Extension, callers *x509.CertPool) (*server.Server, error) {
	catalog := runtimecatalog.New()
	if err := runtimehooksv1.AddToCatalog(catalog); err != nil {
		return nil, fmt.Errorf("building catalog of hooks: %w", err)
	}
	serving, err := server.New(server.Options{
		Catalog: catalog, Host: f.host, Port: f.port, CertDir: f.certDir,
		TLSOpts: []func(*tls.Config){verify(callers)},
	})
	if err != nil {
		return nil, fmt.Errorf("creating server of hooks: %w", err)
	}
	if serving.Server, err = authenticate(serving.Server, catalog); err != nil {
		return nil, err
	}
	for _, handler := range hooks.Handlers() {
		if err := serving.AddExtensionHandler(handler); err != nil {
			return nil, fmt.Errorf("adding hook %s: %w", handler.Name, err)
		}
	}
	return serving, nil
}

// serveHealth answers /healthz while the process runs, and /readyz when hooks are served.
func serveHealth(ctx context.Context, address string, ready func(*http.Request) error) error {
	if address == "0" {
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := ready(r); err != nil {
			http.Error(w, "hooks are not served", http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	health := &http.Server{
		Addr:              address,
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       time.Minute,
	}
	stop := context.AfterFunc(ctx, func() { _ = health.Close() })
	defer stop()
	if err := health.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving health: %w", err)
	}
	return nil
}
