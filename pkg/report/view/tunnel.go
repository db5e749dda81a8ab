package view

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// tunnel returns the state of a tunnel.
func (f *fleet) tunnel(id string) Live {
	live := Live{Known: f.known, Gateways: slices.Clone(f.names), Incomplete: slices.Clone(f.incomplete)}
	last := f.downWith(id)
	for node := range f.nodes[id] {
		e := Edge{
			Node: node, Gateways: map[string]int{}, Without: map[string]int{}, Connections: map[string]int{},
			Last: map[string]int{},
		}
		for name, v := range f.merged {
			c := v.source.counts[id][node]
			if c.n > 0 {
				e.Gateways[name] = c.n
			}
			if c.without > 0 {
				e.Without[name] = c.without
			}
			if c.connections > 0 {
				e.Connections[name] = c.connections
			}
		}
		for name, g := range last {
			if n := g.counts[id][node].n; n > 0 {
				e.Last[name] = n
			}
		}
		if !f.agent(pair{node, id}, &e) && len(e.Gateways)+len(e.Connections)+len(e.Last) == 0 {
			continue
		}
		live.Edges = append(live.Edges, e)
	}
	slices.SortFunc(live.Edges, func(a, b Edge) int { return cmp.Compare(a.Node, b.Node) })
	return live
}

// downWith returns the last records of gateways that are down and had tunnels with an id.
func (f *fleet) downWith(id string) map[string]*gatewayRecord {
	last := map[string]*gatewayRecord{}
	for _, s := range f.servers {
		for name, g := range s.gateways {
			if _, merged := f.merged[name]; merged || g.since.IsZero() {
				continue
			}
			if before := last[name]; before == nil || g.since.After(before.since) {
				last[name] = g
			}
		}
	}
	maps.DeleteFunc(last, func(_ string, g *gatewayRecord) bool { return g.counts[id] == nil })
	return last
}

// agent adds the state of an edge's agent: the server to which it connected last counts. It returns false if no server
// has one.
func (f *fleet) agent(p pair, to *Edge) bool {
	var best *edgeRecord
	var rank int
	var at time.Time
	for _, s := range f.servers {
		e := s.edges[p]
		if e == nil {
			continue
		}
		// A connected agent ranks first, then one that was connected to a server that is away, then the newest.
		r := 0
		switch {
		case e.connected && s.streaming && e.generation == s.generation:
			r = 2
		case e.connected:
			r = 1
		}
		if best == nil || r > rank || r == rank && e.since.After(at) {
			best, rank, at = e, r, e.since
		}
	}
	if best == nil {
		return false
	}
	to.Connected, to.Since, to.Report = best.connected, best.since, best.report
	return true
}

// elsewhere returns whether another server has an edge too.
func (f *fleet) elsewhere(s *server, p pair) bool {
	for _, other := range f.servers {
		if other != s && other.edges[p] != nil {
			return true
		}
	}
	return false
}

// reported returns whether any server has a report or a count of an edge.
func (f *fleet) reported(p pair) bool {
	for _, s := range f.servers {
		if s.edges[p] != nil {
			return true
		}
		for _, g := range s.gateways {
			if g.counts[p.id][p.node].count != (count{}) {
				return true
			}
		}
	}
	return false
}
