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
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/watchdog"
)

// watchEnvoy makes the agent unready while its Envoy does not answer, and kills an Envoy that hangs, so that the
// supervisor, or the unit or container of an external Envoy, starts a new one: see package watchdog. It does not
// depend on the supervisor, which waits for an Envoy that hung before the agent started.
func (a *Agent) watchEnvoy(ctx context.Context) {
	admin := a.config.admin()
	probe := watchdog.NewProbe(a.config.path(envoy.LoopSocket), admin.Socket, a.config.Concurrency, admin.Answers)
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
			signals = watchdog.Signals{Main: true} // there is no Envoy, which the supervisor reports
		}
		decision := watch.Observe(time.Now(), signals)
		if decision.Silent != before {
			a.envoyHangs(decision.Silent)
		}
		if decision.Replace {
			a.replaceEnvoy(probe)
		}
		done()
	}
}

// envoyHangs records which parts of Envoy do not answer; empty: all answer again.
func (a *Agent) envoyHangs(silent string) {
	a.envoy.SetSilent(silent)
	if silent == "" {
		a.log.Info("Envoy answers again")
		a.eachStatus(func(s *status.Status) { s.ClearTrouble(model.TroubleHang) })
		return
	}
	a.log.Error("Envoy hangs", "silent", silent)
	a.eachStatus(func(s *status.Status) { s.SetTrouble(model.TroubleHang, "no answer from "+silent) })
}

// replacedFile is written when a hanging Envoy is replaced. Its time is the time of the replacement, which the next
// agent reads.
const replacedFile = "envoy-replaced"

// lastReplaced returns when this agent or an earlier one last replaced a hanging Envoy; zero: never.
func (a *Agent) lastReplaced() time.Time {
	info, err := os.Stat(a.config.path(replacedFile))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// replaceEnvoy kills a hanging Envoy.
func (a *Agent) replaceEnvoy(probe *watchdog.Probe) {
	pid, err := probe.Kill()
	switch {
	case errors.Is(err, watchdog.ErrUnknownProcess):
		a.log.Error(
			"cannot kill hanging Envoy: its process is not visible here: restart its container, or let it share a process "+
				"namespace with the agent",
			"error",
			err,
		)
	case err != nil:
		a.log.Error("cannot kill hanging Envoy", "pid", pid, "error", err)
	default:
		// Recorded under its own name: the new Envoy answers within a second, and clears the other record before it is
		// reported.
		_, silent := a.envoy.State()
		a.replacing.Store(true)
		if err := disk.Replace(a.config.path(replacedFile), nil); err != nil {
			a.log.Warn("cannot persist the time of the replacement: the next agent may replace Envoy sooner", "error", err)
		}
		a.eachStatus(func(s *status.Status) { s.SetTrouble(model.TroubleReplaced, "there was no answer from "+silent) })
		a.figures.replaced.WithLabelValues().Inc()
		a.log.Error("killed hanging Envoy: a new one starts", "pid", pid)
	}
}
