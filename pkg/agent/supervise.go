package agent

import (
	"context"
	"log/slog"
	"time"

	"github.com/fairlead/fairlead/pkg/certs"
)

// longRun is how long Envoy must have run for its end to be no reason to wait before it is started again.
const longRun = 10 * time.Second

var restarts = certs.Backoff{Min: 200 * time.Millisecond, Max: 5 * time.Second}

// supervisor keeps one Envoy running: the one that was wanted last.
type supervisor struct {
	log     *slog.Logger
	wanted  chan launch // holds the newest, until run takes it
	reasons certs.Reasons
}

func newSupervisor(log *slog.Logger) *supervisor {
	return &supervisor{log: log, wanted: make(chan launch, 1)}
}

// want says which Envoy is to run from now on. Wanting the same again changes nothing. It never blocks: who wants must go
// on renewing certificates, even while no Envoy can be started. One goroutine at a time may call it.
func (s *supervisor) want(l launch) {
	select {
	case <-s.wanted: // nobody wants it any more
	default:
	}
	s.wanted <- l
}

// run waits for the first launch, and then keeps Envoy running until ctx ends; then it stops it and returns nil.
func (s *supervisor) run(ctx context.Context) error {
	var l launch
	select {
	case l = <-s.wanted:
	case <-ctx.Done():
		return nil
	}
	for failures := 0; ctx.Err() == nil; {
		began := time.Now()
		next, failed := s.runOnce(ctx, l)
		if l = next; !failed || time.Since(began) > longRun {
			failures = 0
		}
		if !failed {
			continue
		}
		// After the first failure not at all: one crash should cost no tunnel more than the time to dial it again.
		if failures > 0 {
			l = s.pause(ctx, l, restarts.Wait(failures-1))
		}
		failures++
	}
	return nil
}

// pause waits before the next attempt, less if another Envoy is wanted than the one that failed. It returns what to run next.
func (s *supervisor) pause(ctx context.Context, l launch, wait time.Duration) launch {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case next := <-s.wanted:
			if next.config != l.config {
				return next
			}
		case <-timer.C:
			return l
		case <-ctx.Done():
			return l
		}
	}
}

// runOnce runs Envoy until it ends, which is a failure, or another is wanted, or ctx ends. It returns what to run next.
func (s *supervisor) runOnce(ctx context.Context, l launch) (next launch, failed bool) {
	p, err := s.obtain(l)
	if err != nil {
		if ctx.Err() == nil && s.reasons.New(err) {
			s.log.Error("Envoy is not running, trying again", "error", err)
		}
		return l, true
	}
	for {
		select {
		case <-p.done:
			s.log.Error("Envoy ended, starting it again", "pid", p.handle.Pid, "error", p.err)
			return l, true
		case next := <-s.wanted:
			if next.config == l.config {
				continue
			}
			s.log.Info("replacing Envoy, because its bootstrap changed", "pid", p.handle.Pid)
			p.stop()
			return next, false
		case <-ctx.Done():
			s.log.Info("stopping Envoy", "pid", p.handle.Pid)
			p.stop()
			return l, false
		}
	}
}

// obtain takes over an Envoy that runs already, or starts one.
func (s *supervisor) obtain(l launch) (*process, error) {
	p, same, err := adopt(l)
	switch {
	case err != nil:
		return nil, err
	case same:
		s.log.Info("Envoy runs already, taking it over", "pid", p.handle.Pid)
		return p, nil
	case p != nil:
		s.log.Info("stopping an Envoy that was started otherwise", "pid", p.handle.Pid)
		p.stop()
	}
	if p, err = start(l); err != nil {
		return nil, err
	}
	s.log.Info("Envoy started", "pid", p.handle.Pid)
	return p, nil
}
