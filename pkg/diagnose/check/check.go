// Package check locates the fault on the path from a client to a workload cluster. Its input is the name of a Cluster;
// its output is a report: each hop of the path in the order of a request, with the observation and, for an unhealthy
// hop, the likely cause and the cure. It only reads. What cannot be observed from this machine is reported as unknown,
// with the place where it can be.
//
// The text of a cure is for people and verified by tests: test/sight injects each known fault and follows the cure.
//
// It has more than 2,500 lines, because the hops cannot be separated: all of them share the record of one visit. Later
// hops use what earlier ones have read, and the cause at one hop often depends on what another one has observed. Many
// lines are texts of causes and cures.
package check

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/pkg/diagnose/collect"
)

// Status is the result of a hop.
type Status string

const (
	// OK means that no fault was found.
	OK Status = "ok"
	// Warning means that a fault exists or is imminent, but requests succeed.
	Warning Status = "warning"
	// Broken means that requests fail at this hop, or that no program maintains the path.
	Broken Status = "broken"
	// Unknown means that the hop cannot be tested from here. The cure states from where it can.
	Unknown Status = "unknown"
	// Skipped means that an earlier hop, or the kind of this path, leaves nothing to test.
	Skipped Status = "skipped"
)

// ID is the stable name of a hop.
type ID string

// The hops, in the order of the checks.
const (
	HopCluster        ID = "cluster"
	HopTunnel         ID = "tunnel"
	HopKubeconfig     ID = "kubeconfig"
	HopName           ID = "name"
	HopPort           ID = "port"
	HopRoute          ID = "route"
	HopTunnels        ID = "tunnels"
	HopEdge           ID = "edge"
	HopHandshake      ID = "handshake"
	HopAPIServer      ID = "apiserver"
	HopAuthentication ID = "authentication"
	HopWatch          ID = "watch"
	HopServers        ID = "servers"
)

// The hops of a Cluster with RemoteNetworks: from an apiserver to a Node, and from a machine to the apiserver.
const (
	HopNetworks     ID = "networks"
	HopEgress       ID = "egress"
	HopEgressRoute  ID = "egress-route"
	HopNetworkEdges ID = "network-edges"
	HopNodes        ID = "nodes"
	HopForward      ID = "forward"
)

// Hop is one step of the path. The zero value is no hop.
type Hop struct {
	ID    ID
	Title string // what is tested, for people
	look  func(ctx context.Context, v *visit) finding
	// limit is the timeout of one check. That of HopWatch is in addition to Checker.Watch.
	limit time.Duration
	// ofNetworks: the hop exists only for a Cluster with RemoteNetworks.
	ofNetworks bool
}

// Hops lists all hops, in order. A Cluster without RemoteNetworks has none of those about networks.
func Hops() []Hop {
	const objects, network, long = 5 * time.Second, 5 * time.Second, 15 * time.Second
	return []Hop{
		{ID: HopCluster, Title: "Cluster object", look: checkCluster, limit: objects},
		{ID: HopTunnel, Title: "Tunnel object", look: checkTunnel, limit: objects},
		{ID: HopKubeconfig, Title: "kubeconfig Secret", look: checkKubeconfig, limit: objects},
		{ID: HopName, Title: "name resolution", look: checkName, limit: network},
		{ID: HopPort, Title: "gateway port", look: checkPort, limit: network},
		{ID: HopRoute, Title: "route in the gateways' Envoys", look: checkRoute, limit: network},
		{ID: HopTunnels, Title: "tunnels on each gateway", look: checkTunnels, limit: network},
		{ID: HopEdge, Title: "edge enrolled", look: checkEdge, limit: objects},
		{ID: HopHandshake, Title: "handshake of the edge", look: checkHandshake, limit: long},
		{ID: HopAPIServer, Title: "edge to apiserver", look: checkAPIServer, limit: long},
		// Shorter than the 15 s after which an agent replaces a hanging Envoy: otherwise the reason is gone before revisit
		// reads it.
		{ID: HopAuthentication, Title: "authentication", look: checkAuthentication, limit: 8 * time.Second},
		{ID: HopWatch, Title: "a watch that stays open", look: checkWatch, limit: long},
		{ID: HopNetworks, Title: "RemoteNetwork objects", look: checkNetworks, limit: objects, ofNetworks: true},
		{ID: HopEgress, Title: "Envoy beside the apiserver", look: checkEgress, limit: network, ofNetworks: true},
		{ID: HopEgressRoute, Title: "routes to the networks", look: checkEgressRoute, limit: long, ofNetworks: true},
		{ID: HopNetworkEdges, Title: "edges of the networks", look: checkNetworkEdges, limit: long, ofNetworks: true},
		{ID: HopNodes, Title: "apiserver to Nodes", look: checkNodes, limit: long, ofNetworks: true},
		{ID: HopForward, Title: "machines to apiserver", look: checkForward, limit: long, ofNetworks: true},
		{ID: HopServers, Title: "Fairlead's own servers", look: checkServers, limit: network},
	}
}

// Result is the result of a hop. All texts are for people, one line each, and contain no secret.
type Result struct {
	ID      ID      `json:"id"`
	Title   string  `json:"title"`
	Status  Status  `json:"status"`
	Detail  string  `json:"detail,omitempty"` // the observation
	Cause   string  `json:"cause,omitempty"`  // the likely cause of a fault
	Cure    string  `json:"cure,omitempty"`   // how to repair it
	Seconds float64 `json:"seconds"`          // duration of the check
}

// Report is the result for one Cluster.
type Report struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	At        time.Time `json:"at"`
	Seconds   float64   `json:"seconds"` // of all hops
	// Status is OK, Warning or Broken. Hops that are only unknown or skipped leave it OK.
	Status Status `json:"status"`
	// First is the hop that decides the status: the first broken one, unless a later one is its reason; otherwise the
	// first with a warning. It is empty if there is no fault.
	First ID       `json:"first,omitempty"`
	Hops  []Result `json:"hops"`
}

// Deciding returns the result of the hop that decides; nil: there is no fault.
func (r *Report) Deciding() *Result {
	for i := range r.Hops {
		if r.Hops[i].ID == r.First {
			return &r.Hops[i]
		}
	}
	return nil
}

// Network resolves names and opens connections. Both must end with their context.
type Network interface {
	Lookup(ctx context.Context, host string) ([]netip.Addr, error)
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Servers queries the xds-servers for one workload cluster. *collect.Servers implements it.
type Servers interface {
	// Observe returns what they report of the tunnel with an id, and of the Envoy clusters with these names. The error
	// means that no server answered; if only some did not, that is in the Fleet.
	Observe(ctx context.Context, id string, names []string) (collect.Fleet, error)
	// ProbeAPIServers makes the edges of that tunnel probe their apiserver now, and returns the results of the connected
	// ones. The error means that no server answered.
	ProbeAPIServers(ctx context.Context, id string) ([]collect.EdgeProbe, error)
}

// Checker checks workload clusters. It is safe for concurrent use if its parts are. Objects is required. All other
// parts may be absent, and what they would observe is then unknown.
type Checker struct {
	// Objects reads everything but Secrets. Its scheme requires Clusters, Tunnels and core/v1, and for more findings
	// coordination/v1, certificates/v1, discovery/v1 and admissionregistration/v1.
	Objects client.Reader
	// Secrets reads Secrets; nil: they may not be read.
	Secrets client.Reader
	// Asks sends requests to the management cluster's apiserver that change nothing: access reviews and dry runs.
	Asks client.Client
	// Servers are the xds-servers; nil: they are not available.
	Servers Servers
	// Network is the network to use; nil: that of this machine.
	Network Network
	// Installation is the namespace of Fairlead; empty: fairlead-system.
	Installation string
	// Via is host:port to dial instead of what the kubeconfig names, such as a forwarded port; empty: none.
	Via string
	// Watch is how long a watch must stay open; zero: 3 s.
	Watch time.Duration
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// watchTime is how long a watch must stay open.
func (c *Checker) watchTime() time.Duration {
	if c.Watch > 0 {
		return c.Watch
	}
	return defaultWatch
}

// Check checks all hops of one Cluster. It never fails, because an observation that is not possible is a finding too.
// It takes at most the sum of the limits of the hops and Watch, or ends with ctx.
func (c *Checker) Check(ctx context.Context, key client.ObjectKey) Report {
	v := &visit{Checker: c, key: key}
	v.defaults()
	began := v.now()
	report := Report{Namespace: key.Namespace, Name: key.Name, At: began.UTC()}
	for _, hop := range Hops() {
		if hop.ofNetworks && !v.hasNetworks() {
			continue
		}
		report.Hops = append(report.Hops, v.visit(ctx, hop))
	}
	report.decide()
	if report.First == HopAPIServer || report.First == HopAuthentication || report.First == HopWatch {
		v.revisit(ctx, &report)
	}
	report.Seconds = v.now().Sub(began).Seconds()
	return report
}

// revisit reads again what gateways and edges report of their own processes, before the apiserver is blamed: an agent
// needs 5 s to detect that its Envoy hangs, and checking the later hops took longer.
func (v *visit) revisit(ctx context.Context, report *Report) {
	v.observed, v.notObserved, v.probes = nil, "", nil
	for _, hop := range Hops() {
		if hop.ID != HopRoute && hop.ID != HopHandshake {
			continue
		}
		again := v.visit(ctx, hop)
		i := slices.IndexFunc(report.Hops, func(r Result) bool { return r.ID == hop.ID })
		if again.Status == Broken || again.Status == Warning {
			report.Hops[i] = again
		}
	}
	report.decide()
}
