package envoyproc

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
)

const (
	// longRun is how long Envoy must have run for its end to be no reason to wait before it is started again, and for what
	// it was told to be good.
	longRun = 10 * time.Second
	// forgiven is how long Envoy must have run for its last end to be no trouble any more.
	forgiven = time.Minute
)

var restarts = retry.Backoff{Min: 200 * time.Millisecond, Max: 5 * time.Second}

// supervisor keeps one Envoy running.
type supervisor struct {
	log    *slog.Logger
	obtain func(ctx context.Context) (*process, error) // takes over an Envoy that runs already, or starts one
	drain  func(p *process)                            // has it finish what is open
	leave  <-chan os.Signal                            // ends the supervision alone; nil: nothing does

	began   func(err error)                // an attempt at obtain, nil: Envoy runs
	ended   func(reason string, times int) // by itself, so many times since the last calm
	stopped func()                         // by us, while it was alive
	ran     func()                         // for longRun
	calm    func()                         // it has run for forgiven since

	reasons retry.Reasons
	ends    int
}

// run keeps Envoy running until ctx ends; then it stops it. When work ends it returns at once.
func (s *supervisor) run(ctx, work context.Context) {
	for failures := 0; ctx.Err() == nil && work.Err() == nil; {
		began := time.Now()
		if again := s.runOnce(ctx, work); !again {
			return
		}
		if time.Since(began) > longRun {
			failures = 0
		}
		// After the first failure not at all: one crash should cost no tunnel more than the time to dial it again.
		if failures > 0 {
			s.pause(ctx, work, restarts.Wait(failures-1))
		}
		failures++
	}
}

func (s *supervisor) pause(ctx, work context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-work.Done():
	}
}

// runOnce runs Envoy until it ends, or fails to start, and returns whether to do it again.
func (s *supervisor) runOnce(ctx, work context.Context) (again bool) {
	p, err := s.obtain(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.began(err)
			if s.reasons.New(err) {
				s.log.Error("cannot run Envoy, retrying", "error", err)
			}
		}
		return true
	}
	s.began(nil)
	ran, calm := time.NewTimer(longRun), time.NewTimer(forgiven)
	defer ran.Stop()
	defer calm.Stop()
	for {
		select {
		case <-p.done:
			s.ends++
			s.log.Error("Envoy ended, restarting it", "pid", p.pid, "reason", p.reason, "times", s.ends)
			s.ended(p.reason, s.ends)
			return true
		case <-ran.C:
			s.ran()
		case <-calm.C:
			s.ends, s.reasons = 0, retry.Reasons{}
			s.calm()
		case <-ctx.Done():
			select {
			case <-p.done: // what ends a machine may have ended both
				s.ended(p.reason, s.ends+1)
				return false
			default:
			}
			s.log.Info("stopping Envoy", "pid", p.pid)
			s.drain(p)
			p.stop()
			s.stopped()
			return false
		case <-s.leave:
			s.log.Info("leaving Envoy to the next agent", "pid", p.pid)
			return false
		case <-work.Done():
			return false
		}
	}
}

// obtain takes over an Envoy that runs already, or starts one. It starts none after ctx has ended.
func (e *Envoy) obtain(ctx context.Context) (*process, error) {
	l, err := prepare(e.Config)
	if err != nil {
		return nil, err
	}
	p, same, err := adopt(ctx, e.Admin, l)
	switch {
	case err != nil:
		return nil, err
	case same:
		e.Log.Info("adopting the running Envoy", "pid", p.pid)
		return p, nil
	case p != nil:
		e.Log.Info("stopping a running Envoy with another configuration", "pid", p.pid)
		e.drain(ctx, p)
		p.stop()
		e.Events.Stopped()
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err := e.Events.Starting(); err != nil {
		return nil, err
	}
	if p, err = start(l); err != nil {
		return nil, err
	}
	e.Log.Info("Envoy started", "pid", p.pid)
	return p, nil
}
