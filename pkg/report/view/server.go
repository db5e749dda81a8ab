package view

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// pair is an edge and its tunnel.
type pair struct{ node, id string }

// server is the state that one xds-server has sent, in its current stream and in earlier ones. State of an earlier
// stream has an older generation: it holds until the new stream replaces it, or its time ends.
type server struct {
	listed     bool      // the server exists
	added      time.Time // when it was listed first
	streaming  bool
	synced     bool      // the stream has sent its whole state
	lostAt     time.Time // when the last synced stream ended; zero: there is one, or its state no longer counts
	behind     time.Time // since when it has not been synced; zero: it is, or never was
	generation int       // of the stream
	theirs     time.Time // when the stream began, by the server's clock
	ours       time.Time // and by ours

	gateways map[string]*gatewayRecord
	profiles *reportv1.ProfileState // nil: it announced none in this stream
	edges    map[pair]*edgeRecord
}

// gatewayRecord is what a server has sent of a gateway.
type gatewayRecord struct {
	connected  bool
	since      time.Time // zero: only counts have arrived, which are ignored until the rest arrives
	generation int
	counts     map[string]map[string]received // by id and node
	incomplete bool                           // it may have tunnels that it does not report
	ready      bool                           // it takes clients
	hang       string                         // the parts of its Envoy that do not answer
}

// count is a gateway's count for one edge.
type count struct {
	n           int // tunnels
	without     int // workers that have none, if others have
	connections int // that are not tunnels
}

// received is a count, and the generation of the stream that sent it.
type received struct {
	count
	generation int
}

// edgeRecord is what a server has sent of an edge.
type edgeRecord struct {
	connected  bool
	since      time.Time
	generation int
	report     *reportv1.EdgeReport
}

func newServer() *server {
	return &server{gateways: map[string]*gatewayRecord{}, edges: map[pair]*edgeRecord{}}
}

// begin begins a stream, at a time by the server's clock and by ours.
func (s *server) begin(theirs, ours time.Time) {
	s.streaming, s.synced, s.profiles = true, false, nil
	s.generation++
	s.theirs, s.ours = theirs, ours
}

// local converts a time of the server to our clock. The result has a monotonic reading if ours has one, so a correction
// of this machine's clock does not change its age.
func (s *server) local(at *timestamppb.Timestamp) time.Time {
	return s.ours.Add(at.AsTime().Sub(s.theirs))
}

// held returns whether there is state from before the server went away that it has not sent again.
func (s *server) held() bool { return !s.lostAt.IsZero() }

func (s *server) gatewayRecord(name string) *gatewayRecord {
	if s.gateways[name] == nil {
		s.gateways[name] = &gatewayRecord{counts: map[string]map[string]received{}}
	}
	return s.gateways[name]
}

// discardStale ends all state that was not sent again, as of the time when the server went away. It returns the ids of
// the tunnels whose edges have changed; the status of gateways must be decided again.
func (s *server) discardStale() (ids []string) {
	for p, e := range s.edges {
		if e.connected && e.generation != s.generation || e.connected && !s.streaming {
			e.connected, e.since = false, s.lostAt
			ids = append(ids, p.id)
		}
	}
	for _, g := range s.gateways {
		if g.connected && g.generation != s.generation || g.connected && !s.streaming {
			g.connected, g.since = false, s.lostAt
		}
	}
	s.lostAt = time.Time{}
	return ids
}

// forget removes what went away before a time, and, if the server itself is gone, the edges that another server has.
func (s *server) forget(before time.Time, elsewhere func(pair) bool) (ids []string) {
	for p, e := range s.edges {
		if !e.connected && (e.since.Before(before) || !s.listed && elsewhere(p)) {
			delete(s.edges, p)
			ids = append(ids, p.id)
		}
	}
	for name, g := range s.gateways {
		if told := !g.since.IsZero(); !g.connected && (told && g.since.Before(before) || !told && !s.streaming) {
			delete(s.gateways, name)
		}
	}
	return ids
}

// set sets the count of an edge, and returns whether it has changed.
func (g *gatewayRecord) set(id, node string, c count, generation int) bool {
	was := g.counts[id][node]
	if c.n <= 0 && c.connections <= 0 {
		delete(g.counts[id], node)
		if len(g.counts[id]) == 0 {
			delete(g.counts, id)
		}
		return was.count != count{}
	}
	if g.counts[id] == nil {
		g.counts[id] = map[string]received{}
	}
	g.counts[id][node] = received{c, generation}
	return was.count != c
}

// drop removes the counts of older streams, and returns their ids.
func (g *gatewayRecord) drop(generation int) (ids []string) {
	for id, nodes := range g.counts {
		for node, c := range nodes {
			if c.generation != generation {
				g.set(id, node, count{}, generation)
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// differs returns the ids of the tunnels whose counts differ between two records. A nil record has no counts.
func (g *gatewayRecord) differs(other *gatewayRecord) (ids []string) {
	if g == other {
		return nil
	}
	var mine, others map[string]map[string]received
	if g != nil {
		mine = g.counts
	}
	if other != nil {
		others = other.counts
	}
	for id, nodes := range mine {
		if !sameCounts(nodes, others[id]) {
			ids = append(ids, id)
		}
	}
	for id := range others {
		if mine[id] == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

func sameCounts(a, b map[string]received) bool {
	if len(a) != len(b) {
		return false
	}
	for node, c := range a {
		if b[node].count != c.count {
			return false
		}
	}
	return true
}
