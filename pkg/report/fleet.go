package report

import (
	"slices"
	"time"

	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// times are the times by which a fleet decides: see the constants.
type times struct{ settle, silent, hold, keep time.Duration }

var defaultTimes = times{settle: settleTime, silent: silentTime, hold: holdTime, keep: keepTime}

// fleet is what the servers have said, and what follows from it: see the package comment. All times are of one clock. It is
// not safe for concurrent use.
type fleet struct {
	times
	servers map[string]*server
	synced  time.Time // when a server was synced for the first time; zero: none was
	started bool      // enough servers were asked for a conclusion

	merged map[string]verdict         // by gateway
	nodes  map[string]map[string]bool // by id of a tunnel: the edges that were ever heard of
	known  bool
	names  []string // of gateways that report

	incomplete []string // names of gateways that may have tunnels which they do not report

	boots     *boots          // the latest, of whichever server
	bootedIDs map[string]bool // to be told

	forgot time.Time       // when those that are away for long were forgotten last
	ids    map[string]bool // to be told
}

// verdict is what the servers together say of a gateway.
type verdict struct {
	state  int
	source *gatewayWord // nil: down, and its counts don't count
}

// The states of a gateway.
const (
	down = iota
	silent
	reporting
)

func newFleet(t times) *fleet {
	return &fleet{times: t, servers: map[string]*server{}, merged: map[string]verdict{}, nodes: map[string]map[string]bool{}, ids: map[string]bool{}, boots: newBoots(defaultBootBounds)}
}

// take returns the ids of the tunnels of which something else is known than at the last call.
func (f *fleet) take() map[string]bool {
	if len(f.ids) == 0 {
		return nil // not the map itself, which goes on being written to
	}
	ids := f.ids
	f.ids = map[string]bool{}
	return ids
}

// frozen says that nobody is there who knows all: time stands still.
func (f *fleet) frozen() bool {
	for _, s := range f.servers {
		if s.synced {
			return false
		}
	}
	return true
}

// list says which servers there are.
func (f *fleet) list(addresses []string, now time.Time) {
	for address, s := range f.servers {
		s.listed = slices.Contains(addresses, address)
	}
	for _, address := range addresses {
		if f.servers[address] == nil {
			f.servers[address] = newServer()
		}
		f.servers[address].listed = true
	}
	f.tick(now)
}

// lose says that the stream of a server has ended, or could not be opened.
func (f *fleet) lose(address string, now time.Time) {
	s := f.servers[address]
	if s == nil || !s.streaming {
		return
	}
	s.streaming, s.synced = false, false
	if s.lostAt.IsZero() { // else it had been back, but did not tell all
		s.lostAt = now
	}
	f.tick(now)
}

// apply takes what a server says.
func (f *fleet) apply(address string, change *reportv1.Change, now time.Time) {
	s := f.servers[address]
	if s == nil {
		return // it is not listed any more
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
	g := s.gatewayWord(c.GetGateway())
	if g.set(c.GetTunnelId(), c.GetNode(), count{int(c.GetCount()), int(c.GetWorkersWithout())}, s.generation) && f.merged[c.GetGateway()].source == g {
		f.ids[c.GetTunnelId()] = true
	}
	f.hear(c.GetTunnelId(), c.GetNode())
}

func (f *fleet) gateway(s *server, state *reportv1.GatewayState, now time.Time) {
	g := s.gatewayWord(state.GetName())
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
	s.edges[pair{state.GetNode(), state.GetTunnelId()}] = &edgeWord{
		connected: state.GetConnected(), since: s.local(state.GetSince()), report: state.GetReport(), generation: s.generation,
	}
	f.hear(state.GetTunnelId(), state.GetNode())
	f.ids[state.GetTunnelId()] = true
}

func (f *fleet) hear(id, node string) {
	if f.nodes[id] == nil {
		f.nodes[id] = map[string]bool{}
	}
	f.nodes[id][node] = true
}

// sync says that a server has told all it knows: what it told before and not again is so no more.
func (f *fleet) sync(s *server, now time.Time) {
	for _, id := range s.settle() {
		f.ids[id] = true
	}
	s.synced, s.lostAt = true, time.Time{}
	if f.synced.IsZero() {
		f.synced = now
	}
	f.tick(now)
}

// tick brings up to date what depends on the time.
func (f *fleet) tick(now time.Time) {
	if f.frozen() {
		f.summarize(now)
		return
	}
	for _, s := range f.servers {
		if s.held() && !f.holds(s, now) {
			for _, id := range s.settle() {
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
		names[name] = true // though nobody remembers it
	}
	for name := range names {
		f.refresh(name, now)
	}
	f.summarize(now)
}

// holds says whether what a server that is away said last is still to be believed.
func (f *fleet) holds(s *server, now time.Time) bool {
	away := now.Sub(s.lostAt)
	if away > f.hold {
		return false
	}
	for _, other := range f.servers {
		if other.listed && !other.synced {
			return true
		}
	}
	return away < f.settle
}

// refresh decides anew what is so of a gateway.
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

// decide says what is so of a gateway: the server to which it connected last counts.
func (f *fleet) decide(name string, now time.Time) verdict {
	var live, last *gatewayWord
	var seen time.Time // when it was there according to last
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
		return verdict{reporting, live}
	case last != nil && (held || now.Sub(seen) < f.silent):
		return verdict{silent, last}
	}
	return verdict{}
}
