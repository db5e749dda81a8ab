package tunnels

import (
	"errors"
	"log/slog"
	"time"

	"golang.org/x/time/rate"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/sockets"
)

const (
	// cutsPerSecond and cutsAtOnce bound how many tunnels one gateway cuts to close holes.
	cutsPerSecond, cutsAtOnce = 8, 16
	// maxTries is how often in a row tunnels of an edge are cut for one hole, before it is left alone for laterTime.
	maxTries = 6
	// repairPause is how soon a look that had no room left is repeated.
	repairPause = 100 * time.Millisecond
	// holesKey is the key of a change that says that Holes or Stats.Incomplete are others.
	holesKey = ""
)

// repairBackoff is the wait between two cuts for the same hole: an edge has dialled again after a second.
var repairBackoff = retry.Backoff{Min: time.Second, Max: 30 * time.Second}

// Hole says that an edge has had no tunnel on some workers of the gateway's Envoy for a few seconds, though it has others. Clients that
// land on these workers are not served.
type Hole struct {
	model.EdgeRef
	Workers int // how many
}

// repairs are what the table knows of edges and workers. It is guarded by the table's mu, and empty where Envoy has one worker.
type repairs struct {
	rules
	edges  map[model.EdgeRef]*edge
	uneven map[*edge]bool // those that have a worker with fewer tunnels than enough
	turns  turns
	budget *rate.Limiter
	words  *rate.Limiter // of the log
}

func newRepairs(r rules) repairs {
	r.tunnels = max(r.tunnels, atLeast*r.workers)
	return repairs{
		rules: r, edges: map[model.EdgeRef]*edge{}, uneven: map[*edge]bool{}, turns: turns{},
		budget: rate.NewLimiter(cutsPerSecond, cutsAtOnce), words: rate.NewLimiter(rate.Every(time.Second), cutsAtOnce),
	}
}

// join adds a tunnel to those of its edge.
func (t *Table) join(v *entry, now time.Time) {
	t.counts.add(v.Tunnel, 1)
	r := &t.repairs
	if r.workers <= 1 {
		return
	}
	v.worker = workerOf(v.Worker, r.workers)
	ref := model.EdgeRef{Node: v.Node, ID: v.ID}
	e := r.edges[ref]
	if e == nil {
		e = &edge{EdgeRef: ref, tunnels: map[*entry]bool{}, count: make([]int, r.workers)}
		r.edges[ref] = e
	}
	e.tunnels[v] = true
	if v.worker >= 0 {
		e.count[v.worker]++
	}
	t.weigh(e, now)
}

// part takes a tunnel from those of its edge, if it is not taken yet.
func (t *Table) part(v *entry, now time.Time) {
	t.counts.add(v.Tunnel, -1)
	r := &t.repairs
	e := r.edges[model.EdgeRef{Node: v.Node, ID: v.ID}]
	if e == nil || !e.tunnels[v] {
		return
	}
	delete(e.tunnels, v)
	if v.worker >= 0 {
		e.count[v.worker]--
	}
	if len(e.tunnels) == 0 {
		t.show(e, 0)
		delete(r.edges, e.EdgeRef)
		delete(r.uneven, e)
		return
	}
	t.weigh(e, now)
}

// weigh notes how evenly the tunnels of an edge are spread.
func (t *Table) weigh(e *edge, now time.Time) {
	e.changed = now
	_, least := e.least()
	if least >= e.enough() {
		delete(t.repairs.uneven, e)
		e.tries, e.want, e.next = 0, 0, time.Time{}
	} else {
		t.repairs.uneven[e] = true
	}
	switch {
	case least > 0:
		e.hole = time.Time{}
		t.show(e, 0)
	case e.hole.IsZero(): // a new one, which has nothing to do with what was tried before
		e.hole, e.tries, e.next = now, 0, time.Time{}
	}
}

// show notes how many workers are without a tunnel, as others are to know it.
func (t *Table) show(e *edge, workers int) {
	if e.shown == workers {
		return
	}
	t.stats.Holes += workers - e.shown
	e.shown = workers
	if t.history.version > 0 {
		t.history.add([]string{holesKey})
	}
}

// Holes returns all holes that there are, in no order.
func (t *Table) Holes() (all []Hole) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for e := range t.repairs.uneven {
		if e.shown > 0 {
			all = append(all, Hole{EdgeRef: e.EdgeRef, Workers: e.shown})
		}
	}
	return all
}

// repair cuts idle tunnels of edges that have a worker without one, or with too few, and returns when to look again; zero: when
// something has changed.
func (t *Table) repair(now time.Time) (again time.Time) {
	victims, again := t.superfluous(now)
	find := finder{kernel: &t.kernel}
	for _, v := range victims {
		err := find.destroy(v)
		if errors.Is(err, sockets.ErrGone) {
			continue // its closing is on the way
		}
		t.mu.Lock()
		if err == nil {
			t.stats.Moved++
		} else {
			v.stuck = true
			t.stats.CutFails++
			if t.live[v.Key] == v {
				t.join(v, now)
			}
		}
		t.mu.Unlock()
		if err != nil {
			t.say(slog.LevelError, "cannot close tunnel so that its edge dials it again", err)
		}
	}
	return again
}

// superfluous returns what is to be cut now, and takes it from its edges.
func (t *Table) superfluous(now time.Time) (all []*entry, again time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sooner := func(at time.Time) {
		if !at.IsZero() && (again.IsZero() || at.Before(again)) {
			again = at
		}
	}
	if t.history.version == 0 {
		return nil, time.Time{} // what was loaded is not checked yet
	}
	for e := range t.repairs.uneven {
		sooner(t.tell(e, now))
		if t.denied.has(Tunnel{Node: e.Node, ID: e.ID}) {
			continue
		}
		if t.repairs.budget.TokensAt(now) < 1 {
			sooner(now.Add(repairPause))
			continue
		}
		victims, at := e.plan(now, t.repairs.rules, t.repairs.turns[e.Node])
		sooner(at)
		all = append(all, t.try(e, victims, now)...)
		if len(victims) > 0 {
			sooner(e.next)
		}
	}
	return all, again
}

// try notes that tunnels of an edge are cut, and returns those for which there is room.
func (t *Table) try(e *edge, victims []*entry, now time.Time) (all []*entry) {
	if len(victims) == 0 {
		return nil
	}
	want := max(t.repairs.tunnels, len(e.tunnels))
	for _, v := range victims {
		if t.repairs.budget.AllowN(now, 1) {
			all = append(all, v)
			t.part(v, now)
		}
	}
	e.want = min(want, len(e.tunnels)+len(all))
	e.next = now.Add(repairBackoff.Wait(e.tries))
	if e.tries++; e.tries >= maxTries && !e.hole.IsZero() {
		e.tries = 0
		e.next = now.Add(laterTime + repairBackoff.Wait(maxTries)) // spread
		t.stats.GivenUp++
		t.report(slog.LevelError, "edge has workers without a tunnel, and closing its other tunnels does not help: retrying much later", e, now)
	}
	return all
}

// tell makes known the hole of an edge once it is old enough, and returns when that is.
func (t *Table) tell(e *edge, now time.Time) time.Time {
	if e.hole.IsZero() {
		return time.Time{}
	}
	if at := e.hole.Add(showTime); now.Before(at) {
		return at
	}
	if e.shown == 0 {
		t.report(slog.LevelWarn, "edge has workers without a tunnel on this gateway: clients on these workers are not served", e, now)
	}
	t.show(e, e.without())
	return time.Time{}
}

// report logs something about an edge, unless many edges have it.
func (t *Table) report(level slog.Level, message string, e *edge, now time.Time) {
	if t.repairs.words.AllowN(now, 1) {
		t.config.Logger.Log(logContext, level, message, "node", e.Node, "tunnel", e.ID, "workers", e.without(), "tunnels", len(e.tunnels), "wanted", t.repairs.tunnels)
	}
}
