// Package heartbeat finds work that is stuck. Loops report when a piece of work begins and ends; a piece of work that
// takes longer than its limit is stuck. A loop that waits for work is never stuck. Work that fails is not stuck either:
// an outage of another system ends it with an error, the loop retries, and a restart would not help. Probes are pieces
// of work that the Monitor begins itself, such as taking a lock. Checks report what they themselves find stuck. The
// package knows nothing about the work.
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
	// CallLimit is for work that calls other systems. Each such call has its own deadline, and the limit is far longer
	// than several of these deadlines.
	CallLimit = 5 * time.Minute
	// every is the time between two runs of a probe.
	every = 5 * time.Second
)

// Monitor tracks the work that is in progress. It is safe for concurrent use. A nil Monitor does nothing.
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

// New returns a Monitor without work in progress.
func New() *Monitor { return &Monitor{under: map[int]work{}, reported: map[string]error{}} }

// Begin records that a piece of work begins, and returns a function that records its end.
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

// Report records what a check has found stuck. A nil error means that nothing is stuck.
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

// Stuck returns an error that names each piece of work that is stuck at the time now and includes what checks have
// reported, or nil if nothing is stuck.
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

// Run runs each of the named probes at intervals until ctx ends. A probe that is stuck is not run again. While nothing
// is stuck, Run also notifies systemd that the process is alive: see Notify.
func (m *Monitor) Run(ctx context.Context, probes map[string]func()) error {
	var group sync.WaitGroup
	for name, probe := range probes {
		go m.repeat(ctx, name, probe) // Run does not wait for probes: one that is stuck never ends
	}
	group.Go(func() {
		again := time.NewTicker(min(every, watchdogInterval()))
		defer again.Stop()
		for ctx.Err() == nil {
			if m.Stuck(time.Now()) == nil {
				_ = Notify("WATCHDOG=1") // fails without systemd, which sets the socket
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

// ServeHTTP answers a liveness probe with 200 while nothing is stuck, and else with 503 and the text of the error.
func (m *Monitor) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if err := m.Stuck(time.Now()); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintln(w, "ok") // the client may have disconnected
}
