// Package heartbeat finds work that is stuck. Loops say when a piece of work begins and ends; a piece that is under way for
// longer than the limit is stuck. A loop that waits for work is never stuck, and neither is one whose work fails: an outage
// of something else, which ends with an error and is retried, is no reason to restart. Probes are pieces of work that the
// Monitor begins itself, such as taking a lock. Checks report what they find stuck themselves. It knows nothing of what the work is.
package heartbeat

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// Limit is for work that only computes or takes locks.
	Limit = 30 * time.Second
	// CallLimit is for work that calls others, each call of which has a deadline of its own: far longer than several of these.
	CallLimit = 5 * time.Minute
	// every is the time between two runs of a probe.
	every = 5 * time.Second
)

// Monitor knows what is under way. It is safe for concurrent use, and so is a nil one, which does nothing.
type Monitor struct {
	mu       sync.Mutex
	next     int
	under    map[int]work
	reported map[string]error
}

type work struct {
	name  string
	limit time.Duration
	since time.Time
}

// New returns a Monitor under which nothing is under way.
func New() *Monitor { return &Monitor{under: map[int]work{}, reported: map[string]error{}} }

// Begin notes that a piece of work begins, and returns what notes its end.
func (m *Monitor) Begin(name string, limit time.Duration) (end func()) {
	if m == nil {
		return func() {}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next++
	id := m.next
	m.under[id] = work{name: name, limit: limit, since: time.Now()}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.under, id)
	}
}

// Report sets what a check has found stuck; nil: nothing.
func (m *Monitor) Report(check string, err error) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		delete(m.reported, check)
		return
	}
	m.reported[check] = err
}

// Stuck returns an error that names each piece of work that is stuck at a time, and what checks report; nil: there is none.
func (m *Monitor) Stuck(now time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []string
	for _, err := range m.reported {
		all = append(all, err.Error())
	}
	for _, w := range m.under {
		if took := now.Sub(w.since); took > w.limit {
			all = append(all, fmt.Sprintf("%s is stuck: it began %s ago", w.name, took.Round(time.Second)))
		}
	}
	slices.Sort(all)
	errs := make([]error, len(all))
	for i, text := range all {
		errs[i] = errors.New(text)
	}
	return errors.Join(errs...)
}

// Run runs probes by name, each at intervals, until ctx ends. A probe that is stuck is not run again. In between it tells
// systemd that the process lives, as long as nothing is stuck: see Notify.
func (m *Monitor) Run(ctx context.Context, probes map[string]func()) error {
	var group sync.WaitGroup
	for name, probe := range probes {
		go m.repeat(ctx, name, probe) // not waited for: one that is stuck never ends
	}
	group.Go(func() {
		again := time.NewTicker(min(every, watchdogInterval()))
		defer again.Stop()
		for ctx.Err() == nil {
			if m.Stuck(time.Now()) == nil {
				_ = Notify("WATCHDOG=1") // without systemd there is no socket
			}
			select {
			case <-again.C:
			case <-ctx.Done():
			}
		}
	})
	group.Wait()
	return nil
}

func (m *Monitor) repeat(ctx context.Context, name string, probe func()) {
	again := time.NewTicker(every)
	defer again.Stop()
	for ctx.Err() == nil {
		end := m.Begin(name, Limit)
		probe()
		end()
		select {
		case <-again.C:
		case <-ctx.Done():
		}
	}
}

// ServeHTTP answers a liveness probe: 200 while nothing is stuck, else 503 with what is.
func (m *Monitor) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if err := m.Stuck(time.Now()); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintln(w, "ok") // the client may be gone
}
