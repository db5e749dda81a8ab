package controlchannel

import (
	"container/list"
	"hash/maphash"
	"math"
	"math/bits"
	"net"
	"sync"
	"time"

	"github.com/fairlead/fairlead/internal/limit"
)

// sources are the addresses from which edges have recently connected with a valid certificate, and estimates of how
// many edges each of them has presented. It is bounded: the least recently used address is evicted first. It is safe
// for concurrent use.
type sources struct {
	max    int
	recent time.Duration
	seed   maphash.Seed // so that no client can choose names for their hashes

	mu     sync.Mutex
	all    map[string]*list.Element
	latest *list.List // of *origin, most recently used in front
}

// shownBits is the precision of the number of edges: 256 bits can count about 1,000 edges.
const shownBits = 256

// origin is one address. A bit of shown is set for each edge, in two generations, so that edges that have left are
// removed.
type origin struct {
	key           string
	at            time.Time // when an edge was last seen
	turned        time.Time // when shown was started
	shown, before [shownBits / 64]uint64
}

func newSources(most int, recent time.Duration) *sources {
	return &sources{
		max: most, recent: recent, seed: maphash.MakeSeed(),
		all: map[string]*list.Element{}, latest: list.New(),
	}
}

// record records that an edge has connected from an address with a valid certificate.
func (s *sources) record(address net.Addr, edge string, now time.Time) {
	key, bit := limit.Address(address), maphash.String(s.seed, edge)%shownBits
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.all[key]
	if !ok {
		if len(s.all) >= s.max {
			delete(s.all, s.latest.Remove(s.latest.Back()).(*origin).key)
		}
		e = s.latest.PushFront(&origin{key: key, turned: now})
		s.all[key] = e
	}
	s.latest.MoveToFront(e)
	o := e.Value.(*origin)
	switch age := now.Sub(o.turned); {
	case age >= s.recent:
		o.before, o.shown, o.turned = [shownBits / 64]uint64{}, [shownBits / 64]uint64{}, now
	case age >= s.recent/2:
		o.before, o.shown, o.turned = o.shown, [shownBits / 64]uint64{}, now
	}
	o.at = now
	o.shown[bit/64] |= 1 << (bit % 64)
}

// edges returns about how many edges an address has presented recently; 0 if none.
func (s *sources) edges(address net.Addr, now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.all[limit.Address(address)]
	if !ok {
		return 0
	}
	o := e.Value.(*origin)
	if now.Sub(o.at) >= s.recent {
		return 0
	}
	ones := 0
	for i := range o.shown {
		ones += bits.OnesCount64(o.shown[i] | o.before[i])
	}
	zeros := max(shownBits-ones, 1)
	// Linear counting: Whang et al., "A linear-time probabilistic counting algorithm", 1990.
	return int(math.Round(shownBits * math.Log(shownBits/float64(zeros))))
}

// allowance returns how many reserved slots an address may have.
func (d *acceptor) allowance(client *caller) int {
	return min(d.bounds.perShown*d.sources.edges(client.Addr, time.Now()), d.bounds.mostShown)
}
