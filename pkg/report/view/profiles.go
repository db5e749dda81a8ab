package view

import reportv1 "github.com/fairlead/fairlead/pkg/report/v1"

// EdgeRef is an edge of a tunnel.
type EdgeRef struct {
	Node string // node name
	ID   string // Tunnel.spec.id
}

// GatewayNow is a gateway as the xds-servers know it.
type GatewayNow struct {
	Connected, Ready bool
	Hang             string // the parts of its Envoy that do not answer
}

// FleetNow is what all xds-servers together know, of all tunnels.
type FleetNow struct {
	// Known is false while some xds-server that there is has not told all: then nothing may be concluded from what is
	// absent.
	Known    bool
	Gateways map[string]GatewayNow // that report, or did a moment ago
	Edges    map[EdgeRef]Edge
	// Profiles are what the xds-servers that there are announce of profiles; nil: one announces nothing. They are
	// shared and must not be changed.
	Profiles []*reportv1.ProfileState
}

// Fleet returns what is known of all tunnels, which takes time in proportion to their number. Without nodes it returns
// only Known and Profiles.
func (v *View) Fleet(nodes bool) FleetNow {
	v.mu.Lock()
	defer v.mu.Unlock()
	f := v.fleet
	now := FleetNow{Known: f.known, Gateways: map[string]GatewayNow{}, Edges: map[EdgeRef]Edge{}}
	if nodes {
		f.addNodes(&now)
		for ref, e := range now.Edges {
			e.Since = v.outward(e.Since)
			now.Edges[ref] = e
		}
	}
	for _, s := range f.servers {
		if !s.listed && !s.streaming {
			continue // it has gone
		}
		if !s.synced {
			now.Known = false
		}
		now.Profiles = append(now.Profiles, s.profiles)
	}
	return now
}

func (f *fleet) addNodes(now *FleetNow) {
	for name, g := range f.merged {
		now.Gateways[name] = GatewayNow{Connected: g.state == reporting, Ready: g.source.ready, Hang: g.source.hang}
	}
	for id, nodes := range f.nodes {
		for node := range nodes {
			e := Edge{Node: node, Gateways: map[string]int{}}
			for name, g := range f.merged {
				if c := g.source.counts[id][node]; c.n > 0 {
					e.Gateways[name] = c.n
				}
			}
			if f.agent(pair{node, id}, &e) || len(e.Gateways) > 0 {
				now.Edges[EdgeRef{node, id}] = e
			}
		}
	}
}
