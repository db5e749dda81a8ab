// Package envoyproc keeps one process of Envoy running. In go a Config, and the contexts in which to run it; out come Events. It
// writes the bootstrap, starts Envoy or takes over one that runs, starts it again when it ends, and has it drain before it stops
// it. It knows neither identities nor resources: Envoy asks for those on the agent's socket.
package envoyproc

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"github.com/fairlead/fairlead/pkg/agent/envoyadmin"
)

// Config is what an Envoy is started with, and how it ends.
type Config struct {
	Dir               string // sockets and bootstrap; the folder in which Envoy runs
	Program           string
	Log               string // file to which Envoy's log is appended; empty: the stderr of this process
	LogLevel          string
	Concurrency       int    // worker threads
	Memory            uint64 // bytes of heap at which Envoy stops taking more; 0: the default of envoy.BootstrapConfig
	ClusterStatistics bool   // see envoy.BootstrapConfig
	External          bool   // something else starts Envoy, in Dir and with BootstrapFileName

	Gateway      bool             // the bootstrap of a gateway, and not that of an edge
	Clients      []netip.AddrPort // where clients of a gateway connect; their idle connections are closed at the end
	DrainTimeout time.Duration    // how long open connections may go on before Envoy is stopped
}

// Events are what the supervision of an Envoy reports. All must be set. None may block for long: Envoy is not looked after
// meanwhile.
type Events struct {
	Starting func() error                   // before a new process; an error keeps it from starting
	Began    func(err error)                // an attempt to have an Envoy; nil: it runs
	Ended    func(reason string, times int) // by itself, so many times since the last Calm
	Stopped  func()                         // by us, while it was alive
	Ran      func()                         // for long enough that its configuration is good
	Calm     func()                         // for a minute since it began
	Draining func(draining bool)            // it takes nothing new any more; false: that is over
}

// Envoy is one Envoy: the process that runs in a folder, whichever agent started it.
type Envoy struct {
	Config Config
	Admin  envoyadmin.Client
	Events Events
	Log    *slog.Logger
}

// Supervise keeps Envoy running until ctx ends, and stops it then, in peace. When work ends, or leave says so, Envoy goes on.
func (e *Envoy) Supervise(ctx, work context.Context, leave <-chan os.Signal) {
	s := &supervisor{
		log: e.Log, obtain: e.obtain, leave: leave,
		drain: func(p *process) { e.drain(context.WithoutCancel(ctx), p) },
		began: e.Events.Began, ended: e.Events.Ended, stopped: e.Events.Stopped, ran: e.Events.Ran, calm: e.Events.Calm,
	}
	if e.Config.External {
		s.obtain = e.obtainExternal
	}
	s.run(ctx, work)
}
