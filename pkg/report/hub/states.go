package hub

import (
	"iter"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// states are copies of the state of items, by kind. A watcher that begins has several 100,000 of them, so each message
// is made when it is sent, without the lock. What the pointers in them point to never changes.
type states struct {
	counts   []countState
	edges    []edgeState
	gateways []gatewayState
	boots    []bootState
	profiles *reportv1.ProfileState // nil: they are not among them
}

type (
	countState struct {
		gateway string
		pair
		count
	}
	edgeState struct {
		pair
		edge
	}
	gatewayState struct {
		name string
		presence
		ready, incomplete bool
		hang              string
	}
	bootState struct {
		pair     // with the machine as its node
		received time.Time
		report   *reportv1.BootReport
	}
)

// everything returns the states of all items. The caller holds the lock.
func (h *Hub) everything() states {
	counts := 0
	for _, g := range h.gateways {
		counts += len(g.counts)
	}
	all := states{counts: make([]countState, 0, counts), edges: make([]edgeState, 0, len(h.edges)), profiles: h.profiles}
	for name, g := range h.gateways {
		all.gateways = append(all.gateways, g.state(name))
		for p, c := range g.counts {
			all.counts = append(all.counts, countState{name, p, c})
		}
	}
	for p, e := range h.edges {
		all.edges = append(all.edges, edgeState{p, *e})
	}
	h.boots.Each(func(id string, b *report.Boot) { all.boots = append(all.boots, bootOf(id, b)) })
	return all
}

// add adds the state of one item, unless the hub has removed it. The caller holds the lock.
func (h *Hub) add(to *states, key changeKey) {
	switch key.kind {
	case kindCount:
		c := countState{gateway: key.gateway, pair: key.pair}
		if g := h.gateways[key.gateway]; g != nil {
			c.count = g.counts[key.pair]
		}
		to.counts = append(to.counts, c)
	case kindEdge:
		if e := h.edges[key.pair]; e != nil {
			to.edges = append(to.edges, edgeState{key.pair, *e})
		}
	case kindGateway:
		if g := h.gateways[key.gateway]; g != nil {
			to.gateways = append(to.gateways, g.state(key.gateway))
		}
	case kindBoot:
		if b := h.boots.Get(key.pair.id, key.pair.node); b != nil {
			to.boots = append(to.boots, bootOf(key.pair.id, b))
		}
	case kindProfiles:
		to.profiles = h.profiles
	}
}

func (g *gateway) state(name string) gatewayState {
	return gatewayState{name: name, presence: g.presence, ready: g.ready, incomplete: g.incomplete != "", hang: g.hang}
}

func bootOf(id string, b *report.Boot) bootState {
	return bootState{pair{b.Host, id}, b.Received, b.Report}
}

// messages returns the messages of states, one at a time, in the order of sending. Edges come after counts, and
// gateways after edges.
func (s states) messages() iter.Seq[*reportv1.Change] {
	return func(yield func(*reportv1.Change) bool) {
		_ = each(s.counts, countState.message, yield) && each(s.edges, edgeState.message, yield) &&
			each(s.gateways, gatewayState.message, yield) && each(s.boots, bootState.message, yield) &&
			(s.profiles == nil || yield(&reportv1.Change{What: &reportv1.Change_Profiles{Profiles: s.profiles}}))
	}
}

// each yields the message of each state, until yield returns false.
func each[S any](all []S, message func(S) *reportv1.Change, yield func(*reportv1.Change) bool) bool {
	for _, s := range all {
		if !yield(message(s)) {
			return false
		}
	}
	return true
}

func (c countState) message() *reportv1.Change {
	return &reportv1.Change{What: &reportv1.Change_Tunnels{Tunnels: &reportv1.TunnelCount{
		Gateway: c.gateway, Node: c.node, TunnelId: c.id,
		Count: int32(c.n), WorkersWithout: int32(c.without), Connections: int32(c.connections),
	}}}
}

func (e edgeState) message() *reportv1.Change {
	return &reportv1.Change{What: &reportv1.Change_Edge{Edge: &reportv1.EdgeState{
		Node: e.node, TunnelId: e.id, Connected: e.connected, Since: timestamppb.New(e.since), Report: e.report,
	}}}
}

func (g gatewayState) message() *reportv1.Change {
	return &reportv1.Change{What: &reportv1.Change_Gateway{Gateway: &reportv1.GatewayState{
		Name: g.name, Connected: g.connected, Since: timestamppb.New(g.since), Incomplete: g.incomplete,
		Ready: g.ready, Hang: g.hang,
	}}}
}

func (b bootState) message() *reportv1.Change {
	return &reportv1.Change{What: &reportv1.Change_Boot{Boot: &reportv1.MachineBoot{
		TunnelId: b.id, Host: b.node, Received: timestamppb.New(b.received), Report: b.report,
	}}}
}
