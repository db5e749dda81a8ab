package tunnels

import (
	"strconv"
	"strings"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
)

// A tunnel belongs to one worker of the gateway's Envoy, and a client whose connection another worker accepts can only
// use the tunnels of that worker. Envoy gives each new tunnel to the worker that was given the fewest of the edge's
// tunnels so far, and does not subtract tunnels that have ended. So Envoy assigns tunnels in turn regardless of
// losses, and after losses a worker may have none. Each tunnel that is dialled again advances the turn by one; plan
// uses that to give every worker a tunnel.

const (
	// atLeast is the minimum number of tunnels that each worker should have: see enough.
	atLeast = model.TunnelsPerWorker
	// levelTime is how long an edge with all its tunnels must be unchanged before one of them is moved to a worker that
	// has too few.
	levelTime = 3 * time.Second
	// dialTime is how long an edge with missing tunnels must be unchanged before one is closed. Until then it is
	// dialling, and a tunnel that it cannot dial again must not be closed. laterTime replaces dialTime if a closed
	// tunnel was not dialled again.
	dialTime, laterTime = time.Minute, 10 * time.Minute
	// usedTime is how long a worker must be without a tunnel before a tunnel that carries connections is closed.
	// Closing it breaks these connections.
	usedTime = 5 * time.Second
	// showTime is how long a worker must be without a tunnel before that is published. Most cases last only as long as
	// an edge dials.
	showTime = 3 * time.Second
)

// rules are the required numbers of tunnels.
type rules struct {
	workers int // number of workers of this gateway's Envoy
	tunnels int // minimum number of tunnels that an edge keeps to this gateway
}

// edge is one edge of one workload cluster, with its tunnels to this gateway.
type edge struct {
	model.EdgeRef
	tunnels  map[*entry]bool // without the tunnels that were closed by repair
	count    []int           // number of tunnels, by worker
	changed  time.Time       // when a tunnel was last added or removed
	unserved time.Time       // since when a worker has no tunnel; zero: each has one
	shown    int             // published number of workers without a tunnel

	// The fields below belong to the repair.
	tries int
	next  time.Time // earliest time of the next attempt
	want  int       // number of tunnels that the edge must have again; 0: none was closed
}

// workerOf returns the number in Envoy's name of a worker (worker_<number>), or -1 if there is none.
func workerOf(name string, workers int) int {
	digits, ok := strings.CutPrefix(name, "worker_")
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || n >= workers {
		return -1
	}
	return n
}

// least returns the worker with the fewest tunnels, and their number.
func (e *edge) least() (worker, n int) {
	for i, c := range e.count {
		if c < e.count[worker] {
			worker = i
		}
	}
	return worker, e.count[worker]
}

// without returns the number of workers that have no tunnel.
func (e *edge) without() (n int) {
	for _, c := range e.count {
		if c == 0 {
			n++
		}
	}
	return n
}

// enough returns how many tunnels each worker should have. A workload cluster with several names needs a tunnel for
// each name, and its edges keep twice that many for each worker.
func (e *edge) enough() int {
	each := max(len(e.tunnels), e.want) / len(e.count)
	return max(atLeast, each/2)
}

// plan returns the tunnels to close now, so that the edge dials the same number again and Envoy assigns one to the
// worker with the fewest. If there are none, again is the time at which that may change without an event; zero: never.
// turns is the known state of Envoy's assignment.
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
	if at := e.unserved.Add(usedTime); now.Before(at) {
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

// spare holds the tunnels of an edge that may be closed, such that each worker keeps some.
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

// take returns a tunnel for which good is true, of the worker with the most tunnels. Among several it returns the one
// whose hand-off, or else whose start, is the longest ago; nil: there is none.
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

// before reports whether e should be closed before other.
func (e *entry) before(other *entry) bool {
	if !e.Used.Equal(other.Used) {
		return e.Used.Before(other.Used)
	}
	if !e.Since.Equal(other.Since) {
		return e.Since.Before(other.Since)
	}
	return e.Key < other.Key
}

// maxTurns bounds the number of nodes with known turns. They are an optimization: without them, repair closes too many
// or too few tunnels.
const maxTurns = 20_000

// turns holds, by node and worker, how many more tunnels a worker was assigned than the worker with the fewest: 0 or
// 1. Envoy keeps one such count for each node id until it ends.
type turns map[string][]int

// turnsUntil returns the number of new tunnels after which the worker has certainly been assigned one.
func turnsUntil(worker, workers int, given []int) int {
	if given == nil {
		return workers
	}
	first := 0 // number of workers that come before all others
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

// add counts tunnels that a node has opened, by worker. If the result is impossible, earlier counts were incomplete
// and are corrected.
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
