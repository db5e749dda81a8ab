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
	// cutsPerSecond and cutsAtOnce bound the number of tunnels that one gateway closes to repair workers without a
	// tunnel.
	cutsPerSecond, cutsAtOnce = 8, 16
	// maxTries is the number of consecutive attempts to give an edge a tunnel on every worker, before the table waits
	// for laterTime.
	maxTries = 6
	// repairPause is the wait after the limit of closed tunnels is reached.
	repairPause = 100 * time.Millisecond
	// statusKey is the key of a change of UnservedWorkers, Connections or Stats.Incomplete.
	statusKey = ""
)

// repairBackoff is the wait between two attempts for the same edge. An edge dials again within a second.
var repairBackoff = retry.Backoff{Min: time.Second, Max: 30 * time.Second}

// UnservedWorkers reports that an edge has had no tunnel on some workers of the gateway's Envoy for a few seconds,
// though it has tunnels on others. Connections of clients that these workers accept are not served.
type UnservedWorkers struct {
	model.EdgeRef
	Workers int // number of workers without a tunnel
}

// repairs holds the distribution of tunnels over workers. The table's mu guards it. It is empty if Envoy has one
// worker.
type repairs struct {
	rules
	edges    map[model.EdgeRef]*edge
	uneven   map[*edge]bool // edges with a worker that has too few tunnels
	turns    turns
	budget   *rate.Limiter
	logLimit *rate.Limiter // limits log messages
}

func newRepairs(r rules) repairs {
	r.tunnels = max(r.tunnels, atLeast*r.workers)
	return repairs{
		rules: r, edges: map[model.EdgeRef]*edge{}, uneven: map[*edge]bool{}, turns: turns{},
		budget: rate.NewLimiter(cutsPerSecond, cutsAtOnce), logLimit: rate.NewLimiter(rate.Every(time.Second), cutsAtOnce),
	}
}

// join adds a tunnel to its edge.
func (t *Table) join(v *entry, now time.Time) {
	r := &t.repairs
	if r.workers <= 1 || v.Lane { // a worker without lanes uses the usual tunnels
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

// part removes a tunnel from its edge, unless it was removed already.
func (t *Table) part(v *entry, now time.Time) {
	r := &t.repairs
	e := r.edges[model.EdgeRef{Node: v.Node, ID: v.ID}]
	if v.Lane || e == nil || !e.tunnels[v] {
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

// weigh updates the state of an edge after a change of its tunnels.
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
		e.unserved = time.Time{}
		t.show(e, 0)
	case e.unserved.IsZero(): // a new case: earlier attempts do not count
		e.unserved, e.tries, e.next = now, 0, time.Time{}
	}
}

// show publishes the number of workers without a tunnel.
func (t *Table) show(e *edge, workers int) {
	if e.shown == workers {
		return
	}
	t.stats.Unserved += workers - e.shown
	e.shown = workers
	if t.history.Version > 0 {
		t.history.Add([]string{statusKey})
	}
}

// UnservedWorkers returns all edges with workers that have had no tunnel for some time, in no particular order.
func (t *Table) UnservedWorkers() (all []UnservedWorkers) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for e := range t.repairs.uneven {
		if e.shown > 0 {
			all = append(all, UnservedWorkers{EdgeRef: e.EdgeRef, Workers: e.shown})
		}
	}
	return all
}

// repair closes idle tunnels of edges that have a worker with no or too few tunnels. It returns the time of the next
// call; zero: after the next change.
func (t *Table) repair(now time.Time) (again time.Time) {
	victims, again := t.superfluous(now)
	find := t.find(&t.kernel)
	for _, v := range victims {
		err := find.destroy(v)
		if errors.Is(err, sockets.ErrGone) {
			continue // its closing event will follow
		}
		t.mu.Lock()
		if err == nil {
			t.stats.Moved++
		} else {
			v.stuck = true
			if t.live[v.Key] == v {
				t.join(v, now)
			}
		}
		t.mu.Unlock()
		if err != nil {
			t.logOnce(slog.LevelError, "cannot close tunnel so that its edge dials it again", err)
		}
	}
	return again
}

// superfluous returns the tunnels to close now, and removes them from their edges.
func (t *Table) superfluous(now time.Time) (all []*entry, again time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sooner := func(at time.Time) {
		if !at.IsZero() && (again.IsZero() || at.Before(again)) {
			again = at
		}
	}
	if t.history.Version == 0 {
		return nil, time.Time{} // the loaded tunnels are not checked yet
	}
	for e := range t.repairs.uneven {
		sooner(t.announce(e, now))
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

// try records an attempt to rebalance an edge, and returns the tunnels that the limit permits to close.
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
	if e.tries++; e.tries >= maxTries && !e.unserved.IsZero() {
		e.tries = 0
		e.next = now.Add(laterTime + repairBackoff.Wait(maxTries)) // avoids that many edges try again at the same time
		t.stats.GivenUp++
		t.report(
			slog.LevelError,
			"edge has workers without a tunnel, and closing its other tunnels does not help: retrying much later", e, now,
		)
	}
	return all
}

// announce publishes that an edge has workers without a tunnel, once that has lasted for showTime. Until then it
// returns that time; later it returns zero.
func (t *Table) announce(e *edge, now time.Time) time.Time {
	if e.unserved.IsZero() {
		return time.Time{}
	}
	if at := e.unserved.Add(showTime); now.Before(at) {
		return at
	}
	if e.shown == 0 {
		t.report(
			slog.LevelWarn, "edge has workers without a tunnel on this gateway: clients on these workers are not served", e, now,
		)
	}
	t.show(e, e.without())
	return time.Time{}
}

// report logs a message about an edge. It is rate-limited, because many edges may have the same problem.
func (t *Table) report(level slog.Level, message string, e *edge, now time.Time) {
	if t.repairs.logLimit.AllowN(now, 1) {
		t.config.Logger.Log(
			logContext, level, message, "node", e.Node, "tunnel", e.ID, "workers", e.without(), "tunnels", len(e.tunnels),
			"wanted", t.repairs.tunnels,
		)
	}
}
