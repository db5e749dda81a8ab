package envoyproc

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
)

const (
	// longRun is how long Envoy must have run to be restarted without a wait, and for its configuration to be good.
	longRun = 10 * time.Second
	// stableAfter is how long Envoy must have run for its previous end to be no longer reported. It is longer than the
	// time for which a fault must last to stop a rollout, a quarter of the usual soak: so a profile with which Envoy ends
	// once does not reach all nodes. For that time `fairlead check` warns.
	stableAfter = time.Minute
)

var restarts = retry.Backoff{Min: 200 * time.Millisecond, Max: 5 * time.Second}

// supervisor keeps one Envoy running.
type supervisor struct {
	log    *slog.Logger
	obtain func(ctx context.Context) (*process, error) // takes over a running Envoy, or starts one
	drain  func(p *process)                            // drains it
	leave  <-chan os.Signal                            // ends only the supervision; nil: never
	// replace has the running Envoy replaced at once; nil: never
	replace <-chan struct{}

	began   func(err error)                // after an attempt of obtain; nil: Envoy runs
	ended   func(reason string, times int) // unexpectedly; times counts the ends since the last call of stable
	stopped func()                         // the supervisor stopped a running Envoy
	ran     func()                         // Envoy has run for longRun
	stable  func()                         // Envoy has run for stableAfter

	reasons retry.Reasons
	ends    int
}

// run keeps Envoy running until ctx ends, and then stops it. When work ends, it returns immediately and Envoy
// continues.
func (s *supervisor) run(ctx, work context.Context) {
	for failures := 0; ctx.Err() == nil && work.Err() == nil; {
		began := time.Now()
		again, failed := s.runOnce(ctx, work)
		if !again {
			return
		}
		if !failed {
			failures = 0
			continue
		}
		if time.Since(began) > longRun {
			failures = 0
		}
		// There is no wait after the first failure: one crash should only cost the time to dial tunnels again.
		if failures > 0 && !s.pause(ctx, work, restarts.Wait(failures-1)) {
			return
		}
		failures++
	}
}

// pause waits for the next attempt to run Envoy. It returns false if there is to be none.
func (s *supervisor) pause(ctx, work context.Context, wait time.Duration) (again bool) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.leave:
		s.log.Info("leaving Envoy to the next agent")
	case <-ctx.Done():
	case <-work.Done():
	}
	return false
}

// runOnce runs Envoy until it ends or fails to start. It returns whether to run it again, and whether it failed.
func (s *supervisor) runOnce(ctx, work context.Context) (again, failed bool) {
	p, err := s.obtain(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.began(err)
			if s.reasons.New(err) {
				s.log.Error("cannot run Envoy, retrying", "error", err)
			}
		}
		return true, true
	}
	s.began(nil)
	ran, calm := time.NewTimer(longRun), time.NewTimer(stableAfter)
	defer ran.Stop()
	defer calm.Stop()
	for {
		select {
		case <-p.done:
			s.ends++
			s.log.Error("Envoy ended, restarting it", "pid", p.pid, "reason", p.reason, "times", s.ends)
			s.ended(p.reason, s.ends)
			return true, true
		case <-s.replace:
			s.log.Warn("replacing Envoy", "pid", p.pid)
			p.stop(cutTimeout)
			s.stopped()
			return true, false
		case <-ran.C:
			s.ran()
		case <-calm.C:
			s.ends, s.reasons = 0, retry.Reasons{}
			s.stable()
		case <-ctx.Done():
			select {
			case <-p.done: // a shutdown of the machine may have ended both
				s.ended(p.reason, s.ends+1)
				return false, false
			default:
			}
			s.log.Info("stopping Envoy", "pid", p.pid)
			s.drain(p)
			p.stop(stopTimeout)
			s.stopped()
			return false, false
		case <-s.leave:
			s.log.Info("leaving Envoy to the next agent", "pid", p.pid)
			return false, false
		case <-work.Done():
			return false, false
		}
	}
}

// obtain takes over a running Envoy, or starts one. It does not start one after ctx has ended.
func (e *Envoy) obtain(ctx context.Context) (*process, error) {
	l, err := prepare(e.Config)
	if err != nil {
		return nil, err
	}
	p, same, err := adopt(ctx, e.Admin, l, e.Log)
	switch {
	case err != nil:
		return nil, err
	case same && !e.drained(ctx):
		e.Log.Info("adopting the running Envoy", "pid", p.pid)
		return p, nil
	case p != nil:
		e.Log.Info("stopping a running Envoy: it has another configuration, or it drains", "pid", p.pid)
		e.drain(ctx, p)
		p.stop(stopTimeout)
		e.Events.Stopped()
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err := errors.Join(e.Config.forgetDrain(), e.Events.Starting()); err != nil {
		return nil, err
	}
	if p, err = start(l); err != nil {
		return nil, err
	}
	e.Log.Info("Envoy started", "pid", p.pid)
	return p, nil
}
