package gateway

import (
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/assignment"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/nearest"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// forwardAfter is how long a tunnel id that is assigned to this gateway must have had no tunnel here before its
	// clients are forwarded. An edge dials again within 0.75 s, and each change costs Envoy a millisecond or two.
	forwardAfter = time.Second
	// forwardChanges bounds how many Envoy clusters of tunnel ids that are assigned to this gateway begin to forward in a
	// second, while the tunnels of a whole fleet may be about to open here: each change may be reversed in the same
	// second. They take a tenth of a worker then.
	forwardChanges = 100
	// pruneFrom is the number of routes from which those of ended tunnel ids are discarded.
	pruneFrom = 1024
	// forwardForm begins the form of an Envoy cluster that forwards, followed by groups of names of gateways, the nearest
	// first.
	forwardForm                    = "to:"
	forwardGroups, forwardGateways = ";", "," // between groups, and in a group
)

// fleet is what the Envoy clusters of other gateways say about the assignment of tunnel ids.
type fleet struct {
	gateways  []model.Gateway // in the order of their names
	perTunnel int             // 0: all, and gateways do not forward
}

func (f fleet) equal(other fleet) bool {
	return f.perTunnel == other.perTunnel && slices.Equal(f.gateways, other.gateways)
}

// route is where clients of a tunnel id go if this gateway has no tunnel of it.
type route struct {
	assigned bool   // to this gateway
	form     string // empty: there is no other gateway
}

// forwarding decides where clients of tunnel ids are forwarded. The decisions depend on the configuration alone, so no
// client waits for an answer of another program. The zero value forwards nothing. It is not safe for concurrent use.
type forwarding struct {
	me     string // the name of this gateway; empty: it forwards nothing
	domain model.TunnelDomain
	fleet  fleet
	before []model.Gateway  // of the fleet, before others joined or left
	ranks  map[string]int   // of other gateways by name, the nearest lowest; nil: all are equal
	routes map[string]route // by tunnel id with the domain, for this fleet
}

// set replaces the fleet.
func (f *forwarding) set(now fleet) {
	slices.SortFunc(now.gateways, func(a, b model.Gateway) int { return strings.Compare(a.Name, b.Name) })
	if f.routes != nil && f.fleet.equal(now) {
		return
	}
	f.fleet, f.routes = now, map[string]route{}
	f.before = slices.DeleteFunc(slices.Clone(now.gateways), func(g model.Gateway) bool { return g.Joining })
	for i := range f.before {
		f.before[i].Leaving = false
	}
}

// prefer replaces the ranks of the other gateways.
func (f *forwarding) prefer(ranks map[string]int) {
	if !maps.Equal(f.ranks, ranks) {
		f.ranks, f.routes = ranks, map[string]route{}
	}
}

// others returns the gateways to which clients can be forwarded.
func (f *forwarding) others() (all []model.Gateway) {
	for _, g := range f.fleet.gateways {
		if g.Name != f.me {
			all = append(all, g)
		}
	}
	return all
}

// zone returns the zone of this gateway; empty: it is not known.
func (f *forwarding) zone() string {
	for _, g := range f.fleet.gateways {
		if g.Name == f.me {
			return g.Zone
		}
	}
	return ""
}

// on reports whether this gateway forwards clients: tunnels have a number of gateways, and there is another gateway.
func (f *forwarding) on() bool {
	return f.me != "" && f.fleet.perTunnel > 0 &&
		slices.ContainsFunc(f.fleet.gateways, func(g model.Gateway) bool { return g.Name != f.me })
}

// route returns the route of a tunnel id with its domain. If forwarding is off, every id is assigned to this gateway.
func (f *forwarding) route(tunnelID string) route {
	id, ok := f.domain.ParseTunnelID(tunnelID)
	if !ok || !f.on() {
		return route{assigned: true}
	}
	r, ok := f.routes[tunnelID]
	if ok {
		return r
	}
	var to, leaving []string
	stays := false
	for _, g := range assignment.Of(id, f.fleet.perTunnel, f.fleet.gateways) {
		switch {
		case g.Name == f.me:
			r.assigned = true
		case g.Leaving:
			leaving = append(leaving, g.Name)
		default:
			to, stays = append(to, g.Name), stays || f.had(id, g)
		}
	}
	// A gateway that ends gets no clients if another one has the tunnels too: they would be disconnected with it.
	if !stays {
		to = append(to, leaving...)
		slices.Sort(to)
	}
	if len(to) > 0 {
		var groups []string
		for _, group := range nearest.Groups(to, func(name string) int { return f.ranks[name] }) {
			groups = append(groups, strings.Join(group, forwardGateways))
		}
		r.form = forwardForm + strings.Join(groups, forwardGroups)
	}
	f.routes[tunnelID] = r
	return r
}

// had reports whether a gateway was assigned to an id before others joined or left: then it has the tunnels already.
func (f *forwarding) had(id string, g model.Gateway) bool {
	return slices.Contains(assignment.Of(id, f.fleet.perTunnel, f.before), g)
}

// form returns the form of the Envoy clusters of a tunnel id without a tunnel here. sure is false if there may be one
// that is not in the table: two gateways that forward to each other serve no client.
func (f *forwarding) form(tunnelID string, absent time.Duration, sure bool) string {
	r := f.route(tunnelID)
	if r.assigned && (!sure || absent < forwardAfter) {
		return ""
	}
	return r.form
}

// prune discards the routes if most of them are of tunnel ids that have ended. ids is how many there are.
func (f *forwarding) prune(ids int) {
	if len(f.routes) > 2*ids+pruneFrom {
		f.routes = map[string]route{}
	}
}

// groupsOf returns the groups of gateways in a form of forwarding; ok is false for any other form.
func groupsOf(form string) (groups [][]string, ok bool) {
	to, ok := strings.CutPrefix(form, forwardForm)
	if !ok {
		return nil, false
	}
	for group := range strings.SplitSeq(to, forwardGroups) {
		groups = append(groups, strings.Split(group, forwardGateways))
	}
	return groups, true
}

// reordered reports whether two forms forward to the same gateways and only their order differs.
func reordered(was, is string) bool {
	if was == is { // nearly always, for each Envoy cluster once in a second
		return false
	}
	before, forwarded := groupsOf(was)
	after, forwards := groupsOf(is)
	return forwarded && forwards &&
		slices.Equal(slices.Sorted(slices.Values(slices.Concat(before...))),
			slices.Sorted(slices.Values(slices.Concat(after...))))
}

// applyForward returns the Envoy cluster of a tunnel in a form of forwarding.
func applyForward(form string, resource *anypb.Any) (*anypb.Any, bool) {
	to, ok := groupsOf(form)
	if !ok {
		return nil, false
	}
	tunnel, ok := envoy.TunnelOf(resource)
	if !ok {
		return nil, false
	}
	return tunnel.Forward(to), true
}
