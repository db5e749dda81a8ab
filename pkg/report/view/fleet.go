package view

import (
	"slices"
	"time"

	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// fleet is the state that the servers have sent, and what is derived from it: see the comment of package report. All
// times are of one clock. It is not safe for concurrent use.
type fleet struct {
	times   report.Times
	servers map[string]*server
	synced  time.Time // when a server was synced for the first time; zero: none was
	thawed  time.Time // when a server was synced again after a time in which none was
	started bool      // enough servers were asked for a conclusion

	merged map[string]gatewayStatus   // by gateway
	nodes  map[string]map[string]bool // by id of a tunnel: all edges with a report or a count
	known  bool
	names  []string // of gateways that report

	incomplete []string // names of gateways that may have tunnels which they do not report

	boots     *report.Boots   // the latest, of any server
	bootedIDs map[string]bool // whose boots have changed since takeBooted

	forgot time.Time       // when forget ran last
	ids    map[string]bool // that have changed since take
}

// gatewayStatus is what the servers together report of a gateway.
type gatewayStatus struct {
	state  int
	source *gatewayRecord // nil: it is down, and its counts are ignored
}

// The states of a gateway.
const (
	down = iota
	silent
	reporting
)

func newFleet(t report.Times) *fleet {
	return &fleet{
		times: t, servers: map[string]*server{}, merged: map[string]gatewayStatus{},
		nodes: map[string]map[string]bool{}, ids: map[string]bool{}, boots: report.NewBoots(report.DefaultBootBounds),
	}
}

// take returns the ids of the tunnels that have changed since the last call.
func (f *fleet) take() map[string]bool {
	if len(f.ids) == 0 {
		return nil // a copy, because the map is still written
	}
	ids := f.ids
	f.ids = map[string]bool{}
	return ids
}

// frozen returns whether no server is synced: time stands still.
func (f *fleet) frozen() bool {
	for _, s := range f.servers {
		if s.synced {
			return false
		}
	}
	return true
}

// list sets which servers exist.
func (f *fleet) list(addresses []string, now time.Time) {
	for address, s := range f.servers {
		s.listed = slices.Contains(addresses, address)
	}
	for _, address := range addresses {
		if f.servers[address] == nil {
			f.servers[address] = newServer()
			f.servers[address].added = now
		}
		f.servers[address].listed = true
	}
	f.tick(now)
}

// streamEnded records that the stream of a server has ended, or could not be opened.
func (f *fleet) streamEnded(address string, now time.Time) {
	s := f.servers[address]
	if s == nil || !s.streaming {
		return
	}
	s.streaming, s.synced = false, false
	if s.lostAt.IsZero() { // otherwise it was back, and not synced
		s.lostAt = now
	}
	if s.behind.IsZero() {
		s.behind = now
	}
	f.tick(now)
}

// apply applies a change that a server has sent.
func (f *fleet) apply(address string, change *reportv1.Change, now time.Time) {
	s := f.servers[address]
	if s == nil {
		return // it is no longer listed
	}
	switch what := change.GetWhat().(type) {
	case *reportv1.Change_Began:
		s.begin(what.Began.AsTime(), now)
	case *reportv1.Change_Tunnels:
		f.count(s, what.Tunnels)
	case *reportv1.Change_Gateway:
		f.gateway(s, what.Gateway, now)
	case *reportv1.Change_Edge:
		f.edge(s, what.Edge)
	case *reportv1.Change_Boot:
		f.boot(s, what.Boot, now)
	case *reportv1.Change_Profiles:
		s.profiles = what.Profiles
	case *reportv1.Change_Synced:
		f.sync(s, now)
	}
}

func (f *fleet) count(s *server, c *reportv1.TunnelCount) {
	g := s.gatewayRecord(c.GetGateway())
	now := count{int(c.GetCount()), int(c.GetWorkersWithout()), int(c.GetConnections())}
	if g.set(c.GetTunnelId(), c.GetNode(), now, s.generation) &&
		f.merged[c.GetGateway()].source == g {
		f.ids[c.GetTunnelId()] = true
	}
	f.addNode(c.GetTunnelId(), c.GetNode())
}

func (f *fleet) gateway(s *server, state *reportv1.GatewayState, now time.Time) {
	g := s.gatewayRecord(state.GetName())
	g.connected, g.since, g.generation = state.GetConnected(), s.local(state.GetSince()), s.generation
	g.incomplete, g.ready, g.hang = state.GetIncomplete(), state.GetReady(), state.GetHang()
	for _, id := range g.drop(s.generation) {
		if f.merged[state.GetName()].source == g {
			f.ids[id] = true
		}
	}
	f.refresh(state.GetName(), now)
	f.summarize(now)
}

func (f *fleet) edge(s *server, state *reportv1.EdgeState) {
	s.edges[pair{state.GetNode(), state.GetTunnelId()}] = &edgeRecord{
		connected: state.GetConnected(), since: s.local(state.GetSince()), report: state.GetReport(),
		generation: s.generation,
	}
	f.addNode(state.GetTunnelId(), state.GetNode())
	f.ids[state.GetTunnelId()] = true
}

func (f *fleet) addNode(id, node string) {
	if f.nodes[id] == nil {
		f.nodes[id] = map[string]bool{}
	}
	f.nodes[id][node] = true
}

// sync records that a server is synced: state from an earlier stream that was not sent again is removed.
func (f *fleet) sync(s *server, now time.Time) {
	for _, id := range s.discardStale() {
		f.ids[id] = true
	}
	if f.frozen() {
		f.thawed = now
	}
	s.synced, s.lostAt, s.behind = true, time.Time{}, time.Time{}
	if f.synced.IsZero() {
		f.synced = now
	}
	f.tick(now)
}

// tick updates everything that depends on the time.
func (f *fleet) tick(now time.Time) {
	if f.frozen() {
		f.summarize(now)
		return
	}
	for _, s := range f.servers {
		if s.held() && !f.holds(s, now) {
			for _, id := range s.discardStale() {
				f.ids[id] = true
			}
		}
	}
	f.forget(now)
	names := map[string]bool{}
	for _, s := range f.servers {
		for name := range s.gateways {
			names[name] = true
		}
	}
	for name := range f.merged {
		names[name] = true // though no server has it any more
	}
	for name := range names {
		f.refresh(name, now)
	}
	f.summarize(now)
}

// holds returns whether the state of a server that is away still counts. The time in which no server was synced is not
// part of its absence.
func (f *fleet) holds(s *server, now time.Time) bool {
	from := s.lostAt
	if f.thawed.After(from) {
		from = f.thawed
	}
	away := now.Sub(from)
	if away > f.times.Hold {
		return false
	}
	for _, other := range f.servers {
		if other.listed && !other.synced {
			return true
		}
	}
	return away < f.times.Settle
}

// refresh decides the status of a gateway again.
func (f *fleet) refresh(name string, now time.Time) {
	before, after := f.merged[name], f.decide(name, now)
	if before == after {
		return
	}
	for _, id := range before.source.differs(after.source) {
		f.ids[id] = true
	}
	if after.state == down {
		delete(f.merged, name)
		return
	}
	f.merged[name] = after
}

// decide returns the status of a gateway: the server to which it connected last counts.
func (f *fleet) decide(name string, now time.Time) gatewayStatus {
	var live, last *gatewayRecord
	var seen time.Time // when last had it
	held := false      // last is of a server that is away
	for _, s := range f.servers {
		g := s.gateways[name]
		if g == nil || g.since.IsZero() {
			continue
		}
		current := s.streaming && g.generation == s.generation
		at := g.since
		if g.connected && !current {
			at = s.lostAt
		}
		switch {
		case g.connected && current:
			if live == nil || g.since.After(live.since) {
				live = g
			}
		case last == nil || at.After(seen):
			last, seen, held = g, at, g.connected
		}
	}
	switch {
	case live != nil:
		return gatewayStatus{reporting, live}
	case last != nil && (held || now.Sub(seen) < f.times.Silent):
		return gatewayStatus{silent, last}
	}
	return gatewayStatus{}
}
