package agent

import (
	"context"
	"fmt"
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

// supervise keeps Envoy running until ctx ends, and stops it then, in peace. When work ends, or an agent is to leave, Envoy goes on.
func (a *Agent) supervise(ctx, work context.Context) error {
	s := &supervisor{
		log: a.log, obtain: a.obtain, leave: a.config.Leave,
		drain: func(p *process) { a.drain(context.WithoutCancel(ctx), p) },
		began: a.envoyBegan, ended: a.envoyEnded, stopped: a.envoyStopped, ran: a.relay.Ran, calm: a.envoyCalm,
	}
	if a.config.External {
		s.obtain = a.obtainExternal
	}
	s.run(ctx, work)
	return nil
}

// envoyBegan records what came of an attempt to have an Envoy.
func (a *Agent) envoyBegan(err error) {
	a.figures.running.Store(err == nil)
	if err == nil {
		a.envoy.obtain()
	}
	a.eachStatus(func(s *status) {
		if err != nil {
			s.trouble(aboutStart, err.Error())
		} else {
			s.over(aboutStart)
		}
	})
}

// envoyEnded records that Envoy ended by itself, and its tunnels with it.
func (a *Agent) envoyEnded(reason string, times int) {
	a.figures.running.Store(false)
	a.figures.exits.WithLabelValues().Inc()
	if a.table != nil {
		if err := a.table.Fresh(); err != nil { // tried again before the next Envoy starts
			a.log.Error("tunnels of an Envoy that ended are in the table still", "error", err)
		}
	}
	if !a.replacing.Swap(false) { // else aboutReplaced says why
		a.eachStatus(func(s *status) { s.trouble(aboutEnvoy, fmt.Sprintf("%s, %d times", reason, times)) })
	}
	if a.relay.Crashed() {
		a.log.Error("Envoy crashed again and again with new configuration: it gets the last that was good")
	}
}

// envoyCalm records that Envoy has run for long enough since it ended last.
func (a *Agent) envoyCalm() {
	a.eachStatus(func(s *status) {
		s.over(aboutEnvoy)
		s.over(aboutReplaced)
	})
}

// envoyStopped records that Envoy was stopped.
func (a *Agent) envoyStopped() {
	a.figures.running.Store(false)
	a.relay.Ended()
}

func (a *Agent) eachStatus(do func(*status)) {
	for _, m := range a.memberships() {
		do(m.status)
	}
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
				s.log.Error("Envoy is not running, trying again", "error", err)
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
			s.log.Error("Envoy ended, starting it again", "pid", p.pid, "reason", p.reason, "times", s.ends)
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
func (a *Agent) obtain(ctx context.Context) (*process, error) {
	l, err := prepare(a.config)
	if err != nil {
		return nil, err
	}
	p, same, err := adopt(ctx, a.config.admin(), l)
	switch {
	case err != nil:
		return nil, err
	case same:
		a.log.Info("Envoy runs already, taking it over", "pid", p.pid)
		return p, nil
	case p != nil:
		a.log.Info("stopping an Envoy that was started otherwise", "pid", p.pid)
		a.drain(ctx, p)
		p.stop()
		a.relay.Ended()
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if a.table != nil {
		if err := a.table.Fresh(); err != nil {
			return nil, err
		}
	}
	if p, err = start(l); err != nil {
		return nil, err
	}
	a.log.Info("Envoy started", "pid", p.pid)
	return p, nil
}
