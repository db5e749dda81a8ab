// Package watchdog decides whether an Envoy hangs. The input is signals of one second each: whether the main thread
// answered on the admin interface, whether each worker answered on the loop listener, and whether the kernel ran their
// threads. The output is decisions: which part is silent, whether the Envoy can accept clients, and whether it must be
// replaced. Watch is a pure state machine that decides; Probe collects the signals of a real Envoy. The package does
// not know the traffic of Envoy.
//
// In the decision table, "silent" means no answer for the respective time. "Runs" means that the kernel gave a thread
// CPU time, or that the thread waited for CPU time.
//
//	main thread  workers             worker threads  decision
//	answers      all answer          any             well
//	silent       one or more answer  any             unready, never replaced: busy or blocked; reverse tunnels continue
//	answers      some silent         any             unready, never replaced: the other workers carry reverse tunnels
//	any          all silent          run             unready: busy or starved of CPU; a new one would have less, not more
//	any          all silent          stand still     unready, and replaced: frozen or deadlocked, it carries nothing
//	silent       not started yet     main runs       unready: it reads a large configuration
//	silent       not started yet     stands still    unready, and replaced
//
// Envoy's own watchdog is not used as a signal: it counts a late thread once, and its counters are read through the
// main thread.
package watchdog

import (
	"strconv"
	"strings"
	"time"
)

const (
	// Interval is the time between two observations.
	Interval = time.Second
	// UnreadyAfter is how long a part may be silent. It is longer than any step of a healthy Envoy, and short enough
	// that clients that retry within 10 s reach another Envoy.
	UnreadyAfter = 5 * time.Second
	// ReplaceAfter is how long all workers may stand still. No operation of a healthy Envoy takes as long without
	// running a thread.
	ReplaceAfter = 15 * time.Second
	// ReplaceApart is the minimum time between two replacements: a persistent cause must not end reverse tunnels
	// repeatedly.
	ReplaceApart = 5 * time.Minute
)

// Signals are what was observed since the previous observation.
type Signals struct {
	Main, MainRuns bool     // the main thread answered; the kernel ran it
	Workers        []Worker // one per worker
	Drains         bool     // the agent is stopping Envoy
}

// Worker is one of Envoy's worker threads. Its zero value has not started yet, or cannot be probed.
type Worker struct {
	Known   bool // it has answered at least once in the life of this Envoy
	Answers bool
	Runs    bool // the kernel ran a worker thread
}

// Decision is the result of one observation.
type Decision struct {
	Silent  string // the parts of Envoy that have been silent for too long; empty: none
	Replace bool   // this Envoy must be killed; set once
}

// Watch is the state of the decision. Its zero value is ready for the first observation.
type Watch struct {
	last     time.Time
	main     time.Duration // how long each part has been silent
	workers  []time.Duration
	still    time.Duration // how long no worker has answered or run
	replaced time.Time     // zero: never
}

// NewWatch returns a Watch for a caller that replaced an Envoy before its own start. A time in the future, because the
// clock was set back since, counts as now. Zero means that it replaced none. Only the distance to now counts, so that
// changes of the clock do not matter later either.
func NewWatch(replaced, now time.Time) Watch {
	if replaced.IsZero() {
		return Watch{}
	}
	return Watch{replaced: now.Add(-max(0, now.Sub(replaced)))}
}

// Observe evaluates the signals since the last observation. Times must come from one monotonic clock. Only time in
// which the caller itself ran counts: after a gap, because the caller was frozen or starved or the machine was
// suspended, nothing is added.
func (w *Watch) Observe(now time.Time, s Signals) Decision {
	step := now.Sub(w.last)
	if w.last.IsZero() || step < 0 || step >= 2*Interval {
		step = 0
	}
	w.last = now
	w.main = silence(w.main, step, s.Main)
	if len(w.workers) != len(s.Workers) {
		w.workers = make([]time.Duration, len(s.Workers))
	}
	for i, worker := range s.Workers {
		w.workers[i] = silence(w.workers[i], step, worker.Answers || !worker.Known)
	}
	w.still = silence(w.still, step, s.progress())
	decision := Decision{Silent: w.silent()}
	if w.still >= ReplaceAfter && !s.Drains && (w.replaced.IsZero() || now.Sub(w.replaced) >= ReplaceApart) {
		decision.Replace = true
		w.replaced = now
		w.still = 0
	}
	return decision
}

// silence returns how long a part has been silent after one more step.
func silence(before, step time.Duration, answers bool) time.Duration {
	if answers {
		return 0
	}
	return before + step
}

// progress reports whether a worker answered or ran; before the workers have started, whether the main thread did.
func (s Signals) progress() bool {
	known := false
	for _, worker := range s.Workers {
		if worker.Known && (worker.Answers || worker.Runs) {
			return true
		}
		known = known || worker.Known
	}
	return !known && (s.Main || s.MainRuns)
}

// silent names the parts that have been silent for too long.
func (w *Watch) silent() string {
	var parts []string
	if w.main >= UnreadyAfter {
		parts = append(parts, "its main thread (admin interface)")
	}
	silent := 0
	for _, d := range w.workers {
		if d >= UnreadyAfter {
			silent++
		}
	}
	if silent > 0 {
		parts = append(parts, strconv.Itoa(silent)+" of its "+strconv.Itoa(len(w.workers))+" workers")
	}
	return strings.Join(parts, " and ")
}
