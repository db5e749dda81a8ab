package controlchannel

import (
	"container/list"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/fairlead/fairlead/internal/limit"
)

// sourcesPerEdge bounds the recorded addresses of one edge, so that an edge with many addresses evicts only its own.
const sourcesPerEdge = 8

// sources are the addresses from which edges have recently connected with a valid certificate. It is bounded: of an
// edge, and of all together, the address that was used least recently is evicted first. It is safe for concurrent use.
type sources struct {
	max    int // pairs of an address and an edge
	recent time.Duration

	mu     sync.Mutex
	pairs  map[sourceKey]*list.Element
	latest *list.List          // of *source, most recently used in front
	counts map[string]int      // edges by address
	of     map[string][]string // addresses by edge, most recently used last
}

type sourceKey struct{ address, edge string }

// source is one edge at one address.
type source struct {
	sourceKey
	at time.Time // when the edge was last seen there
}

func newSources(most int, recent time.Duration) *sources {
	return &sources{
		max: most, recent: recent,
		pairs: map[sourceKey]*list.Element{}, latest: list.New(), counts: map[string]int{}, of: map[string][]string{},
	}
}

// record records that an edge has connected from an address with a valid certificate.
func (s *sources) record(address net.Addr, edge string, now time.Time) {
	key := sourceKey{limit.Address(address), edge}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.pairs[key]; ok {
		s.remove(e)
	}
	if of := s.of[edge]; len(of) >= sourcesPerEdge {
		s.remove(s.pairs[sourceKey{of[0], edge}])
	}
	if len(s.pairs) >= s.max {
		s.remove(s.latest.Back())
	}
	s.pairs[key] = s.latest.PushFront(&source{key, now})
	s.counts[key.address]++
	s.of[edge] = append(s.of[edge], key.address)
}

func (s *sources) remove(e *list.Element) {
	p := s.latest.Remove(e).(*source)
	delete(s.pairs, p.sourceKey)
	if s.counts[p.address]--; s.counts[p.address] == 0 {
		delete(s.counts, p.address)
	}
	s.of[p.edge] = slices.DeleteFunc(s.of[p.edge], func(address string) bool { return address == p.address })
	if len(s.of[p.edge]) == 0 {
		delete(s.of, p.edge)
	}
}

// edges returns how many edges have recently connected from an address.
func (s *sources) edges(address net.Addr, now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := s.latest.Back(); e != nil && now.Sub(e.Value.(*source).at) >= s.recent; e = s.latest.Back() {
		s.remove(e)
	}
	return s.counts[limit.Address(address)]
}

// allowance returns how many reserved slots an address may have.
func (d *acceptor) allowance(client *caller) int {
	return min(d.bounds.perShown*d.sources.edges(client.Addr, time.Now()), d.bounds.mostShown)
}
