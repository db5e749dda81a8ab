// Package envoyproc keeps one Envoy process running. Input: a Config and contexts. Output: Events. It writes the
// bootstrap, starts Envoy or takes over a running one, restarts it when it ends, and drains it before it stops it. It
// knows neither identities nor resources: Envoy requests these on the agent's socket.
package envoyproc

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"github.com/fairlead/fairlead/pkg/agent/envoyadmin"
)

// Config configures how Envoy is started and stopped.
type Config struct {
	Dir         string // sockets and bootstrap; Envoy's working directory
	Program     string
	Log         string // file for Envoy's log, appended to; empty: the stderr of this process
	LogLevel    string
	Concurrency int // worker threads
	// heap size in bytes at which Envoy stops accepting work; 0: the default of envoy.BootstrapConfig
	Memory            uint64
	ClusterStatistics bool // see envoy.BootstrapConfig
	External          bool // another program starts Envoy, in Dir and with BootstrapFileName

	Gateway bool // use the bootstrap of a gateway instead of an edge's
	// addresses where clients of a gateway connect; idle connections are closed during a drain
	Clients []netip.AddrPort
	// WithoutNetAdmin leaves idle connections of clients open during a drain, because closing them requires a capability.
	WithoutNetAdmin bool
	// Proxied means that load balancers name the sources of connections. The records of an Envoy have other addresses
	// then, so a change replaces Envoy.
	Proxied      bool
	DrainTimeout time.Duration // how long open connections may continue before Envoy is stopped
}

// Events are callbacks of the supervision. All must be set. They must not block for long, because Envoy is not
// supervised meanwhile.
type Events struct {
	Starting func() error                   // before a new process starts; an error prevents that
	Began    func(err error)                // after an attempt to start or take over Envoy; nil: it runs
	Ended    func(reason string, times int) // Envoy ended unexpectedly; times counts the ends since the last Stable
	Stopped  func()                         // the supervisor stopped a running Envoy
	Ran      func()                         // Envoy has run long enough to prove its configuration good
	Stable   func()                         // Envoy has run for a minute
	Draining func(draining bool)            // Envoy accepts no new work; false: the drain is over
}

// Envoy is the one Envoy of a folder, whichever agent started its process.
type Envoy struct {
	Config Config
	Admin  envoyadmin.Client
	Events Events
	// Replace has the running Envoy stopped at once, and a new one started unless the supervision ends; nil: never. The
	// supervisor receives from it only while Envoy runs.
	Replace <-chan struct{}
	Log     *slog.Logger
}

// Supervise keeps Envoy running until ctx ends, and then drains and stops it. When work ends, or leave receives a
// signal, it returns and Envoy continues.
func (e *Envoy) Supervise(ctx, work context.Context, leave <-chan os.Signal) {
	s := &supervisor{
		log: e.Log, obtain: e.obtain, leave: leave, replace: e.Replace,
		drain: func(p *process) { e.drain(context.WithoutCancel(ctx), p) },
		began: e.Events.Began, ended: e.Events.Ended, stopped: e.Events.Stopped, ran: e.Events.Ran, stable: e.Events.Stable,
	}
	if e.Config.External {
		s.obtain = e.obtainExternal
	}
	s.run(ctx, work)
}
