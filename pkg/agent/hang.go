package agent

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/internal/heartbeat"
	"github.com/fairlead/fairlead/pkg/agent/status"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/watchdog"
)

// watchEnvoy has the agent unready while its Envoy does not answer, and kills an Envoy that hangs, so that the supervisor, or
// for an external Envoy its unit or container, starts a new one: see package watchdog. It does not depend on the supervisor,
// which waits for an Envoy that hung before the agent started.
func (a *Agent) watchEnvoy(ctx context.Context) {
	probe := watchdog.NewProbe(a.config.path(envoy.LoopSocket), a.config.Concurrency, a.config.admin().Answers)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		probe.Run(ctx)
	}()
	defer func() { <-ended }()
	observer, watch := probe.Observer(), watchdog.NewWatch(a.lastReplaced(), time.Now())
	again := time.NewTicker(watchdog.Interval)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
		done := a.beats.Begin("watching Envoy", heartbeat.Limit)
		signals := observer.Signals()
		var before string
		signals.Drains, before = a.envoy.State()
		if !a.figures.running.Load() && !probe.Running() {
			signals = watchdog.Signals{Main: true} // there is no Envoy, which the supervisor says
		}
		verdict := watch.Observe(time.Now(), signals)
		if verdict.Silent != before {
			a.envoyHangs(verdict.Silent)
		}
		if verdict.Replace {
			a.replaceEnvoy(probe)
		}
		done()
	}
}

// envoyHangs records which parts of Envoy do not answer; empty: all do again.
func (a *Agent) envoyHangs(silent string) {
	a.envoy.SetSilent(silent)
	if silent == "" {
		a.log.Info("Envoy answers again")
		a.eachStatus(func(s *status.Status) { s.ClearTrouble(status.AboutHang) })
		return
	}
	a.log.Error("Envoy hangs", "silent", silent)
	a.eachStatus(func(s *status.Status) { s.SetTrouble(status.AboutHang, "no answer from "+silent) })
}

// replacedFile is written when Envoy is replaced because it hangs, so that the next agent knows when that was.
const replacedFile = "envoy-replaced"

// lastReplaced is when this agent, or one before it, replaced an Envoy that hung; zero: never.
func (a *Agent) lastReplaced() time.Time {
	info, err := os.Stat(a.config.path(replacedFile))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// replaceEnvoy kills an Envoy that hangs.
func (a *Agent) replaceEnvoy(probe *watchdog.Probe) {
	pid, err := probe.Kill()
	switch {
	case errors.Is(err, watchdog.ErrUnknownProcess):
		a.log.Error("cannot kill hanging Envoy: its process is not visible here: restart its container, or let it share a process namespace with the agent", "error", err)
	case err != nil:
		a.log.Error("cannot kill hanging Envoy", "pid", pid, "error", err)
	default:
		// Recorded under a name of its own: the new Envoy answers within a second, and the reason would be gone before anything reads it.
		_, silent := a.envoy.State()
		a.replacing.Store(true)
		if err := disk.Replace(a.config.path(replacedFile), nil); err != nil {
			a.log.Warn("cannot persist the time of the replacement: the next agent may replace Envoy sooner", "error", err)
		}
		a.eachStatus(func(s *status.Status) { s.SetTrouble(status.AboutReplaced, "there was no answer from "+silent) })
		a.figures.replaced.WithLabelValues().Inc()
		a.log.Error("killed hanging Envoy: a new one starts", "pid", pid)
	}
}
