// Package agent runs one Envoy, of a gateway or of an edge. Input: credentials and addresses of the control channel.
// Output: a process that carries tunnels. It obtains identities and keeps them valid, serves them to Envoy by SDS,
// proxies the resources of the xds-servers to Envoy by ADS and caches them, probes the apiservers of an edge, and
// reports. It knows nothing about Kubernetes or the content of Envoy's configuration.
//
// The core is one Envoy, its supervisor, and the Unix socket of Envoy's requests. Memberships are built on it. A
// membership is one enrolment, with its own folder, identity and stream to the xds-server. An edge has one for each
// bootstrap file, a gateway has one. Envoy's bootstrap does not depend on memberships, so a change of one never
// restarts Envoy.
//
// Envoy outlives an agent that dies, and the next agent takes it over: see package envoyproc. This package connects
// the parts of an agent and owns the memberships; the parts specific to an edge or a gateway are in packages edge and
// gateway.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/fairlead/fairlead/internal/heartbeat"
	"github.com/fairlead/fairlead/internal/memory"
	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/internal/version"
	"github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/agent/envoyadmin"
	"github.com/fairlead/fairlead/pkg/agent/gateway"
	"github.com/fairlead/fairlead/pkg/agent/identity"
	"github.com/fairlead/fairlead/pkg/agent/status"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

// Config configures an Agent.
type Config struct {
	Edges   []edge.Config   // the enrolments of an edge; none for a gateway
	Gateway *gateway.Config // nil for an edge
	// Joined returns the enrolment for a bootstrap file that Join put into the state folder; nil: joined tunnels are
	// not supported.
	Joined func(path string) (edge.Config, error)

	StateDir   string // keys and the cache of resources; one agent at a time
	RuntimeDir string // sockets and Envoy's bootstrap; Envoy's working directory; empty: StateDir

	Envoy         string // path or name of the program
	EnvoyLog      string // file for Envoy's log, appended to; empty: the agent's own stderr
	EnvoyLogLevel string // empty: warning
	Concurrency   int    // Envoy's worker threads; 0: one
	// heap size in bytes at which Envoy stops accepting work; 0: the default of envoy.BootstrapConfig, or less if the
	// control group of the agent, which starts Envoy, has less memory
	Memory            uint64
	ClusterStatistics bool // of a gateway's Envoy: see envoy.BootstrapConfig
	// GatewaysPerTunnel is that of the xds-servers; 0: this gateway forwards no clients.
	GatewaysPerTunnel int
	External          bool // another program starts Envoy, in the same RuntimeDir and with BootstrapFile

	DrainTimeout time.Duration // how long open connections may continue after the agent is told to stop
	HealthListen string        // address of /healthz, /readyz and /status; empty: none

	MetricsListen string // address of /metrics; empty or "0": none
	PerCluster    bool   // publish series for each workload cluster too

	// Leave ends the agent without stopping Envoy; nil: never.
	Leave <-chan os.Signal

	adoptTimeout time.Duration     // how long a running Envoy is asked for its identity; 0: 30 s
	turns        *envoyadmin.Turns // of queries for Envoy's statistics; nil before New
}

// cacheFolder is the folder in the state folder that holds the resources of the xds-servers.
const cacheFolder = "cache"

// Agent runs one Envoy.
type Agent struct {
	config  Config
	log     *slog.Logger
	members []*membership // of the configuration
	xds     *xdsproxy.Proxy
	sds     *identity.SecretServer
	claims  claims
	gateway *gateway.Gateway // nil for an edge
	lanes   *edge.Lanes      // nil for a gateway
	renewal edge.Renewal     // of an edge
	nearest *edge.Nearest    // nil for a gateway
	envoy   *status.Health
	figures *figures
	beats   *heartbeat.Monitor

	replacing atomic.Bool   // Envoy was killed because it hung, and has not ended yet
	replace   chan struct{} // see envoyproc.Envoy

	mu     sync.Mutex // guards joined
	joined []*joined  // tunnels of Join
}

// New returns an Agent after it has validated the configuration. It starts nothing. The error names the invalid
// setting.
func New(config Config, log *slog.Logger) (*Agent, error) {
	if err := config.complete(); err != nil {
		return nil, err
	}
	config.turns = envoyadmin.NewTurns()
	a := &Agent{
		config:  config,
		log:     log,
		sds:     identity.NewSecretServer(),
		envoy:   status.NewHealth(),
		figures: newFigures(),
		beats:   heartbeat.New(),
		replace: make(chan struct{}),
	}
	if config.Gateway != nil {
		a.envoy.SetWaiting("the tunnels of other gateways are not queried yet")
	}
	return a, nil
}

func (c Config) path(name string) string { return filepath.Join(c.RuntimeDir, name) }

func (c Config) admin() envoyadmin.Client {
	return envoyadmin.Client{Socket: c.path(envoy.AdminSocket), AdoptTimeout: c.adoptTimeout, Turns: c.turns}
}

// Run obtains identities and runs Envoy until ctx ends; then it drains Envoy, stops it and returns nil. It returns an
// error if a folder is not usable or another agent uses it, if it cannot listen on a socket, or if a capability is
// missing. A running Envoy continues after an error.
func (a *Agent) Run(ctx context.Context) error {
	if err := a.retryWhileFull(ctx, a.config.makeFolders); err != nil {
		return unlessEnded(ctx, err)
	}
	other := a.config.Memory // of Envoy, in the control group of the agent
	if a.config.External {
		other = 0
	}
	memory.Bound(other, a.log)
	_ = heartbeat.Notify("READY=1") // Envoy is served as soon as possible; without systemd, Notify does nothing
	unlock, err := a.config.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := a.retryWhileFull(ctx, a.makeSubfolders); err != nil {
		return unlessEnded(ctx, err)
	}
	if err := a.load(); err != nil {
		return err
	}
	a.log.Info("agent starts", version.Attr())
	var socket net.Listener
	if err := a.retryWhileFull(ctx, func() (err error) {
		socket, err = listenUnix(a.config.path(
			envoy.AgentSocket))
		return err
	}); err != nil {
		return unlessEnded(ctx, err)
	}
	defer socket.Close()
	var health net.Listener
	if a.config.HealthListen != "" {
		if health, err = net.Listen("tcp", a.config.HealthListen); err != nil {
			return fmt.Errorf("listening for health checks: %w", err)
		}
		defer health.Close()
	}
	figures, err := metrics.Listen(a.config.MetricsListen)
	if err != nil {
		return err
	}
	return a.run(ctx, socket, health, figures)
}

// load loads what earlier agents left: identities, and the cache of resources. It must end before Envoy is served.
func (a *Agent) load() (err error) {
	if a.xds, err = xdsproxy.New(filepath.Join(a.config.StateDir, cacheFolder), a.log); err != nil {
		return err
	}
	if a.config.Gateway == nil {
		a.lanes = edge.NewLanes(a.config.path, a.log)
		a.nearest = edge.NewNearest(a.config.path, a.log)
		overrides := xdsproxy.Overrides{a.lanes, &a.renewal, a.nearest}
		if narrowing := edge.NarrowingOf(a.config.Edges); narrowing != nil {
			overrides = append(overrides, narrowing)
		}
		a.xds.SetOverride(overrides)
	} else {
		a.gateway, err = gateway.New(*a.config.Gateway, gateway.Deps{
			XDS: a.xds, Admin: a.config.admin(), Listen: listenUnix, Workers: a.config.Concurrency,
			StateDir: a.config.StateDir, RuntimeDir: a.config.RuntimeDir, Replace: a.replaceForDenial, Log: a.log,
			Forward: a.config.GatewaysPerTunnel > 0, MaxTunnels: a.config.maxTunnels(openFiles()),
		})
		if err != nil {
			return err
		}
	}
	if a.members, err = a.newMembers(); err != nil {
		return err
	}
	var known []xdsproxy.Upstream
	for _, m := range a.members {
		known = append(known, m.recover()...)
	}
	known = append(known, a.loadJoined()...)
	a.xds.Keep(known...)
	if a.nearest != nil {
		a.nearest.Restore(a.xds)
	}
	return nil
}

// run runs all parts until ctx ends and Envoy is stopped, until Leave receives a signal, or until a part fails.
func (a *Agent) run(ctx context.Context, socket, health, figures net.Listener) error {
	// Everything that Envoy needs continues while Envoy drains.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, work := errgroup.WithContext(work)
	group.Go(func() error { return a.serve(work, socket) })
	group.Go(func() error { a.xds.Maintain(work); return nil })
	group.Go(func() error {
		defer stop()
		return a.supervise(ctx, work)
	})
	for _, m := range a.members {
		group.Go(func() error { return m.run(work) })
	}
	group.Go(func() error { a.watchConfiguration(work); return nil })
	group.Go(func() error { a.watchEnvoy(work); return nil })
	group.Go(func() error { return a.beats.Run(work, a.probes()) })
	if a.config.Joined != nil {
		group.Go(func() error { a.followJoined(work); return nil })
	}
	if a.lanes != nil {
		group.Go(func() error { a.lanes.Run(work, a.clients(), a.xds); return nil })
		group.Go(func() error { a.nearest.Run(work, a.xds, a.reportWays); return nil })
	}
	if a.gateway != nil {
		m := a.members[0]
		group.Go(func() error {
			return a.gateway.Run(
				work,
				gateway.Member{Store: m.store, Subject: m.current, Carries: a.obtainedCarries, Await: a.envoy.SetWaiting},
			)
		})
	}
	if health != nil {
		group.Go(func() error { return a.serveHealth(work, health) })
	}
	group.Go(func() error { return metrics.Serve(work, figures, a.gatherer()) })
	err := group.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// reportWays reports which gateways are the nearest.
func (a *Agent) reportWays() {
	ways := a.nearest.Ways()
	for _, m := range a.memberships() {
		m.status.SetWays(ways)
	}
}

// watchConfiguration notifies the memberships when their configuration may have changed.
func (a *Agent) watchConfiguration(ctx context.Context) {
	for {
		for _, m := range a.memberships() {
			m.recordConfiguration()
		}
		select {
		case <-a.xds.Changed():
		case <-ctx.Done():
			return
		}
	}
}

// serve serves Envoy until ctx ends, and closes the listener.
func (a *Agent) serve(ctx context.Context, listener net.Listener) error {
	server := grpc.NewServer(grpc.MaxRecvMsgSize(xdsproxy.MaxRequest))
	a.sds.Register(ctx, server)
	a.xds.Register(server)
	if a.gateway != nil {
		a.gateway.Register(server)
	}
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serving Envoy: %w", err)
	}
	return nil
}

// listenUnix listens on a Unix socket, and replaces the socket of an agent that died. The folder's lock ensures that
// no other agent runs.
func listenUnix(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("removing socket of the previous agent: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listening for Envoy: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("restricting access to socket: %w", err), listener.Close())
	}
	return listener, nil
}
