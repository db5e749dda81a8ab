package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	checkcommand "github.com/fairlead/fairlead/internal/cli/check"
	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/diagnose/explain"
	"github.com/fairlead/fairlead/pkg/diagnose/preflight"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/model"
)

// installedTime bounds the reads of an installation.
const installedTime = 10 * time.Second

// preflightFlags are the flags of test preflight.
type preflightFlags struct {
	management.Flags
	reportFlags
	installation, publicAddress string
}

func preflightCommand() *cobra.Command {
	var f preflightFlags
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Test a management cluster before Fairlead is installed",
		Long: strings.TrimSpace(`
Test with your kubeconfig what an installation needs of a management cluster: the version of Kubernetes, the
API version of Cluster API, your permissions for each kind of object of an installation, the clocks, and large
requests. With --public-address, also test from this machine that its name resolves, and that its port accepts
connections. Before the installation nothing may listen there yet, which is a warning. Run this again after
it: then the clock, large packets, and TLS with the CA of the installation are tested too, which proves that no
load balancer or other device on the way ends or inspects TLS.

Run "fairlead test edge-preflight" in the network of each workload cluster, when a bootstrap file exists.

Needs: nothing beyond a login: it asks the apiserver what you may do. To test TLS, get on ConfigMaps in the
namespace of the installation.
Changes: nothing. --junit creates a file.
Exit codes: 0 no test failed, but there may be warnings; 1 a test failed, or the command failed; 2 the command
line is invalid.`),
		Example: "  fairlead test preflight\n" +
			"  fairlead test preflight --public-address=gateway.example.com:443 --junit=report.xml",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.AddTo(cmd.Flags())
	f.addTo(cmd)
	set := cmd.Flags()
	set.StringVar(
		&f.installation, "installation", collect.DefaultNamespace, "namespace in which Fairlead is to be installed",
	)
	set.StringVar(&f.publicAddress, "public-address", "", "host:port that edges will dial, as in the value publicAddress")
	return cmd
}

func (f *preflightFlags) run(cmd *cobra.Command) error {
	if err := f.Validate(); err != nil {
		return err
	}
	var public []model.Endpoint
	if f.publicAddress != "" {
		e, err := model.ParseEndpoint(f.publicAddress)
		if err != nil {
			return output.UsageError("--public-address: %w", err)
		}
		public = []model.Endpoint{e}
	}
	m, err := f.Open()
	if err != nil {
		return err
	}
	tested := preflight.Management{Config: m.Config, Namespace: f.installation, Now: time.Now}
	results := tested.Test(cmd.Context())
	for _, e := range public {
		results = append(results, f.publicResults(cmd.Context(), m, e)...)
	}
	return f.reportResults(cmd, "fairlead test preflight", results)
}

// publicResults tests the public address from this machine.
func (f *preflightFlags) publicResults(ctx context.Context, m client.Reader, e model.Endpoint) []check.Result {
	all := []check.Result{preflight.Name(ctx, e.Host)}
	if all[0].Status != check.OK {
		return all
	}
	gateways, without := f.installed(ctx, m, e)
	direct := &dial.Dialer{Addresses: []model.Endpoint{e}}
	port := preflight.Port(ctx, direct, e)
	if port.Status == check.Broken { // edges may reach it from their networks
		port.Status = check.Warning
		if without.Status == check.Skipped {
			port.Cause += "; before the installation nothing listens there"
		}
		return append(all, port)
	}
	all = append(all, port)
	if gateways == nil {
		return append(all, without)
	}
	return append(all, gateways.Session(ctx, direct, e)...)
}

// installed reads what an installation presents at its public address. Without an installation, it returns the result
// of the test that is not possible.
func (f *preflightFlags) installed(
	ctx context.Context, m client.Reader, e model.Endpoint,
) (*preflight.Gateways, check.Result) {
	ctx, cancel := context.WithTimeout(ctx, installedTime)
	defer cancel()
	var settings, public corev1.ConfigMap
	err := m.Get(ctx, client.ObjectKey{Namespace: f.installation, Name: v1alpha1.SettingsConfigMapName}, &settings)
	if err == nil {
		key := client.ObjectKey{Namespace: f.installation, Name: v1alpha1.InstallationConfigMapName}
		err = client.IgnoreNotFound(m.Get(ctx, key, &public)) // the controller writes it: see below
	}
	without := check.Result{ID: preflight.TestTLS, Title: "TLS with the gateways", Status: check.Unknown}
	g := &preflight.Gateways{
		Addresses: []model.Endpoint{e}, Domain: model.TunnelDomain(settings.Data["TUNNEL_DOMAIN"]),
		CA: certs.Bundle(public.Data[v1alpha1.TrustBundleKey]), Now: time.Now, FromObjects: true,
	}
	switch {
	case apierrors.IsNotFound(err):
		without.Status, without.Detail = check.Skipped, "Fairlead is not installed in the namespace "+f.installation
		without.Cure = "run this again after the installation, to test TLS and large packets"
	case err != nil:
		without.Detail = "the CA of the installation cannot be read: " + explain.Text(err)
		without.Cure = "run the command as a user that may get ConfigMaps in the namespace " + f.installation
	case g.Domain.Validate() != nil || len(g.CA) == 0:
		without.Detail = "the installation has no tunnel domain or no CA yet"
		without.Cure = "check that the controller runs"
	default:
		return g, check.Result{}
	}
	return nil, without
}

// edgeFlags are the flags of test edge-preflight.
type edgeFlags struct {
	reportFlags
	bootstrap, proxy, noProxy, credentials string
	idle                                   time.Duration
}

func edgePreflightCommand() *cobra.Command {
	var f edgeFlags
	cmd := &cobra.Command{
		Use:   "edge-preflight",
		Short: "Test the way of an edge to the gateways, before the edge is installed",
		Long: strings.TrimSpace(`
Run this in the network of a workload cluster, on the machine where the edge will run. It needs no kubeconfig.
It tests the way from there to each address of the gateways in a bootstrap file: the proxy of the environment,
the name, the port, TLS with the CA in the file, which proves that no device inspects TLS, the clock, and
large packets.

The command does not use up the token in the file, so the edge can enrol with the same file.

Needs: read access to the bootstrap file.
Changes: nothing. --junit creates a file.
Exit codes: 0 no test failed; 1 a test failed, or the command failed; 2 the command line is invalid.`),
		Example: "  fairlead test edge-preflight --bootstrap=c1.yaml\n" +
			"  fairlead test edge-preflight --bootstrap=c1.yaml --proxy=http://proxy.example.com:3128 --idle=11s",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) > 0:
				return errors.New("give the bootstrap file with --bootstrap")
			case f.idle < 0 || f.idle > preflight.MaxIdle:
				return fmt.Errorf("--idle: %s is not between 0 and %s", f.idle, preflight.MaxIdle)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.addTo(cmd)
	set := cmd.Flags()
	set.StringVar(&f.bootstrap, "bootstrap", "", "bootstrap file of the edge")
	_ = cmd.MarkFlagRequired("bootstrap")
	set.StringVar(
		&f.proxy, "proxy", "", "URL of the HTTP proxy on the way to the gateways; empty: none (default: $HTTPS_PROXY)",
	)
	set.StringVar(
		&f.noProxy, "no-proxy", os.Getenv("NO_PROXY"), "hosts and networks that are reached without the proxy of --proxy",
	)
	set.Lookup("no-proxy").DefValue = "" // the reference must not depend on the environment
	set.StringVar(&f.credentials, "proxy-credentials-file", "", "file with one line user:password for the proxy")
	set.DurationVar(
		&f.idle, "idle", 0, "also test a connection without a byte for this time, at most 11s: edges send one every 10s",
	)
	return cmd
}

func (f *edgeFlags) run(cmd *cobra.Command) error {
	if err := f.Validate(); err != nil {
		return err
	}
	g, err := f.gateways(cmd.Flags().Changed("proxy"))
	if err != nil {
		return err
	}
	return f.reportResults(cmd, "fairlead test edge-preflight", g.Test(cmd.Context()))
}

// gateways reads the bootstrap file. proxyGiven reports whether --proxy is set, even as "", which means no proxy.
func (f *edgeFlags) gateways(proxyGiven bool) (*preflight.Gateways, error) {
	file, err := edge.ReadBootstrapFile(f.bootstrap)
	if err != nil {
		return nil, err
	}
	g := &preflight.Gateways{
		Domain: model.TunnelDomain(file.TunnelDomain), CA: certs.Bundle(file.CA), Idle: f.idle, Now: time.Now,
	}
	if err := g.Domain.Validate(); err != nil {
		return nil, fmt.Errorf("reading bootstrap file %s: tunnelDomain: %w", f.bootstrap, err)
	}
	addresses := append(file.Gateway, file.Gateways...)
	if len(addresses) == 0 {
		return nil, fmt.Errorf("reading bootstrap file %s: gateway is empty: get a new file with fairlead join", f.bootstrap)
	}
	for _, a := range addresses {
		e, err := model.ParseEndpoint(a)
		if err != nil {
			return nil, fmt.Errorf("reading bootstrap file %s: gateway: %w", f.bootstrap, err)
		}
		g.Addresses = append(g.Addresses, e)
	}
	var credentials func() (user, password string, err error)
	if f.credentials != "" {
		credentials = dial.CredentialsFile(f.credentials)
	}
	switch {
	case !proxyGiven:
		g.Proxy, err = dial.ProxyFromEnvironment(credentials)
	default:
		g.Proxy, err = dial.ParseProxy(f.proxy, f.noProxy, credentials)
	}
	return g, err
}

// preflightReport is the result of a preflight.
type preflightReport struct {
	Status check.Status   `json:"status"`
	Tests  []check.Result `json:"tests"`
}

// reportResults prints results, and returns the error that sets the exit code.
func (f *reportFlags) reportResults(cmd *cobra.Command, name string, results []check.Result) error {
	r := preflightReport{check.OK, results}
	for i := range results {
		switch s := results[i].Status; {
		case s == check.Broken, s == check.Warning && r.Status == check.OK:
			r.Status = s
		}
	}
	s := suite{Name: name}
	s.add(name, results)
	if err := f.print(cmd, preflightView(&r), s); err != nil {
		return err
	}
	if r.Status == check.Broken {
		return output.Broken()
	}
	return nil
}

func preflightView(r *preflightReport) output.View {
	return output.View{Data: r, Page: func(p *output.Page) {
		checkcommand.PrintResults(p, r.Tests)
		for i := range r.Tests {
			if t := &r.Tests[i]; t.Status == check.Broken || t.Status == check.Warning {
				p.Line()
				printFault(p, t.Title, t)
			}
		}
		p.Line()
		p.Line(output.Styled(checkcommand.StyleOf(r.Status), strings.ToUpper(string(r.Status))))
	}}
}
