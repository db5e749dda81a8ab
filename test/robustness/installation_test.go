package robustness

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/clock"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/lab/workspace"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// patience is how long an operation is tried again while something is broken. No fault lasts as long.
	patience = 2 * time.Minute
	// attempt bounds one attempt.
	attempt = 20 * time.Second
)

// installation is what the schedules happen to.
type installation struct {
	*world.World
	t       *testing.T
	members map[string]*member
	standIn map[string]*world.StandIn // the present ones
	lasting []*lab.Agent              // the gateways, because scaling changes those of the lab
	disks   []*workspace.Disk         // of the gateways that are never removed; none in the short form
	history *Recorder                 // of the present run
	remotes []*remote                 // Clusters with networks; none in the short form
	second  *secondInstallation       // nil in the short form
	// The long form has clocks, programs of the earliest version and clients of every kind.
	long     bool
	clocks   *clock.Clocks
	earliest string // the folder of these programs

	// fragile are, by the name of a log, the parts in which its program may crash, because it could open no file or
	// allocate no memory, or was of the earliest version.
	fragile map[string][]*part

	// ignoreRevocations is a planted bug: edges are revoked on paper only.
	ignoreRevocations bool

	// serving is held by an operation that cannot be tried again, and for writing while the apiserver of the management
	// cluster is frozen.
	serving sync.RWMutex
	// moving is held while clusterctl moves a Cluster, during which it pauses all others of the namespace, and for
	// reading while objects are deleted: clusterctl waits 159 s for each object that it has found and that is gone when
	// it reads it (newWriteBackoff in cmd/clusterctl/client/cluster/client.go of Cluster API).
	moving sync.RWMutex
	// networks is held while a site or a gateway gets or loses its place in the networks.
	networks sync.Mutex

	mu      sync.Mutex        // guards history, standIn, fragile and the rest
	cli     string            // another build of fairlead; empty: the usual one
	revoked map[string]bool   // the addresses of edges that are revoked and still run
	started int               // edges so far
	thieves []outsider.Stolen // the identities of the edges that were revoked in the present run
	denied  map[string]bool   // the pairs of nodes of which one was denied the resources of the other
	leaves  map[string]string // the name that answers, by the serving certificate of its apiserver
	free    []*netns.Site     // of edges that were stopped, because a network has only so many addresses
}

// member is a workload cluster.
type member struct {
	name  string
	path  traffic.Path    // without the gateway and the mode
	real  *kube.APIServer // nil: it has stand-ins
	named bool            // its apiserver has the Cluster's name, so that its kubeconfig works in both modes
	// served returns the name that answers by the serving certificate of an apiserver.
	served func(*x509.Certificate) string
	turn   sync.Mutex     // held by an operation
	mu     sync.Mutex     // guards the rest
	edges  map[int]*place // that should carry traffic
	old    map[int]*place // revoked, and still running
	gone   []*place       // of earlier Clusters of this name, and still running

	cluster *lab.Cluster
	answer  string // the name that answers for it
	up      bool
}

// place is an edge on a machine of its own.
type place struct {
	*lab.Agent
	site *netns.Site
	disk *workspace.Disk
}

// diskSize is the size of the disk of an edge, and gatewayDiskSize that of a gateway, in KiB. A gateway has a log of up
// to 8 MiB, and for a moment two.
const diskSize, gatewayDiskSize = 4 << 10, 64 << 10

// newInstallation starts an installation with workload clusters of Inventory.
func newInstallation(t *testing.T, options lab.Options, names []string) *installation {
	t.Helper()
	options.Controllers, options.XDSServers, options.Gateways = Controllers, XDSServers, Gateways
	options.Metrics, options.ServingNames = true, []string{world.Hostname("berlin"), secondHostname("berlin")}
	var disks []*workspace.Disk
	if !options.Lean {
		options.EtcdMembers = EtcdMembers
		options.Prepare = func(ctx context.Context, l *lab.Lab) (err error) {
			disks, err = gatewayDisks(ctx, l)
			return err
		}
	}
	in := &installation{
		World: world.Start(t, &proof, options), t: t, members: map[string]*member{}, long: !options.Lean,
		standIn: map[string]*world.StandIn{}, revoked: map[string]bool{}, leaves: map[string]string{},
		fragile: map[string][]*part{},
	}
	in.disks = disks
	in.lasting = slices.Clone(in.Gateways)
	if in.long {
		in.second = newSecond(t, in.Lab) // before there are sites, which are to know the name of its gateways
	}
	apiservers := map[string]*kube.APIServer{"berlin": in.SNI, "rome": in.Connect}
	for _, name := range names {
		m := &member{
			name: name, real: apiservers[name], served: in.served, edges: map[int]*place{}, old: map[int]*place{},
		}
		m.named = m.real != nil && m.real == in.SNI
		m.path = traffic.Path{
			From: in.Network.Management, Hostname: world.Hostname(name), ServerName: "kubernetes", Unverified: true,
		}
		in.members[name] = m
	}
	var group sync.WaitGroup
	errs := make([]error, len(names)+1)
	for i, name := range names {
		if Inventory[name] > 0 {
			group.Go(func() { errs[i] = in.create(t.Context(), in.members[name]) })
		}
	}
	if in.long {
		group.Go(func() { errs[len(names)] = in.lengthen(t.Context()) })
	}
	group.Wait()
	must(t, errors.Join(errs...))
	return in
}

// gatewayDisks mounts the state folders of the gateways that always run.
func gatewayDisks(ctx context.Context, l *lab.Lab) (disks []*workspace.Disk, err error) {
	for i := range Gateways - 1 {
		d, err := l.NewSlowDisk(ctx, filepath.Join(netns.GatewayReplica(i), "state"), gatewayDiskSize)
		if err != nil {
			return nil, err
		}
		disks = append(disks, d)
	}
	return disks, nil
}

// lengthen adds what only the long form has.
func (in *installation) lengthen(ctx context.Context) (err error) {
	if in.clocks, err = clock.NewClocks(ctx); err != nil {
		return err
	}
	if err := in.buildEarliest(ctx); err != nil {
		return err
	}
	if err := in.furnish(ctx); err != nil {
		return err
	}
	return in.startNetworks(ctx)
}

// newStandIn starts a stand-in for a member. It records each request through a revoked edge.
func (in *installation) newStandIn(name string) *world.StandIn {
	s := in.StandIn(in.t, name, in.Network.Workload, in.Network.WorkloadAddress())
	carried := func(edge string) {
		in.mu.Lock()
		defer in.mu.Unlock()
		if in.revoked[edge] {
			in.history.Add(Entry{Kind: KindCarried, Cluster: name, Edge: edge})
		}
	}
	s.OnRequest.Store(&carried)
	return s
}

// create creates the Cluster of a member and starts its edges. It returns when they are ready.
func (in *installation) create(ctx context.Context, m *member) error {
	spec := lab.ClusterSpec{Name: m.name, Namespace: world.Namespace, Mode: v1alpha1.KubeconfigModeSNI}
	answer := ""
	if m.real != nil {
		var system corev1.Namespace
		if err := m.real.Client.Get(ctx, client.ObjectKey{Name: "kube-system"}, &system); err != nil {
			return fmt.Errorf("identifying %s: %w", m.name, err)
		}
		identity, err := tls.X509KeyPair(m.real.Admin.CertPEM, m.real.Admin.KeyPEM)
		if err != nil {
			return err
		}
		spec.APIServer, answer, m.path.Identity = m.real, string(system.UID), &identity
	} else {
		s := in.newStandIn(m.name)
		spec.APIServer, answer = s.APIServer, s.Name
		in.mu.Lock()
		in.standIn[m.name] = s
		in.mu.Unlock()
	}
	if err := in.again(ctx, func(ctx context.Context) error {
		return in.recognise(ctx, spec.APIServer, answer)
	}); err != nil {
		return fmt.Errorf("reading the serving certificate of %s: %w", m.name, err)
	}
	in.moving.RLock()
	err := in.again(ctx, func(ctx context.Context) (err error) {
		if m.cluster, err = in.CreateCluster(ctx, spec); err != nil {
			err = errors.Join(err, in.remove(ctx, m.name)) // what a failed attempt has created
		}
		return err
	})
	in.moving.RUnlock()
	if err != nil {
		return err
	}
	if err := in.again(ctx, m.cluster.SetProvisioned); err != nil {
		return err
	}
	in.expect(m, answer, true)
	for i := range max(1, Inventory[m.name]) {
		if err := in.startEdge(ctx, m, i); err != nil {
			return err
		}
	}
	return nil
}

// recognise records the serving certificate of an apiserver, so that clients know which one they have reached even if
// it does not know them.
func (in *installation) recognise(ctx context.Context, a *kube.APIServer, answer string) error {
	raw, err := a.Namespace.DialContext(ctx, "tcp", a.Endpoint.String())
	if err != nil {
		return err
	}
	defer func() { _ = raw.Close() }()
	conn := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
	if err := conn.HandshakeContext(ctx); err != nil {
		return err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.leaves[string(conn.ConnectionState().PeerCertificates[0].Raw)] = answer
	return nil
}

// served returns the name that answers by the serving certificate of an apiserver.
func (in *installation) served(leaf *x509.Certificate) string {
	in.mu.Lock()
	defer in.mu.Unlock()
	return cmp.Or(in.leaves[string(leaf.Raw)], "an unknown apiserver")
}

// again tries something until it succeeds, because a fault may interrupt it.
func (in *installation) again(ctx context.Context, try func(context.Context) error) error {
	return proc.Wait(ctx, patience, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, attempt)
		defer cancel()
		return try(ctx)
	})
}

// startEdge starts an edge in a new place, and waits until it is ready.
func (in *installation) startEdge(ctx context.Context, m *member, i int) error {
	bootstrap, err := m.cluster.Bootstrap(ctx)
	if err != nil {
		return err
	}
	site, n, err := in.freeSite(ctx)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("edge-%s-%d-%d", m.name, i, n)
	newDisk := in.NewDisk
	if in.long {
		newDisk = in.NewSlowDisk
	}
	small, err := newDisk(ctx, "disk-"+name, diskSize)
	if err != nil {
		return err
	}
	agent, err := in.RunEdge(lab.EdgeSpec{
		Name: name, Site: site.Namespace, Bootstraps: [][]byte{bootstrap}, StateDir: filepath.Join(small.Path, "state"),
	})
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.edges[i] = &place{agent, site, small}
	m.mu.Unlock()
	return agent.WaitReady(ctx, patience, func(ctx context.Context) error {
		err := agent.Ready(ctx)
		if err != nil {
			err = errors.Join(err, in.renewBootstrap(ctx, m, in.BootstrapFile(name, 0)))
		}
		return err
	})
}

// renewBootstrap replaces the bootstrap file of an edge if its token has been replaced, as the edge's log asks for. The
// token may have been used up by earlier edges while the controller could not replace it.
func (in *installation) renewBootstrap(ctx context.Context, m *member, file string) error {
	newest, err := m.cluster.Bootstrap(ctx)
	if err != nil {
		return err
	}
	present, err := os.ReadFile(file)
	if err != nil || bytes.Equal(present, newest) {
		return err
	}
	return disk.Replace(file, newest)
}

// freeSite returns a site without an edge, and the number of the edge that will be there.
func (in *installation) freeSite(ctx context.Context) (site *netns.Site, n int, err error) {
	in.mu.Lock()
	in.started++
	n = in.started
	if len(in.free) > 0 {
		defer in.mu.Unlock()
		site, in.free = in.free[0], in.free[1:]
		delete(in.revoked, site.Address.String())
		in.history.Add(Entry{Kind: KindPlaced, Edge: site.Address.String()})
		return site, n, nil
	}
	in.mu.Unlock()
	in.networks.Lock()
	defer in.networks.Unlock()
	site, err = in.AddSite(ctx, fmt.Sprintf("s%d", n))
	return site, n, err
}

// stopEdge stops an edge for good.
func (in *installation) stopEdge(p *place) {
	world.StopEdge(in.t, p.Agent)
	p.disk.Close()
	in.mu.Lock()
	defer in.mu.Unlock()
	in.free = append(in.free, p.site)
}

// expect records what should answer for a member from now on.
func (in *installation) expect(m *member, answer string, up bool) {
	m.mu.Lock()
	m.answer, m.up = answer, up
	m.mu.Unlock()
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.history != nil {
		in.history.Add(Entry{Kind: KindExpect, Cluster: m.name, Answer: answer, Up: up})
	}
}

// record makes a recorder that of the present run, and repeats what is expected and true.
func (in *installation) record(r *Recorder) {
	in.mu.Lock()
	in.history, in.thieves, in.revoked, in.denied = r, nil, map[string]bool{}, map[string]bool{}
	in.mu.Unlock()
	for _, remote := range in.remotes {
		r.Add(Entry{Kind: KindExpect, Cluster: remote.Name, Answer: remote.expected(), Up: true, Settled: true})
	}
	for _, m := range in.all() {
		r.Add(Entry{Kind: KindExpect, Cluster: m.name, Answer: m.answer, Up: m.up, Settled: true})
		for _, p := range append(slices.Collect(maps.Values(m.old)), m.gone...) {
			if p != nil {
				r.Add(Entry{Kind: KindRetired, Cluster: m.name, Edge: p.site.Address.String()})
			}
		}
	}
}

// all returns the members in the order of their names.
func (in *installation) all() []*member {
	var all []*member
	for _, m := range in.members {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *member) int { return strings.Compare(a.name, b.name) })
	return all
}

// paths returns all paths to a member.
func (m *member) paths() []traffic.Path {
	var all []traffic.Path
	for i := range m.gateways() {
		for _, connect := range []bool{false, true} {
			p := m.path
			p.Gateway, p.Connect = i, connect
			all = append(all, p)
		}
	}
	return all
}

// who asks who answers, and through which edge, if the answer says that.
func (m *member) who(ctx context.Context, s *traffic.Session) (answer, edge string, err error) {
	if m.real == nil {
		body, err := s.Get(ctx, "/whoami")
		answer, edge, _ = strings.Cut(body, " ")
		return answer, edge, err
	}
	body, err := s.Get(ctx, "/api/v1/namespaces/kube-system")
	if err != nil {
		return "", "", err
	}
	var system corev1.Namespace
	if err := json.Unmarshal([]byte(body), &system); err != nil {
		return "", "", fmt.Errorf("reading the answer of %s: %w", m.name, err)
	}
	return string(system.UID), "", nil
}

// errNoEdge says that a Cluster is deleted at the moment.
var errNoEdge = errors.New("there is no such edge")

// place returns the present edge of a member by its number.
func (in *installation) place(cluster, number string) (*place, error) {
	m := in.members[cluster]
	if m == nil {
		return nil, fmt.Errorf("the installation has no %s", cluster)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, p := range m.edges {
		if fmt.Sprint(i) == number {
			return p, nil
		}
	}
	return nil, errNoEdge
}
