// Package lab builds a whole installation on one machine for tests and the demo. Options go in; a running installation,
// and clients in its networks, come out. It composes the packages below it (networks, processes, Kubernetes, Cluster
// API, machines) with the programs of Fairlead. It needs root, and leaves nothing behind. Labs are separate from each
// other. It does not know any test framework.
package lab

import (
	"context"
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

// Options say what a lab is to be. The zero value is a usable lab.
type Options struct {
	// TunnelDomain is the domain below which all tunnel names lie; tunnels.example.test by default.
	TunnelDomain string
	// GatewayPod makes gateways enrol with the ServiceAccount token of a Pod, not with the gateway token.
	GatewayPod bool
	// ServingNames are further names in the serving certificate of the SNI apiserver.
	ServingNames []string
	// Gateways and XDSServers are how many there are; one by default.
	Gateways, XDSServers int
	// GatewayWorkers is how many workers each gateway has; one by default.
	GatewayWorkers int
	// ReplicaAddresses lets edges in the workload network dial each gateway at an address of its own.
	ReplicaAddresses bool
	// Lean leaves out what only Cluster API itself needs: its manager, and the second workload apiserver.
	Lean bool
	// Controllers is how many there are, of which one leads; one by default. Only the first has a webhook.
	Controllers int
	// ControllerFlags are added to those of the controllers.
	ControllerFlags []string
	// Machines adds Cluster API's kubeadm providers and an infrastructure provider whose machines are network namespaces:
	// Cluster API makes the workload clusters itself, so the lab has no workload apiservers of its own.
	Machines bool
	// Metrics has all programs serve figures: see Lab.Targets.
	Metrics bool
	// Pages has the xds-servers serve the status page: see PageAddress.
	Pages bool
	// AccessLog is of which connections gateways and edges write a line: failed or all; empty: none.
	AccessLog string
	// LogLevel is that of our own programs; debug by default.
	LogLevel string
	// Install installs what of deploy/kubernetes doesn't run, the StatefulSet of the gateways included; nil: the lab does
	// it.
	Install func(context.Context, *Lab) error
	// Collector adds those of Kubernetes' own controllers that remove what is deleted; a lab with machines has them
	// anyway.
	Collector bool
	// Programs is the folder of our own programs; by default that of BinEnv.
	Programs string
	// Certificates is how long those of the apiservers are valid; a day by default, of which `fairlead status` warns.
	Certificates time.Duration
	// Prepare is called when the management cluster is there with all types and permissions, before any program of
	// Fairlead starts; it may be nil.
	Prepare func(context.Context, *Lab) error
}

// certificatesEnd is when the certificates of the apiservers end; zero: the default.
func (o Options) certificatesEnd() time.Time {
	if o.Certificates == 0 {
		return time.Time{}
	}
	return time.Now().Add(o.Certificates)
}

// Lab is an installation. Its fields are set by New and Start, and change
// afterwards only where gateways are added or removed.
type Lab struct {
	Network    *netns.Network
	Management *kube.APIServer
	// SNI is a workload apiserver whose serving certificate has the names of Options.ServingNames; nil with machines.
	SNI *kube.APIServer
	// Connect is a workload apiserver whose serving certificate has only the names that kubeadm gives it; nil in a lean
	// lab and with machines.
	Connect *kube.APIServer

	Controller  *proc.Service // the first of Controllers
	Controllers []*proc.Service
	XDSServers  []*proc.Service
	Gateways    []*Agent
	CAPI        *proc.Process // nil in a lean lab
	Cloud       *infra.Cloud  // where machines run; nil without Options.Machines

	*workspace.Workspace
	Domain  string
	options Options

	etcd      *proc.Process  // of the management cluster
	collector *proc.Process  // nil in a lab without one
	webhooks  *pki.Authority // of Cluster API's managers

	mu          sync.Mutex
	services    []*proc.Service // of ours
	edges       []*Agent        // that RunEdge has started
	healthPorts int             // how many were given out
	// arguments are those of our programs, by the names of their processes: also those that a program does not have.
	arguments map[string][]string
}

// New finds the programs, removes what killed labs left behind, and makes the networks. The lab must be closed, also
// when starting it fails.
func New(ctx context.Context, options Options) (*Lab, error) {
	return build(ctx, options, nil)
}

// build is New. Besides an installation it shares the workload network and the machines of that one.
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
	return l, nil
}

// Start starts all parts, those that don't need each other at the same time, and returns when all are ready.
func (l *Lab) Start(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return l.startManagement(ctx) })
	if !l.options.Machines {
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
	group.Go(func() error { return l.startCAPI(ctx, crds) })
	group.Go(func() error { return l.startFairlead(ctx, crds) })
	return group.Wait()
}

// startManagementCluster starts a management cluster without anything in it.
func (l *Lab) startManagementCluster(ctx context.Context) (err error) {
	if l.etcd, err = kube.StartEtcd(ctx, l.Workspace, l.Network.Management); err != nil {
		return err
	}
	l.Management, err = kube.StartAPIServer(ctx, l.Workspace, kube.APIServerSpec{
		Name: "management", Namespace: l.Network.Management, Address: netns.ManagementAddress, Port: 6443, Etcd: l.etcd,
		Prefix:   "/management",
		NotAfter: l.options.certificatesEnd(),
	})
	if err != nil || !l.options.Machines && !l.options.Collector {
		return err
	}
	l.collector, err = kube.StartCollector(ctx, l.Workspace, l.Management)
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
			Name: "workload-sni", Namespace: l.Network.Workload, Address: netns.WorkloadAddress, Port: 6443, Etcd: etcd,
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
			Name: "workload-connect", Namespace: l.Network.Workload, Address: netns.WorkloadAddress, Port: 7443, Etcd: etcd,
			Prefix:   "/connect",
			NotAfter: l.options.certificatesEnd(),
		})
		return err
	})
	return group.Wait()
}

// Close stops all processes and removes the networks and all files. It is safe to call it twice.
func (l *Lab) Close(ctx context.Context) {
	l.stopServices()
	l.RunClosers(ctx)
	if l.Network != nil {
		l.Network.Close(ctx)
	}
	_ = os.RemoveAll(l.Dir)
}

// AddSite makes a site on the workload network: see Network.AddSite.
func (l *Lab) AddSite(ctx context.Context, name string) (*netns.Site, error) {
	return l.Network.AddSite(ctx, name)
}

// AddSecludedSite makes a site behind a proxy: see Network.AddSecludedSite.
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

// StartManager starts Cluster API's core manager for the Clusters of one namespace of a lean lab: see
// Provider.StartManager.
func (l *Lab) StartManager(ctx context.Context, name, namespace string, flags ...string) (*proc.Process, error) {
	p, err := l.clusterAPI()
	if err != nil {
		return nil, err
	}
	return p.StartManager(ctx, name, namespace, flags...)
}

// clusterAPI is what Cluster API's managers of this lab run with.
func (l *Lab) clusterAPI() (*capi.Provider, error) {
	if l.webhooks == nil {
		authority, err := pki.NewAuthority("capi-webhook")
		if err != nil {
			return nil, err
		}
		l.webhooks = authority
	}
	return &capi.Provider{
		Workspace: l.Workspace, Management: l.Management, Webhooks: l.webhooks, Machines: l.options.Machines,
		Lean: l.options.Lean,
	}, nil
}
