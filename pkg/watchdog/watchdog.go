// Package watchdog decides whether an Envoy hangs. In go signals of one second each: whether the main thread answered on the
// admin interface, whether each worker answered on the loop listener, and whether the kernel ran their threads. Out come
// verdicts: which part is silent, whether the Envoy can take clients, and whether it has to be replaced. The decision (Watch)
// is a pure state machine; Probe collects the signals of a real Envoy. It knows nothing of what Envoy carries.
//
// Decision table. "Silent" means no answer for the time in question, "runs" that the kernel gave a thread CPU time, or had it
// wait for CPU time.
//
//	main thread  workers             worker threads  verdict
//	answers      all answer          any             well
//	silent       one or more answer  any             unready: busy or blocked; tunnels go on, so it is never replaced
//	answers      some silent         any             unready: the other workers carry tunnels, so it is never replaced
//	any          all silent          run             unready: busy or starved of CPU; a new Envoy would have less, not more
//	any          all silent          stand still     unready, and replaced: frozen or deadlocked, it carries nothing
//	silent       not started yet     main runs       unready: it reads much configuration
//	silent       not started yet     stands still    unready, and replaced
//
// The watchdog of Envoy itself is no signal here: it counts a late thread once, and its counters are read through the main
// thread.
package watchdog

import (
	"strconv"
	"strings"
	"time"
)

const (
	// Interval is the time between two observations.
	Interval = time.Second
	// UnreadyAfter is how long a part may be silent: longer than any step of a healthy Envoy takes, and short enough that
	// clients who try again within 10 s reach another one.
	UnreadyAfter = 5 * time.Second
	// ReplaceAfter is how long all workers may stand still. Nothing that Envoy waits for takes as long without a thread run.
	ReplaceAfter = 15 * time.Second
	// ReplaceApart is the least time between two replacements: a cause that stays must not end tunnels again and again.
	ReplaceApart = 5 * time.Minute
)

// Signals are what was seen since the observation before.
type Signals struct {
	Main, MainRuns bool     // the main thread answered, the kernel ran it
	Workers        []Worker // each worker
	Drains         bool     // Envoy is about to be ended by its agent
}

// Worker is one of Envoy's worker threads. Its zero value has not started yet, or can't be asked.
type Worker struct {
	Known   bool // it has answered once in the life of this Envoy
	Answers bool
	Runs    bool // the kernel ran a worker thread
}

// Verdict is what the signals mean.
type Verdict struct {
	Silent  string // the parts of Envoy that do not answer; empty: none for long enough to matter
	Replace bool   // this Envoy has to be killed, once
}

// Watch is the state of the decision. Its zero value is ready for the first observation.
type Watch struct {
	last     time.Time
	main     time.Duration // for how long each part has been silent
	workers  []time.Duration
	still    time.Duration // for how long no worker has answered or run
	replaced time.Time     // zero: never
}

// NewWatch returns a Watch of a caller that replaced an Envoy before it was started itself. A time in the future, from a clock that was
// set back since, counts as now; zero: it replaced none.
func NewWatch(replaced, now time.Time) Watch {
	if replaced.After(now) {
		replaced = now
	}
	return Watch{replaced: replaced}
}

// Observe takes the signals since the last observation and returns what they mean. Times must come from one monotonic clock.
// Only time in which the caller itself ran counts: after a gap, because the caller was frozen or starved, or the machine
// suspended, nothing is added.
func (w *Watch) Observe(now time.Time, s Signals) Verdict {
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
	verdict := Verdict{Silent: w.silent()}
	if w.still >= ReplaceAfter && !s.Drains && (w.replaced.IsZero() || now.Sub(w.replaced) >= ReplaceApart) {
		verdict.Replace = true
		w.replaced = now
		w.still = 0
	}
	return verdict
}

// silence is for how long a part has been silent after one more step.
func silence(before, step time.Duration, answers bool) time.Duration {
	if answers {
		return 0
	}
	return before + step
}

// progress says whether a worker answered or ran; before the workers have started, whether the main thread did.
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
