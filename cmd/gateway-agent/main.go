// Command gateway-agent runs a gateway: it enrols with the gateway token or a ServiceAccount token, keeps its
// certificate valid, and runs the Envoy that edges dial.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/internal/command"
	"github.com/fairlead/fairlead/internal/logging"
	"github.com/fairlead/fairlead/pkg/admission"
	"github.com/fairlead/fairlead/pkg/agent"
	"github.com/fairlead/fairlead/pkg/agent/gateway"
	"github.com/fairlead/fairlead/pkg/dial"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/sockets"
)

func main() { command.Main(run) }

// run runs the program and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return command.Run(ctx, rootCommand(), args, stdout, stderr)
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{Use: "gateway-agent", Short: "Runs a gateway of Fairlead"}
	root.AddCommand(runCommand())
	return command.Versioned(root)
}

// options holds the flags.
type options struct {
	logging                    logging.Flags
	agent                      agent.Config
	name, domain, xdsServer    string
	servers                    string
	readyDeadline              time.Duration
	maxEdges                   int
	netAdmin                   bool
	balancers, relays          []string
	public, apiserver, connect string
	caFile, tokenFile          string
	serviceAccountTokenFile    string
}

func runCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Enrol, and run Envoy until SIGTERM",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := o.logging.New(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			gateway, err := o.gateway()
			if err != nil {
				return err
			}
			leave := make(chan os.Signal, 1)
			signal.Notify(leave, syscall.SIGHUP)
			defer signal.Stop(leave)
			o.agent.Gateway, o.agent.Leave = &gateway, leave
			a, err := agent.New(o.agent, log)
			if err != nil {
				return err
			}
			return a.Run(cmd.Context())
		},
	}
	o.addTo(cmd)
	return cmd
}

// allAddresses is the end of the description of each flag for a listener.
const allAddresses = ":port for all addresses, IPv6 and IPv4"

func (o *options) addTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.name, "name", "", "name of this gateway: gateway-<number>")
	flags.StringVar(&o.domain, "tunnel-domain", "", "tunnel domain")
	flags.StringVar(&o.xdsServer, "xds-server", "", "host:port of the xds-server")
	flags.StringVar(
		&o.servers,
		"xds-servers",
		"",
		"host:port with a DNS name that resolves to every xds-server, to query the tunnels of other gateways (default: "+
			"--xds-server)",
	)
	flags.DurationVar(
		&o.readyDeadline, "ready-deadline", gateway.ReadyDeadline,
		"how long to wait for the tunnels that other gateways have, before accepting clients without them",
	)
	flags.IntVar(
		&o.maxEdges, "edges-per-tunnel", admission.DefaultMaxEdges,
		"maximum number of edges of one tunnel id that may have tunnels to this gateway",
	)
	flags.BoolVar(
		&o.netAdmin, "net-admin", true,
		"close single connections of revoked edges, which needs the capability NET_ADMIN; otherwise a revocation replaces "+
			"this gateway's Envoy, and --workers must be 1",
	)
	flags.StringSliceVar(
		&o.balancers, "proxy-protocol-from", nil,
		"networks of the load balancers, which send a PROXY header with the address of each client; connections from "+
			"elsewhere are rejected (default: connections have no such header)",
	)
	flags.StringSliceVar(
		&o.relays, "proxy-protocol-relays", nil,
		"with --proxy-protocol-from: networks of the other gateways, which relay connections with such a header (default: "+
			"the addresses at which this gateway reaches them)",
	)
	flags.StringVar(&o.caFile, "ca-file", "", "file with the CA of the control channel (PEM)")
	flags.StringVar(&o.tokenFile, "token-file", "", "file with the gateway token; read at each enrolment")
	flags.StringVar(
		&o.serviceAccountTokenFile, "service-account-token-file", "",
		"file with a ServiceAccount token to enrol with instead",
	)
	flags.StringVar(&o.public, "public-listen", ":443", "IP:port for edges; "+allAddresses)
	flags.StringVar(&o.apiserver, "apiserver-listen", ":6443", "IP:port for clients, by SNI; "+allAddresses)
	flags.StringVar(&o.connect, "connect-listen", ":3128", "IP:port for clients, by CONNECT; "+allAddresses)
	flags.IntVar(
		&o.agent.GatewaysPerTunnel, "gateways-per-tunnel", model.DefaultGatewaysPerTunnel,
		"--gateways-per-tunnel of the xds-servers; 0: the gateway forwards no clients to other gateways",
	)
	flags.BoolVar(
		&o.agent.ClusterStatistics, "cluster-statistics", false,
		"Envoy's statistics for each workload cluster; cost 3 KB of memory each, and more while it has traffic",
	)
	o.agent.AddFlags(flags, "/var/lib/fairlead/gateway")
	o.logging.AddTo(flags)
}

// gateway validates the flags and joins all errors. Credentials are read when they are needed, because a gateway with a
// leaf on disk needs none.
func (o *options) gateway() (gateway.Config, error) {
	g := gateway.Config{
		Domain:          model.TunnelDomain(o.domain),
		Name:            o.name,
		ReadyDeadline:   o.readyDeadline,
		MaxEdges:        o.maxEdges,
		WithoutNetAdmin: !o.netAdmin,
		Credential:      o.credential,
	}
	var xdsServer model.Endpoint
	var errs []error
	for _, in := range []struct {
		flag, value string
		into        *model.Endpoint
	}{
		{"--xds-server", o.xdsServer, &xdsServer},
		{"--xds-servers", cmp.Or(o.servers, o.xdsServer), &g.Servers},
	} {
		var err error
		if *in.into, err = model.ParseEndpoint(in.value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", in.flag, err))
		}
	}
	var err error
	if g.Bind, err = o.bind(); err != nil {
		errs = append(errs, err)
	}
	if o.readyDeadline <= 0 {
		errs = append(errs, fmt.Errorf("--ready-deadline: %s is not more than 0", o.readyDeadline))
	}
	if o.maxEdges < 1 {
		errs = append(errs, fmt.Errorf("--edges-per-tunnel: %d is less than 1", o.maxEdges))
	}
	if err := o.proxyProtocol(&g.ProxyProtocol); err != nil {
		errs = append(errs, err)
	}
	if n := o.agent.GatewaysPerTunnel; n < 0 || n > model.MaxGateways {
		errs = append(errs, fmt.Errorf("--gateways-per-tunnel: %d is not from 1 to %d, or 0", n, model.MaxGateways))
	}
	if o.agent.GatewaysPerTunnel > 0 && len(o.balancers) > 0 { // Envoy sends no such header for a client that it forwards
		errs = append(errs, errors.New(
			"--gateways-per-tunnel: gateways with --proxy-protocol-from cannot forward clients: set it to 0 here, and at the "+
				"xds-servers and controllers",
		))
	}
	if o.caFile == "" {
		errs = append(errs, errors.New("--ca-file is missing"))
	}
	if (o.tokenFile == "") == (o.serviceAccountTokenFile == "") {
		errs = append(errs, errors.New("give one of --token-file and --service-account-token-file"))
	}
	if len(errs) == 0 {
		errs = append(errs, g.Domain.Validate(), model.ValidateGatewayName(g.Name), g.Bind.Validate())
	}
	g.Dialer = &dial.Dialer{Addresses: []model.Endpoint{xdsServer}}
	return g, errors.Join(errs...)
}

// proxyProtocol parses the networks of load balancers and gateways.
func (o *options) proxyProtocol(into *envoy.ProxyProtocol) error {
	if len(o.relays) > 0 && len(o.balancers) == 0 {
		return errors.New("--proxy-protocol-relays: it needs --proxy-protocol-from")
	}
	for _, in := range []struct {
		flag  string
		texts []string
		into  *[]netip.Prefix
	}{
		{"--proxy-protocol-from", o.balancers, &into.Balancers},
		{"--proxy-protocol-relays", o.relays, &into.Gateways},
	} {
		for _, text := range in.texts {
			network, err := netip.ParsePrefix(text)
			if err == nil && network.Addr().Is4In6() { // Envoy has such an address as IPv4
				network = netip.PrefixFrom(network.Addr().Unmap(), network.Bits()-96)
			}
			if err != nil || !network.IsValid() {
				return fmt.Errorf("%s: %q is not a network such as 10.0.0.0/8", in.flag, text)
			}
			*in.into = append(*in.into, network.Masked())
		}
	}
	return nil
}

// bind returns the addresses of the listeners, and joins all errors.
func (o *options) bind() (b envoy.GatewayBind, err error) {
	var errs []error
	ipv6 := sockets.HasIPv6()
	for _, in := range []struct {
		flag, value string
		into        *model.Endpoint
	}{
		{"--public-listen", o.public, &b.Public},
		{"--apiserver-listen", o.apiserver, &b.APIServer},
		{"--connect-listen", o.connect, &b.Connect},
	} {
		var err error
		if *in.into, err = envoy.ParseListen(in.value, ipv6); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", in.flag, err))
		}
	}
	return b, errors.Join(errs...)
}

func (o *options) credential() (credential enrolclient.GatewayCredential, ca []byte, err error) {
	path, into := o.tokenFile, &credential.Token
	if o.serviceAccountTokenFile != "" {
		path, into = o.serviceAccountTokenFile, &credential.ServiceAccountToken
	}
	token, err := os.ReadFile(path)
	if err != nil {
		return enrolclient.GatewayCredential{}, nil, fmt.Errorf("reading credential: %w", err)
	}
	*into = strings.TrimSpace(string(token))
	if ca, err = os.ReadFile(o.caFile); err != nil {
		return enrolclient.GatewayCredential{}, nil, fmt.Errorf("reading CA: %w", err)
	}
	return credential, ca, nil
}
