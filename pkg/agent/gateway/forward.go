package gateway

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/assignment"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// forwardAfter is how long a tunnel id that is assigned to this gateway must have had no tunnel here before its
	// clients are forwarded. An edge dials again within 0.75 s, and each change costs Envoy a millisecond or two.
	forwardAfter = time.Second
	// forwardForm begins the form of an Envoy cluster that forwards, followed by the names of the gateways.
	forwardForm = "to:"
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
	routes map[string]route // by tunnel id with the domain, for this fleet
}

// set replaces the fleet.
func (f *forwarding) set(now fleet) {
	slices.SortFunc(now.gateways, func(a, b model.Gateway) int { return strings.Compare(a.Name, b.Name) })
	if f.routes != nil && f.fleet.equal(now) {
		return
	}
	f.fleet, f.routes = now, map[string]route{}
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
	var to []string
	for _, g := range assignment.Of(id, f.fleet.perTunnel, f.fleet.gateways) {
		if g.Name == f.me {
			r.assigned = true
		} else {
			to = append(to, g.Name)
		}
	}
	if len(to) > 0 {
		r.form = forwardForm + strings.Join(to, ",")
	}
	f.routes[tunnelID] = r
	return r
}

// form returns the form of the Envoy clusters of a tunnel id without a tunnel here. settled is false while tunnels of a
// whole fleet may be about to open here.
func (f *forwarding) form(tunnelID string, absent time.Duration, settled bool) string {
	r := f.route(tunnelID)
	if r.assigned && (!settled || absent < forwardAfter) {
		return ""
	}
	return r.form
}

// applyForward returns the Envoy cluster of a tunnel in a form of forwarding.
func applyForward(form string, resource *anypb.Any) (*anypb.Any, bool) {
	to, ok := strings.CutPrefix(form, forwardForm)
	if !ok {
		return nil, false
	}
	tunnel, ok := envoy.TunnelOf(resource)
	if !ok {
		return nil, false
	}
	return tunnel.Forward(strings.Split(to, ",")), true
}
