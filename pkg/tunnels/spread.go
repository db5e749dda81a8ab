package tunnels

import (
	"strconv"
	"strings"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
)

// A tunnel belongs to one worker of the gateway's Envoy, and a client that lands on another finds only the tunnels of that one. Envoy
// gives each new tunnel to the worker that has ever been given fewest of the edge's tunnels, and does not count those that have
// ended: so it deals them out in turn, whatever is lost, and after losses a worker may stay without: a hole. One more tunnel
// that is dialled is one more turn, which is how a hole is closed: see plan.

const (
	// atLeast is how many tunnels each worker should have at least: see enough.
	atLeast = model.TunnelsPerWorker
	// levelTime is how long an edge with all its tunnels stays as it is before one of them is moved to a worker that has too few.
	levelTime = 3 * time.Second
	// dialTime is how long an edge that has not all its tunnels must have stayed as it is before one is cut: until then it is dialling,
	// and what it can't dial again must not be cut. laterTime is how long, if one that was cut did not come back.
	dialTime, laterTime = time.Minute, 10 * time.Minute
	// usedTime is how old a hole is before a tunnel that carries connections is cut for it, which breaks these.
	usedTime = 5 * time.Second
	// showTime is how old a hole is before it is shown: most last for as long as an edge dials.
	showTime = 3 * time.Second
)

// rules are what tunnels of each edge there should be.
type rules struct {
	workers int // of this gateway's Envoy
	tunnels int // that an edge keeps to this gateway, at least
}

// edge is one edge of one workload cluster, with its tunnels to this gateway.
type edge struct {
	model.EdgeRef
	tunnels map[*entry]bool // but for those that were cut
	count   []int           // by worker
	changed time.Time       // when a tunnel came or went last
	hole    time.Time       // since when a worker has none; zero: each has one
	shown   int             // workers without one, as others know it

	// Of the repair.
	tries int
	next  time.Time // not before
	want  int       // tunnels that it must have again; 0: nothing was cut
}

// workerOf is the number in Envoy's name of a worker, worker_<number>, or less than 0.
func workerOf(name string, workers int) int {
	digits, ok := strings.CutPrefix(name, "worker_")
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || n >= workers {
		return -1
	}
	return n
}

// least is the worker with the fewest tunnels, and how many it has.
func (e *edge) least() (worker, n int) {
	for i, c := range e.count {
		if c < e.count[worker] {
			worker = i
		}
	}
	return worker, e.count[worker]
}

// without is how many workers have no tunnel.
func (e *edge) without() (n int) {
	for _, c := range e.count {
		if c == 0 {
			n++
		}
	}
	return n
}

// enough is how many tunnels each worker should have. A workload cluster with more names than one needs a tunnel of its own for each, and its
// edges keep twice that many for each worker.
func (e *edge) enough() int {
	each := max(len(e.tunnels), e.want) / len(e.count)
	return max(atLeast, each/2)
}

// plan says which tunnels to cut now, so that the edge dials as many again and one lands on the worker that has fewest. Without any it says
// when that may be otherwise, though nothing has changed; zero: never. turns is what is known of Envoy's dealing.
func (e *edge) plan(now time.Time, r rules, turns []int) (victims []*entry, again time.Time) {
	worker, least := e.least()
	if least >= e.enough() || len(e.tunnels) == 0 {
		return nil, time.Time{}
	}
	ready, most := e.next, min(turnsUntil(worker, r.workers, turns), r.workers)
	switch full := len(e.tunnels) >= max(r.tunnels, e.want); {
	case !full && e.want > 0:
		ready, most = later(ready, e.changed.Add(laterTime)), 1
	case !full:
		ready, most = later(ready, e.changed.Add(dialTime)), 1
	case least > 0:
		ready = later(ready, e.changed.Add(levelTime))
	}
	if now.Before(ready) {
		return nil, ready
	}
	spare := newSpare(e, least+1)
	for len(victims) < most {
		v := spare.take(func(v *entry) bool { return v.Used.IsZero() })
		if v == nil {
			break
		}
		victims = append(victims, v)
	}
	if len(victims) > 0 || least > 0 {
		return victims, time.Time{}
	}
	v := spare.take(func(*entry) bool { return true })
	if v == nil {
		return nil, time.Time{}
	}
	if at := e.hole.Add(usedTime); now.Before(at) {
		return nil, at
	}
	return []*entry{v}, time.Time{}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// spare are the tunnels of an edge that can be cut, so that each worker keeps some.
type spare struct {
	keep  int
	count []int
	left  map[*entry]bool
}

func newSpare(e *edge, keep int) *spare {
	s := &spare{keep: keep, count: append([]int(nil), e.count...), left: make(map[*entry]bool, len(e.tunnels))}
	for v := range e.tunnels {
		if v.worker >= 0 && !v.stuck {
			s.left[v] = true
		}
	}
	return s
}

// take returns a tunnel of the fullest worker that has one which will do: the one whose hand-off is the longest ago, or which is there for
// longest. Nil: there is none.
func (s *spare) take(good func(*entry) bool) (best *entry) {
	for v := range s.left {
		switch {
		case s.count[v.worker] <= s.keep || !good(v):
		case best == nil || s.count[v.worker] > s.count[best.worker]:
			best = v
		case s.count[v.worker] == s.count[best.worker] && v.before(best):
			best = v
		}
	}
	if best != nil {
		delete(s.left, best)
		s.count[best.worker]--
	}
	return best
}

// before says which of two tunnels is missed less.
func (e *entry) before(other *entry) bool {
	if !e.Used.Equal(other.Used) {
		return e.Used.Before(other.Used)
	}
	if !e.Since.Equal(other.Since) {
		return e.Since.Before(other.Since)
	}
	return e.Key < other.Key
}

// maxTurns bounds of how many edges the turns are known. They are a help: without them, more is cut than is needed, or less.
const maxTurns = 20_000

// turns are, by node and worker, how many more tunnels a worker was ever given than that which was given fewest: 0 or 1. Envoy has one
// such count for each node id, for as long as it runs.
type turns map[string][]int

// turnsUntil is after how many tunnels that are dialled a worker surely has had one.
func turnsUntil(worker, workers int, given []int) int {
	if given == nil {
		return workers
	}
	first := 0 // workers whose turn comes before that of all others
	for _, n := range given {
		if n == 0 {
			first++
		}
	}
	if given[worker] == 0 {
		return first
	}
	return first + workers
}

// add counts tunnels that a node has opened, by worker. Where that can't be so, by what was known, too little was known.
func (t turns) add(node string, opened []int) {
	given := t[node]
	if given == nil {
		if len(t) >= maxTurns {
			clear(t)
		}
		given = make([]int, len(opened))
		t[node] = given
	}
	most := 0
	for i, n := range opened {
		given[i] += n
		most = max(most, given[i])
	}
	least := most
	for i, n := range given {
		given[i] = max(n, most-1)
		least = min(least, given[i])
	}
	for i := range given {
		given[i] -= least
	}
}
