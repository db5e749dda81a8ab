package report

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// server is what one xds-server has said, in its stream and in those before. What it said in one before has an older
// generation: it holds until the new stream, or the time, says otherwise.
type server struct {
	listed     bool // there is such a server now
	streaming  bool
	synced     bool      // the stream has told all
	lostAt     time.Time // when the last stream that had told all ended; zero: there is one
	generation int       // of the stream
	offset     time.Duration

	gateways map[string]*gatewayWord
	profiles *reportv1.ProfileState // nil: it announced none in this stream
	edges    map[pair]*edgeWord
}

// gatewayWord is what a server said of a gateway.
type gatewayWord struct {
	connected  bool
	since      time.Time // zero: only counts were said yet, which don't count until the rest comes
	generation int
	counts     map[string]map[string]said // by id and node
	incomplete bool                       // it may have tunnels that it does not report
	ready      bool                       // it takes clients
	hang       string                     // the parts of its Envoy that do not answer
}

// count is what a gateway has of one edge.
type count struct {
	n       int // tunnels
	without int // workers that have none, if others have
}

// said is a count, and the stream in which it was said.
type said struct {
	count
	generation int
}

// edgeWord is what a server said of an edge.
type edgeWord struct {
	connected  bool
	since      time.Time
	generation int
	report     *reportv1.EdgeReport
}

func newServer() *server {
	return &server{gateways: map[string]*gatewayWord{}, edges: map[pair]*edgeWord{}}
}

// begin begins a stream: the server's clock says one time, ours the other.
func (s *server) begin(theirs, ours time.Time) {
	s.streaming, s.synced, s.profiles = true, false, nil
	s.generation++
	s.offset = ours.Sub(theirs)
}

// local is a time of the server's by our clock.
func (s *server) local(at *timestamppb.Timestamp) time.Time { return at.AsTime().Add(s.offset) }

// held says whether there is something that was said before the server went away, and not since.
func (s *server) held() bool { return !s.lostAt.IsZero() }

func (s *server) gatewayWord(name string) *gatewayWord {
	if s.gateways[name] == nil {
		s.gateways[name] = &gatewayWord{counts: map[string]map[string]said{}}
	}
	return s.gateways[name]
}

// settle makes of everything that was not said again that it was so until the server went away. It returns the ids of the
// tunnels whose edges are concerned; what is so of gateways has to be decided anew.
func (s *server) settle() (ids []string) {
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

// forget forgets who went away before a time, and edges that are known elsewhere of a server that is gone itself.
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

// set sets what there is of an edge, and says whether it is something else.
func (g *gatewayWord) set(id, node string, c count, generation int) bool {
	was := g.counts[id][node]
	if c.n <= 0 {
		delete(g.counts[id], node)
		if len(g.counts[id]) == 0 {
			delete(g.counts, id)
		}
		return was.n != 0
	}
	if g.counts[id] == nil {
		g.counts[id] = map[string]said{}
	}
	g.counts[id][node] = said{c, generation}
	return was.count != c
}

// drop drops the counts of older streams, and returns their ids.
func (g *gatewayWord) drop(generation int) (ids []string) {
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

// differs returns the ids of the tunnels of which one says something else than the other. Nil says that there are none.
func (g *gatewayWord) differs(other *gatewayWord) (ids []string) {
	if g == other {
		return nil
	}
	var mine, others map[string]map[string]said
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

func sameCounts(a, b map[string]said) bool {
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
