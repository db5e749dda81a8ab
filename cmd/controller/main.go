// Command controller is the only program of Fairlead that writes to the management cluster and signs certificates: see
// pkg/controller. It cannot be reached from outside of the management cluster.
package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/fairlead/fairlead/internal/command"
	"github.com/fairlead/fairlead/internal/informers"
	"github.com/fairlead/fairlead/internal/kubelog"
	"github.com/fairlead/fairlead/internal/logging"
	"github.com/fairlead/fairlead/internal/memory"
	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/internal/traces"
	"github.com/fairlead/fairlead/internal/version"
	"github.com/fairlead/fairlead/pkg/controller"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/rollout"
)

func main() { command.Main(run) }

// run runs the program and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return command.Run(ctx, rootCommand(), args, stdout, stderr)
}

// flags holds the command line.
type flags struct {
	config                             controller.Config
	tunnels                            bool
	domain, public, apiServer, connect string
	xdsServer, rollout                 string
	clock                              controller.Clock
	dns, kubeconfig                    string
	leaderElect                        bool
	leaderElectLease                   time.Duration
	healthListen, metricsListen        string
	webhookListen                      string
	dialNetworks, apiServerCIDRs       []string
	logging                            logging.Flags
	traces                             traces.Flags
}

func rootCommand() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Reconcile Tunnels, kubeconfigs and bootstrap Secrets of Clusters, and sign certificates",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), cmd.ErrOrStderr())
		},
	}
	set := cmd.Flags()
	f.addInstallation(set)
	f.addClusters(set)
	f.addCertificates(set)
	f.addRollout(set)
	f.addProcess(set)
	f.addNetwork(set)
	f.logging.AddTo(set)
	f.traces.AddTo(set)
	return command.Versioned(cmd)
}

// addInstallation adds the flags about the installation and its addresses.
func (f *flags) addInstallation(set *pflag.FlagSet) {
	set.BoolVar(
		&f.tunnels,
		"tunnels",
		true,
		"make tunnels; false: only write kubeconfigs that lead through the user's own networks, without gateways, CA and "+
			"xds-server; then the tunnel domain and the addresses of gateways and xds-servers must not be set",
	)
	set.StringVar(
		&f.domain, "tunnel-domain", "", "DNS domain of the installation's names, such as tunnels.example.com (required)",
	)
	set.StringVar(&f.config.Namespace, "namespace", "fairlead-system", "namespace of the installation's own objects")
	set.StringVar(&f.public, "public-address", "", "host:port at which edges reach the gateways (required)")
	set.StringVar(
		&f.apiServer, "apiserver-address", "", "host:port at which clients reach the gateways' apiserver listener (required)",
	)
	set.StringVar(
		&f.connect, "connect-address", "", "host:port at which clients reach the gateways' connect listener (required)",
	)
	set.StringVar(
		&f.config.PublicService,
		"public-service",
		"",
		"labels, annotations and spec, as YAML, of the Service gateway-public at which edges reach the gateways, which the "+
			"controller then creates and keeps; without it that Service is yours",
	)
	set.StringVar(
		&f.dns, "tunnel-dns", string(controller.TunnelDNSAuto),
		"whether clients can resolve tunnel hostnames: auto, yes or no",
	)
	set.StringVar(
		&f.xdsServer,
		"xds-server",
		"",
		"host:port of the xds-servers, a DNS name that resolves to all of them, for the live state of tunnels; without it "+
			"that state stays unknown",
	)
}

// addClusters adds the flags about the Clusters, and what is reported about them.
func (f *flags) addClusters(set *pflag.FlagSet) {
	set.BoolVar(
		&f.config.AllClusters, "all-clusters", false, "give a tunnel to every Cluster that does not opt out by label",
	)
	set.DurationVar(
		&f.config.BootReportAfter,
		"boot-report-after",
		10*time.Minute,
		"how long a machine may take from ready infrastructure to its first boot report, on Clusters in which all machines "+
			"report",
	)
	set.IntVar(
		&f.config.GatewaysPerTunnel, "gateways-per-tunnel", model.DefaultGatewaysPerTunnel,
		"--gateways-per-tunnel of the xds-servers: a tunnel is complete with tunnels to as many gateways (0: all)",
	)
	set.IntVar(
		&f.config.StatusWrites,
		"status-writes",
		150,
		"maximum writes of tunnel state per second to all Tunnels and Clusters together; changes for the worse are written "+
			"first",
	)
}

// addCertificates adds the flags about CAs, certificates, their requests and bootstrap tokens.
func (f *flags) addCertificates(set *pflag.FlagSet) {
	set.DurationVar(
		&f.config.LeafLifetime, "leaf-lifetime", 24*time.Hour,
		"lifetime of the certificates of edges, gateways and xds-servers",
	)
	set.DurationVar(
		&f.config.CALifetime, "ca-lifetime", 10*365*24*time.Hour,
		"lifetime of a CA that the controller makes; it is rotated before its end",
	)
	set.DurationVar(
		&f.config.CAOverlap,
		"ca-overlap",
		90*24*time.Hour,
		"how long a rotated CA stays trusted beside the new one: an edge that is away for longer must enrol again; a "+
			"shorter time also ends a running rotation sooner",
	)
	set.BoolVar(
		&f.config.NoCrossSign, "ca-no-cross-sign", false,
		"let no previous CA vouch for the CA in use: a bootstrap file that has only the previous one is useless after the "+
			"overlap; for a CA whose key is stolen",
	)
	set.DurationVar(
		&f.config.TokenLifetime, "token-lifetime", 24*time.Hour,
		"lifetime of a bootstrap token; it is replaced after half of it",
	)
	set.Int32Var(
		&f.config.TokenUses, "token-uses", 32,
		"how many edges may enrol with one bootstrap token; it is replaced after half of these uses",
	)
	set.StringVar(
		&f.config.EdgeImage, "edge-image", "",
		"image of edge-agent and Envoy in the Secrets <cluster>-edge-resources for ClusterResourceSets; without it they "+
			"contain the bootstrap file alone",
	)
	set.StringVar(
		&f.config.XDSServerUser, "xds-server-user", "system:serviceaccount:fairlead-system:xds-server",
		"Kubernetes user of the xds-server; only its CertificateSigningRequests are signed",
	)
}

// addRollout adds the flags about changes for all gateways and edges.
func (f *flags) addRollout(set *pflag.FlagSet) {
	set.StringVar(
		&f.rollout,
		"rollout",
		"waves",
		"how a change for all gateways and edges (a setting of the xds-servers or a new version) is rolled out: waves (1 % "+
			"of them first, then the rest; rolled back if they reject it, report an error or lose tunnels) or immediate (all "+
			"at once)",
	)
	set.DurationVar(
		&f.config.RolloutSoak, "rollout-soak", rollout.DefaultSoak, "how long each of the two waves is observed",
	)
}

// addProcess adds the flags about the process itself: leader election, its listeners and its kubeconfig.
func (f *flags) addProcess(set *pflag.FlagSet) {
	set.BoolVar(
		&f.leaderElect, "leader-elect", false, "elect a leader among the replicas; required with more than one replica",
	)
	set.DurationVar(
		&f.leaderElectLease,
		"leader-elect-lease",
		8*time.Second,
		"how long after the last renewal of its lease a dead leader is replaced; until then nothing is signed and no "+
			"status is written",
	)
	set.StringVar(&f.healthListen, "health-listen", ":8081", "address of /healthz and /readyz; 0 for none")
	set.StringVar(&f.metricsListen, "metrics-listen", "0", "address of /metrics, plain HTTP; 0 for none")
	set.BoolVar(&f.config.PerCluster, "per-cluster-metrics", false, "also publish series for each workload cluster")
	set.StringVar(
		&f.kubeconfig, "kubeconfig", "", "kubeconfig of the management cluster (default: the ServiceAccount of the Pod)",
	)
}

// addNetwork adds the flags about the webhook, and about what the controller may dial.
func (f *flags) addNetwork(set *pflag.FlagSet) {
	set.StringVar(
		&f.webhookListen, "webhook-listen", ":9443",
		"address of the webhook that rewrites kubeconfigs at admission, HTTPS; 0 for none",
	)
	set.StringVar(
		&f.config.WebhookCertDir,
		"webhook-cert-dir",
		"",
		"folder of tls.crt and tls.key of the webhook, if another program such as cert-manager issues and renews them and "+
			"writes the CA bundle; without it the controller does so",
	)
	set.StringSliceVar(
		&f.dialNetworks,
		"dial-networks",
		nil,
		"networks in which the controller may dial addresses that Tunnels name (https proxies, previous servers of "+
			"kubeconfigs), such as 10.1.0.0/16; without any it dials only endpoints of Clusters, and accepts no https proxy. "+
			"It never dials loopback, link-local addresses or the management cluster's apiserver",
	)
	set.StringSliceVar(
		&f.apiServerCIDRs,
		"apiserver-cidrs",
		nil,
		"networks in which gateways may dial the endpoints of Clusters for the machines of RemoteNetworks, such as "+
			"10.1.0.0/16; without any they dial none, and such machines reach only apiservers with a tunnel. Users of a "+
			"namespace choose these addresses: leave those of gateways out. Loopback and link-local addresses are never dialled",
	)
}

// run validates everything before it starts anything.
func (f *flags) run(ctx context.Context, stderr io.Writer) error {
	log, err := f.logging.New(stderr)
	if err != nil {
		return err
	}
	if err := f.complete(); err != nil {
		return err
	}
	f.config.Now, f.config.Metrics = f.clock.Now, registerer{ctrlmetrics.Registry}
	f.config.Metrics.MustRegister(metrics.Build(metrics.Controller))
	kubelog.SetLogger(log)
	informers.ReadByList()
	memory.Bound(0, log)
	stop, err := f.traces.Start(ctx, "controller", log)
	if err != nil {
		return err
	}
	defer stop()
	config, err := f.restConfig()
	if err != nil {
		return err
	}
	mgr, err := f.manager(config)
	if err != nil {
		return fmt.Errorf("creating manager: %w", err)
	}
	if err := controller.Setup(mgr, f.config, log); err != nil {
		return err
	}
	log.Info("controller starts", version.Attr(), "tunnel_domain", f.domain, "tunnels", f.tunnels)
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("running controllers: %w", err)
	}
	return nil
}

// complete parses the text values of flags, and validates the whole configuration.
func (f *flags) complete() (err error) {
	if f.webhookListen != "0" {
		f.config.WebhookListen = f.webhookListen
	}
	if f.rollout != "waves" && f.rollout != "immediate" {
		return fmt.Errorf("--rollout: %q is invalid: must be waves or immediate", f.rollout)
	}
	f.config.RolloutImmediate = f.rollout == "immediate"
	f.config.Domain, f.config.DNS, f.config.NoTunnels = model.TunnelDomain(
		f.domain,
	), controller.TunnelDNS(
		f.dns,
	), !f.tunnels
	for _, list := range []struct {
		flag   string
		values []string
		into   *[]netip.Prefix
	}{
		{"--dial-networks", f.dialNetworks, &f.config.DialNetworks},
		{"--apiserver-cidrs", f.apiServerCIDRs, &f.config.APIServerCIDRs},
	} {
		for _, network := range list.values {
			prefix, err := netip.ParsePrefix(network)
			if err != nil {
				return fmt.Errorf("%s: %q is not a network such as 10.1.0.0/16", list.flag, network)
			}
			*list.into = append(*list.into, prefix.Masked())
		}
	}
	for _, address := range []struct {
		flag, value string
		into        *model.Endpoint
	}{
		{"--public-address", f.public, &f.config.Public},
		{"--apiserver-address", f.apiServer, &f.config.APIServer},
		{"--connect-address", f.connect, &f.config.Connect},
		{"--xds-server", f.xdsServer, &f.config.XDSServer},
	} {
		if address.value == "" && (address.flag == "--xds-server" || !f.tunnels) {
			continue
		}
		if *address.into, err = model.ParseEndpoint(address.value); err != nil {
			return fmt.Errorf("%s: %w", address.flag, err)
		}
	}
	return f.config.Validate()
}

func (f *flags) restConfig() (*rest.Config, error) {
	// An empty path selects the Pod's own configuration.
	config, err := clientcmd.BuildConfigFromFlags("", f.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig of the management cluster: %w", err)
	}
	config.UserAgent = "fairlead-controller"
	config.Wrap(f.clock.Wrap)
	config.Wrap(traces.Transport)
	// The apiserver's own fairness limits clients; a limit here would only delay the first round after a start.
	config.QPS = -1
	return config, nil
}

func (f *flags) manager(config *rest.Config) (ctrl.Manager, error) {
	scheme, err := controller.NewScheme()
	if err != nil {
		return nil, err
	}
	// Client-go requires the renew deadline to be shorter than the lease, and the retry period to be shorter than the
	// renew deadline.
	renew, retry := f.leaderElectLease*2/3, f.leaderElectLease/7
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         controller.CacheOptions(f.config),
		Metrics:                       server.Options{BindAddress: f.metricsListen},
		HealthProbeBindAddress:        f.healthListen,
		LeaderElection:                f.leaderElect,
		LeaderElectionID:              "fairlead-controller",
		LeaderElectionNamespace:       f.config.Namespace,
		LeaderElectionReleaseOnCancel: true, // the process does nothing after its controllers have ended
		LeaseDuration:                 &f.leaderElectLease,
		RenewDeadline:                 &renew,
		RetryPeriod:                   &retry,
	})
	if err != nil {
		return nil, err
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, err
	}
	if err := mgr.AddHealthzCheck("reconcile", controller.Alive); err != nil {
		return nil, err
	}
	return mgr, mgr.AddReadyzCheck("ping", healthz.Ping)
}
