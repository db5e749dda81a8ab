package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairlead/fairlead/internal/command"
	"github.com/fairlead/fairlead/internal/logging"
	"github.com/fairlead/fairlead/internal/traces"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/source"
)

// config is the parsed and validated configuration.
type config struct {
	inst                 model.Installation
	listen, healthListen string
	metricsListen        string
	perCluster           bool // one series per workload cluster
	namespace            string
	gatewayUser          string
	gatewaySet           string // the StatefulSet of the gateways; empty: inst lists the gateways
	stateDir             string
	rest                 *rest.Config
	page                 pageConfig
	inspect              inspectConfig
}

// flags holds the command line.
type flags struct {
	config
	domain, public, control string
	accessLog               string
	gateways                []string
	kubeconfig              string
	logging                 logging.Flags
	traces                  traces.Flags
}

func rootCommand() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "xds-server",
		Short: "Serve certificates and configuration to gateways and edges",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := f.logging.New(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if err := f.complete(); err != nil {
				return err
			}
			stop, err := f.traces.Start(cmd.Context(), "xds-server", log)
			if err != nil {
				return err
			}
			defer stop()
			s, err := newServer(f.config, log)
			if err != nil {
				return err
			}
			return s.run(cmd.Context())
		},
	}
	f.addTo(cmd)
	return command.Versioned(cmd)
}

func (f *flags) addTo(cmd *cobra.Command) {
	set := cmd.Flags()
	f.addProcess(set)
	f.addInstallation(set)
	f.addGateways(set)
	f.inspect.addTo(set)
	f.page.addTo(set)
	f.logging.AddTo(set)
	f.traces.AddTo(set)
}

// addProcess adds the flags about the process itself: its listeners, its state folder and its kubeconfig.
func (f *flags) addProcess(set *pflag.FlagSet) {
	set.StringVar(&f.listen, "listen", ":18000", "address for gateways and, through them, edges")
	set.StringVar(&f.healthListen, "health-listen", ":8081", "address of /healthz and /readyz, plain HTTP; 0 for none")
	set.StringVar(&f.metricsListen, "metrics-listen", "0", "address of /metrics for Prometheus, plain HTTP; 0 for none")
	set.BoolVar(&f.perCluster, "per-cluster-metrics", false, "also publish series for each workload cluster")
	set.StringVar(
		&f.kubeconfig, "kubeconfig", "", "kubeconfig of the management cluster (default: the ServiceAccount of the Pod)",
	)
	set.StringVar(
		&f.stateDir, "state-dir", "/var/lib/fairlead/xds-server", "folder for the server's own key and certificate",
	)
}

// addInstallation adds the flags about the installation and its addresses.
func (f *flags) addInstallation(set *pflag.FlagSet) {
	set.StringVar(
		&f.domain, "tunnel-domain", "", "DNS domain of the installation's names, such as tunnels.example.com (required)",
	)
	set.StringVar(&f.public, "public-address", "", "host:port at which edges reach the gateways (required)")
	set.StringVar(&f.control, "control-address", "", "host:port at which gateways reach the xds-servers (required)")
	set.StringVar(&f.namespace, "namespace", "fairlead-system", "namespace of the installation's own objects")
}

// addGateways adds the flags about the gateways, and about what is configured on them.
func (f *flags) addGateways(set *pflag.FlagSet) {
	set.StringVar(
		&f.gatewaySet, "gateway-statefulset", "",
		"StatefulSet of the gateways in --namespace; its replicas are the gateways, also after scaling (this or --gateway)",
	)
	set.StringArrayVar(
		&f.gateways,
		"gateway",
		nil,
		"a gateway without a StatefulSet: gateway-<number>, with =host:port of its public listener for the other gateways "+
			"if there are several, and =zone after it if they are in several zones (repeat)",
	)
	set.StringVar(
		(*string)(&f.inst.ReplicaAddress), "replica-address", "",
		"host:port at which edges reach one gateway only, with {i} for its number (default: --public-address for all)",
	)
	set.IntVar(
		&f.inst.Workers, "gateway-workers", 1,
		"--workers of the gateways: each edge keeps two tunnels for each worker of each gateway",
	)
	set.IntVar(
		&f.inst.GatewaysPerTunnel, "gateways-per-tunnel", model.DefaultGatewaysPerTunnel,
		"to how many gateways the edges of a tunnel keep tunnels; gateways without one forward to these (0: to all, and no "+
			"gateway forwards)",
	)
	set.IntVar(
		&f.inst.Handshakes, "tunnel-rate", 0, "how many tunnels per second each gateway lets edges open (default: 1000)",
	)
	set.IntVar(
		&f.inst.Lanes, "lanes", model.DefaultLanes,
		"how many lanes of further tunnels each edge with clients may open, each tunnel for one connection: 4 in lane 1 for "+
			"each worker of each gateway, and each further lane doubles their number; fewer in a large fleet",
	)
	set.StringVar(
		&f.accessLog,
		"access-log",
		"off",
		"connections that gateways and edges log as one line of JSON at their end: off, failed or all; after a change "+
			"edges dial their tunnels again",
	)
	set.StringVar(
		&f.gatewayUser, "gateway-user", "system:serviceaccount:fairlead-system:gateway",
		"Kubernetes user of the Pods of gateways",
	)
}

// complete parses the text values of flags, and joins all errors.
func (f *flags) complete() error {
	f.inst.Domain = model.TunnelDomain(f.domain)
	if f.accessLog != "off" {
		f.inst.AccessLog = model.AccessLog(f.accessLog)
	}
	var errs []error
	for _, address := range []struct {
		flag, value string
		into        *model.Endpoint
	}{
		{"--public-address", f.public, &f.inst.Public},
		{"--control-address", f.control, &f.inst.Control},
	} {
		var err error
		if *address.into, err = model.ParseEndpoint(address.value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", address.flag, err))
		}
	}
	if len(errs) == 0 {
		errs = append(errs, f.inst.ValidateShared())
	}
	errs = append(errs, f.completeGateways(), f.page.complete(), f.inspect.complete())
	if f.namespace == "" || f.gatewayUser == "" || f.stateDir == "" {
		errs = append(errs, errors.New("--namespace, --gateway-user and --state-dir must not be empty"))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return f.readKubeconfig()
}

// completeGateways checks that exactly one source of the gateways is configured.
func (f *flags) completeGateways() error {
	switch {
	case f.gatewaySet == "" && len(f.gateways) == 0:
		return errors.New("no gateways: give --gateway-statefulset if they are Pods, otherwise --gateway for each")
	case f.gatewaySet != "" && len(f.gateways) > 0:
		return errors.New("--gateway-statefulset and --gateway exclude each other: give one of them")
	}
	if f.gatewaySet != "" {
		return errors.Join(source.ValidateGatewaySet(f.gatewaySet), f.checkReplicaAddress("gateway-0"))
	}
	var errs []error
	for _, s := range f.gateways {
		gateway, err := parseGateway(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("--gateway: %w", err))
			continue
		}
		if gateway.Public, err = f.inst.ReplicaAddress.Of(gateway.Name); err != nil {
			errs = append(errs, fmt.Errorf("--replica-address: %w", err))
		}
		f.inst.Gateways = append(f.inst.Gateways, gateway)
	}
	if len(errs) == 0 {
		errs = append(errs, model.ValidateGateways(f.inst.Gateways))
	}
	return errors.Join(errs...)
}

func (f *flags) checkReplicaAddress(example string) error {
	if _, err := f.inst.ReplicaAddress.Of(example); err != nil {
		return fmt.Errorf("--replica-address: %w", err)
	}
	return nil
}

// parseGateway parses gateway-<i>[=host:port[=zone]].
func parseGateway(s string) (model.Gateway, error) {
	name, peer, several := strings.Cut(s, "=")
	gateway := model.Gateway{Name: name}
	if err := model.ValidateGatewayName(name); err != nil {
		return gateway, err
	}
	var err error
	if several {
		peer, gateway.Zone, _ = strings.Cut(peer, "=")
		gateway.Peer, err = model.ParseEndpoint(peer)
	}
	return gateway, err
}

func (f *flags) readKubeconfig() (err error) {
	// An empty path selects the Pod's own configuration.
	if f.rest, err = clientcmd.BuildConfigFromFlags("", f.kubeconfig); err != nil {
		return fmt.Errorf("reading kubeconfig of the management cluster: %w", err)
	}
	f.rest.UserAgent = "fairlead-xds-server"
	// The apiserver's own fairness limits clients. With the default of 5 requests per second, edges that enrol together
	// would wait until their calls time out.
	f.rest.QPS = -1
	f.rest.Wrap(traces.Transport)
	return nil
}
