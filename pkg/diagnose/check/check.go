// Package check finds out where the way from a client to a workload cluster is broken. A Cluster's name goes in; out comes a
// report: each hop of the way in the order in which a request meets it, with what was seen, and for those that are not well the likely
// cause and the cure. It only reads; what it can't see from where it runs it calls unknown, and says where it can be seen.
//
// The words of a cure are for people, and are followed by tests: test/sight injects each fault that is known, and does what is said.
package check

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Status is what a hop came to.
type Status string

const (
	// OK says that nothing is wrong.
	OK Status = "ok"
	// Warning says that something is wrong, or soon will be, but requests go through.
	Warning Status = "warning"
	// Broken says that requests end here, or nobody keeps the way up.
	Broken Status = "broken"
	// Unknown says that the hop can't be tested from here. The cure says from where.
	Unknown Status = "unknown"
	// Skipped says that an earlier hop, or the kind of this way, leaves nothing to be tested.
	Skipped Status = "skipped"
)

// ID is the name of a hop, which stays the same.
type ID string

// The hops, in the order in which they are looked at.
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

// Hop is one step of the way. Its zero value is none.
type Hop struct {
	ID    ID
	Title string // what is tested, for people
	look  func(ctx context.Context, v *visit) finding
	// limit bounds one look.
	limit time.Duration
}

// Hops are all hops, in order.
func Hops() []Hop {
	const objects, network, long = 5 * time.Second, 5 * time.Second, 15 * time.Second
	return []Hop{
		{HopCluster, "Cluster object", lookCluster, objects},
		{HopTunnel, "Tunnel object", lookTunnel, objects},
		{HopKubeconfig, "kubeconfig Secret", lookKubeconfig, objects},
		{HopName, "name resolution", lookName, network},
		{HopPort, "gateway port", lookPort, network},
		{HopRoute, "route in the gateways' Envoys", lookRoute, network},
		{HopTunnels, "tunnels on each gateway", lookTunnels, network},
		{HopEdge, "edge enrolled", lookEdge, objects},
		{HopHandshake, "handshake of the edge", lookHandshake, long},
		{HopAPIServer, "edge to apiserver", lookAPIServer, long},
		// Shorter than the 15 s after which an agent replaces an Envoy that hangs: else the reason is gone before revisit looks.
		{HopAuthentication, "authentication", lookAuthentication, 8 * time.Second},
		{HopWatch, "a watch that stays open", lookWatch, long},
		{HopServers, "Fairlead's own servers", lookServers, network},
	}
}

// Result is what was found at a hop. All texts are for people, one line each, and hold no secret.
type Result struct {
	ID      ID      `json:"id"`
	Title   string  `json:"title"`
	Status  Status  `json:"status"`
	Detail  string  `json:"detail,omitempty"` // what was seen
	Cause   string  `json:"cause,omitempty"`  // the likely one, of what is not well
	Cure    string  `json:"cure,omitempty"`   // what to do about it
	Seconds float64 `json:"seconds"`          // that the look took
}

// Report is all that was found about one Cluster.
type Report struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	At        time.Time `json:"at"`
	Seconds   float64   `json:"seconds"` // that all looks took
	// Status is OK, Warning or Broken. Hops that are unknown or skipped alone leave it OK.
	Status Status `json:"status"`
	// First is the hop that decides the status: the first that is broken, unless a later one is the reason for it; else the first
	// with a warning. Empty where all is well.
	First ID       `json:"first,omitempty"`
	Hops  []Result `json:"hops"`
}

// Verdict is the result of the hop that decides; nil where all is well.
func (r *Report) Verdict() *Result {
	for i := range r.Hops {
		if r.Hops[i].ID == r.First {
			return &r.Hops[i]
		}
	}
	return nil
}

// Network is how names are looked up and connections made. Both must end with their context.
type Network interface {
	Lookup(ctx context.Context, host string) ([]netip.Addr, error)
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Checker looks at workload clusters. It is safe for concurrent use where its parts are. Objects is needed; all others may be absent, and what
// they could tell is unknown then.
type Checker struct {
	// Objects reads everything but Secrets. Its scheme needs Clusters, Tunnels, core/v1, and for more to be said
	// coordination/v1, certificates/v1, discovery/v1 and admissionregistration/v1.
	Objects client.Reader
	// Secrets reads Secrets; nil where they may not be read.
	Secrets client.Reader
	// Asks is for questions to the management cluster's apiserver that change nothing: access reviews and dry runs.
	Asks client.Client
	// Servers are the xds-servers; nil where they can't be asked.
	Servers Servers
	// Network is that of this machine where it is nil.
	Network Network
	// Installation is the namespace in which Fairlead is installed; fairlead-system by default.
	Installation string
	// Via is host:port to dial instead of what the kubeconfig names, such as a forwarded port; empty for none.
	Via string
	// Watch is how long a watch must stay open; 3 s by default.
	Watch time.Duration
	// Now is the clock; nil stands for time.Now.
	Now func() time.Time
}

// Check looks at all hops of one Cluster. It never fails: what can't be seen is a finding too. It takes as long as the limits of the hops
// at most, or ends with ctx.
func (c *Checker) Check(ctx context.Context, key client.ObjectKey) Report {
	v := &visit{Checker: c, key: key}
	v.defaults()
	began := v.now()
	report := Report{Namespace: key.Namespace, Name: key.Name, At: began.UTC()}
	for _, hop := range Hops() {
		report.Hops = append(report.Hops, v.visit(ctx, hop))
	}
	report.decide()
	if report.First == HopAPIServer || report.First == HopAuthentication || report.First == HopWatch {
		v.revisit(ctx, &report)
	}
	report.Seconds = v.now().Sub(began).Seconds()
	return report
}

// revisit looks again at what gateways and edges say of their own processes, before the apiserver is blamed: an agent needs
// 5 s to find that its Envoy hangs, and looking at the hops behind it took longer than that.
func (v *visit) revisit(ctx context.Context, report *Report) {
	v.observed, v.blind, v.looks = nil, "", nil
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
