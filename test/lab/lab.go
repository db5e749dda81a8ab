// Package lab builds a whole installation on one machine for tests and the demo. Input: Options. Output: a running
// installation, and clients in its networks. It composes the packages below it (networks, processes, Kubernetes,
// Cluster API, machines) with the programs of Fairlead. It requires root, and removes everything that it creates. Labs
// are independent of each other. It does not know any test framework.
package lab

import (
	"context"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/test/lab/capi"
	"github.com/fairlead/fairlead/test/lab/infra"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

// Options configure a lab. The zero value is a usable lab.
type Options struct {
	// TunnelDomain is the parent domain of all tunnel names; tunnels.example.test by default.
	TunnelDomain string
	// GatewayPod makes gateways enrol with the ServiceAccount token of a Pod instead of the gateway token.
	GatewayPod bool
	// ServingNames are additional names in the serving certificate of the SNI apiserver.
	ServingNames []string
	// Gateways and XDSServers are their numbers; one by default.
	Gateways, XDSServers int
	// GatewaysPerTunnel is to how many gateways the edges of a tunnel keep tunnels; 0: the programs' default.
	GatewaysPerTunnel int
	// GatewayWorkers is the number of workers of each gateway; one by default.
	GatewayWorkers int
	// WithoutNetAdmin makes the gateways do without the capability NET_ADMIN.
	WithoutNetAdmin bool
	// BalancerNetwork is the network of load balancers that send PROXY headers; the zero value: edges reach the gateways
	// without one.
	BalancerNetwork netip.Prefix
	// Family is which addresses all machines have; IPv4 by default. With both families programs listen on all addresses,
	// so there can be only one xds-server.
	Family netns.Family
	// ReplicaAddresses lets edges in the workload network dial each gateway at an address of its own.
	ReplicaAddresses bool
	// EtcdMembers is the number of members of the management cluster's etcd; one by default. A lab with several can
	// neither lose nor restore its management cluster.
	EtcdMembers int
	// Lean leaves out what only Cluster API itself needs: its manager, and the second workload apiserver.
	Lean bool
	// WithoutWorkload leaves out all workload apiservers: the tests have their own, or stand-ins.
	WithoutWorkload bool
	// Controllers is the number of controllers, one of them the leader; one by default. Only the first has a webhook.
	Controllers int
	// ControllerFlags and XDSServerFlags are additional flags of the controllers and of the xds-servers.
	ControllerFlags, XDSServerFlags []string
	// Bootstrap adds Cluster API's kubeadm bootstrap provider, for workers of control planes that it does not make.
	Bootstrap bool
	// Machines adds Cluster API's kubeadm providers and an infrastructure provider whose machines are network namespaces:
	// Cluster API makes the workload clusters itself, so the lab has no workload apiservers of its own.
	Machines bool
	// Metrics makes all programs serve metrics: see Lab.Targets.
	Metrics bool
	// Pages makes the xds-servers serve the status page: see PageAddress.
	Pages bool
	// AccessLog selects the connections that gateways and edges log: failed or all; empty: none.
	AccessLog string
	// LogLevel is the log level of our own programs; debug by default.
	LogLevel string
	// Install installs the parts of deploy/kubernetes that are not programs, including the StatefulSet of the gateways;
	// nil: the lab does it.
	Install func(context.Context, *Lab) error
	// Collector adds the Kubernetes controllers that remove deleted objects. A lab with machines always has them.
	Collector bool
	// Programs is the folder of our own programs; by default the value of BinEnv.
	Programs string
	// Certificates is the lifetime of the apiservers' certificates; a day by default, for which `fairlead status` warns.
	Certificates time.Duration
	// Prepare is called when the management cluster has all types and permissions, before any program of Fairlead
	// starts; it may be nil.
	Prepare func(context.Context, *Lab) error
}

// certificatesEnd returns the end of the apiservers' certificates; zero: the default.
func (o Options) certificatesEnd() time.Time {
	if o.Certificates == 0 {
		return time.Time{}
	}
	return time.Now().Add(o.Certificates)
}

// Lab is an installation. New and Start set its fields. Later they change only when gateways are added or removed.
type Lab struct {
	Network    *netns.Network
	Management *kube.APIServer
	// SNI is a workload apiserver whose serving certificate has the names of Options.ServingNames; nil with machines and
	// without workload apiservers.
	SNI *kube.APIServer
	// Connect is a workload apiserver whose serving certificate has only the names that kubeadm gives it; nil in a lean
	// lab, with machines and without workload apiservers.
	Connect *kube.APIServer

	Controller  *proc.Service // the first of Controllers
	Controllers []*proc.Service
	XDSServers  []*proc.Service
	Gateways    []*Agent
	Etcd        *proc.Process // of the management cluster, the first of EtcdMembers
	EtcdMembers []*proc.Process
	CAPI        []*proc.Process // Cluster API's managers, the core manager first; none in a lean lab
	Cloud       *infra.Cloud    // where machines run; nil without Options.Machines

	*workspace.Workspace
	Domain  string
	options Options
	beside  *Lab // whose workload network this lab shares; nil: none

	collector *proc.Process  // nil in a lab without one
	webhooks  *pki.Authority // of Cluster API's managers

	mu          sync.Mutex
	services    []*proc.Service // of ours
	edges       []*Agent        // that RunEdge has started
	healthPorts int             // how many were given out
	// arguments are the arguments of our programs, by process, including ones that a program does not support.
	arguments map[string][]string
}

// New finds the programs, removes what killed labs left behind, and creates the networks. The caller must close the
// lab, even if starting it fails.
func New(ctx context.Context, options Options) (*Lab, error) {
	return build(ctx, options, nil)
}

// build is New. If beside is not nil, the lab shares its workload network, and the machines and apiservers there.
func build(ctx context.Context, options Options, beside *Lab) (*Lab, error) {
	workspace, err := workspace.New(ctx, options.Programs, options.Machines)
	if err != nil {
		return nil, err
	}
	if options.TunnelDomain == "" {
		options.TunnelDomain = "tunnels.example.test"
	}
	options.Gateways, options.XDSServers, options.Controllers = max(options.Gateways, 1), max(options.XDSServers,
		1), max(options.Controllers, 1)
	l := &Lab{Workspace: workspace, Domain: options.TunnelDomain, options: options, arguments: map[string][]string{}}
	if l.Network, err = l.network(ctx, workspace.Name, beside); err != nil {
		l.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	if l.beside = beside; beside != nil {
		l.SNI, l.Connect = beside.SNI, beside.Connect
	}
	return l, nil
}

// Start starts all parts, independent ones concurrently, and returns when all are ready.
func (l *Lab) Start(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return l.startManagement(ctx) })
	if !l.options.Machines && !l.options.WithoutWorkload && l.beside == nil {
		group.Go(func() error { return l.startWorkload(ctx) })
	}
	return group.Wait()
}

// startManagement starts everything in the management and the gateway networks.
func (l *Lab) startManagement(ctx context.Context) error {
	if err := l.startManagementCluster(ctx); err != nil {
		return err
	}
	if l.options.Machines {
		infra.StartProvider(l.Workspace, l.Cloud, l.Management)
	}
	group, ctx := errgroup.WithContext(ctx)
	crds := make(chan struct{})
	group.Go(func() error { return l.startCollector(ctx) })
	group.Go(func() error { return l.startCAPI(ctx, crds) })
	group.Go(func() error { return l.startFairlead(ctx, crds) })
	return group.Wait()
}

// startManagementCluster starts a management cluster without anything in it.
func (l *Lab) startManagementCluster(ctx context.Context) (err error) {
	n := max(l.options.EtcdMembers, 1)
	if l.EtcdMembers, err = kube.StartEtcdMembers(ctx, l.Workspace, l.Network.Management, n); err != nil {
		return err
	}
	l.Etcd = l.EtcdMembers[0]
	l.Management, err = kube.StartAPIServer(ctx, l.Workspace, kube.APIServerSpec{
		Name: "management", Namespace: l.Network.Management, Address: l.Network.ManagementAddress(), Port: 6443, Etcd: l.Etcd,
		Prefix: "/management", Flags: []string{kube.EtcdServers(n)},
		NotAfter: l.options.certificatesEnd(),
	})
	return err
}

// startCollector starts the collector, if the lab has one.
func (l *Lab) startCollector(ctx context.Context) (err error) {
	if l.options.Machines || l.options.Collector {
		l.collector, err = kube.StartCollector(ctx, l.Workspace, l.Management)
	}
	return err
}

// startWorkload starts the workload apiservers.
func (l *Lab) startWorkload(ctx context.Context) error {
	etcd, err := kube.StartEtcd(ctx, l.Workspace, l.Network.Workload)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		l.SNI, err = kube.StartAPIServer(ctx, l.Workspace, kube.APIServerSpec{
			Name: "workload-sni", Namespace: l.Network.Workload, Address: l.Network.WorkloadAddress(), Port: 6443, Etcd: etcd,
			Prefix: "/sni", Names: l.options.ServingNames,
			NotAfter: l.options.certificatesEnd(),
		})
		return err
	})
	if l.options.Lean {
		return group.Wait()
	}
	group.Go(func() (err error) {
		l.Connect, err = kube.StartAPIServer(ctx, l.Workspace, kube.APIServerSpec{
			Name: "workload-connect", Namespace: l.Network.Workload, Address: l.Network.WorkloadAddress(), Port: 7443,
			Etcd: etcd, Prefix: "/connect",
			NotAfter: l.options.certificatesEnd(),
		})
		return err
	})
	return group.Wait()
}

// Close stops all processes and removes the networks and all files. It may be called more than once.
func (l *Lab) Close(ctx context.Context) {
	l.stopServices()
	l.RunClosers(ctx)
	if l.Network != nil {
		l.Network.Close(ctx)
	}
	_ = os.RemoveAll(l.Dir)
}

// AddSite adds a site on the workload network: see Network.AddSite.
func (l *Lab) AddSite(ctx context.Context, name string) (*netns.Site, error) {
	return l.Network.AddSite(ctx, name)
}

// AddSecludedSite adds a site behind a proxy: see Network.AddSecludedSite.
func (l *Lab) AddSecludedSite(ctx context.Context, name string) (*netns.Site, error) {
	return l.Network.AddSecludedSite(ctx, name)
}

// startCAPI installs Cluster API and starts its managers: see Provider.
func (l *Lab) startCAPI(ctx context.Context, installed chan<- struct{}) (err error) {
	p, err := l.clusterAPI()
	if err != nil {
		return err
	}
	l.CAPI, err = p.Start(ctx, installed)
	return err
}

// RestartClusterAPI kills Cluster API's managers and starts them again, with empty caches.
func (l *Lab) RestartClusterAPI(ctx context.Context) error {
	p, err := l.clusterAPI()
	if err != nil {
		return err
	}
	l.CAPI, err = p.Restart(ctx, l.CAPI)
	return err
}

// StartManager starts Cluster API's core manager for the Clusters of one namespace of a lean lab: see
// Provider.StartManager.
func (l *Lab) StartManager(ctx context.Context, name, namespace string, flags ...string) (*proc.Process, error) {
	p, err := l.clusterAPI()
	if err != nil {
		return nil, err
	}
	return p.StartManager(ctx, name, namespace, flags...)
}

// clusterAPI returns the provider that runs Cluster API's managers of this lab.
func (l *Lab) clusterAPI() (*capi.Provider, error) {
	if l.webhooks == nil {
		authority, err := pki.NewAuthority("capi-webhook")
		if err != nil {
			return nil, err
		}
		l.webhooks = authority
	}
	return &capi.Provider{
		Workspace: l.Workspace, Management: l.Management, Webhooks: l.webhooks, Bootstrap: l.options.Bootstrap,
		Machines: l.options.Machines, Lean: l.options.Lean,
	}, nil
}
