// Package agent runs one Envoy, a gateway's or an edge's. In go credentials and addresses of the control channel, out comes a
// process that carries tunnels. It gets identities and keeps them valid, serves them to Envoy by SDS, passes on by ADS what
// the xds-servers send and keeps it for times without them, looks at the apiservers of an edge, and reports. It knows nothing
// of Kubernetes, nor of what is in Envoy's configuration.
//
// The core is one Envoy, its supervisor, and the Unix socket on which Envoy asks. On it stand memberships: one enrolment
// each, with a folder, an identity and a stream to the xds-server of its own. An edge has as many as it has bootstrap files,
// a gateway one. Envoy's bootstrap depends on none of them, so nothing that happens to one restarts Envoy.
//
// Envoy outlives an agent that dies, and the next agent takes it over: see package envoyproc. This package joins the parts of an
// agent, and has the memberships; what is particular to an edge or a gateway is in packages edge and gateway.
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
	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/agent/envoyadmin"
	"github.com/fairlead/fairlead/pkg/agent/gateway"
	"github.com/fairlead/fairlead/pkg/agent/identity"
	"github.com/fairlead/fairlead/pkg/agent/status"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

// Config is what an Agent stands on.
type Config struct {
	Edges   []edge.Config   // the enrolments of an edge; none for a gateway
	Gateway *gateway.Config // nil for an edge
	// Joined makes an enrolment of a bootstrap file that was put into the state folder by Join; nil: none is looked for.
	Joined func(path string) (edge.Config, error)

	StateDir   string // keys and what the xds-servers sent; one agent at a time
	RuntimeDir string // sockets and Envoy's bootstrap, where Envoy runs; empty: StateDir

	Envoy             string // the program
	EnvoyLog          string // the file to which Envoy's log is appended; empty: the agent's own stderr
	EnvoyLogLevel     string // empty: warning
	Concurrency       int    // Envoy's worker threads; 0: one
	Memory            uint64 // bytes of heap at which Envoy stops taking more; 0: the default of envoy.BootstrapConfig
	ClusterStatistics bool   // of a gateway's Envoy: see envoy.BootstrapConfig
	External          bool   // somebody else starts Envoy, in the same RuntimeDir and with BootstrapFile

	DrainTimeout time.Duration // how long open connections may go on when the agent is told to stop
	HealthListen string        // address of /healthz, /readyz and /status; empty: none

	MetricsListen string // address of /metrics; empty or "0": none
	PerCluster    bool   // publish series for each workload cluster too

	// Leave ends the agent and leaves Envoy to the next one; nil: nothing does.
	Leave <-chan os.Signal

	adoptTimeout time.Duration // for how long an Envoy that runs is asked what it is; 0: 30 s
}

// cacheFolder holds what the xds-servers sent, in the state folder.
const cacheFolder = "cache"

// Agent runs one Envoy.
type Agent struct {
	config  Config
	log     *slog.Logger
	members []*membership // those of the configuration
	xds     *xdsproxy.Proxy
	sds     *identity.SecretServer
	gateway *gateway.Gateway // nil for an edge
	envoy   *status.Health
	figures *figures
	beats   *heartbeat.Monitor

	replacing atomic.Bool // Envoy was killed because it hung, and has not ended yet

	mu     sync.Mutex // guards which there are of
	joined []*joined  // those of Join
}

// New checks what can be checked before anything starts. The error names the setting that is at fault.
func New(config Config, log *slog.Logger) (*Agent, error) {
	if err := config.complete(); err != nil {
		return nil, err
	}
	a := &Agent{config: config, log: log, sds: identity.NewSecretServer(), envoy: status.NewHealth(), figures: newFigures(), beats: heartbeat.New()}
	if config.Gateway != nil {
		a.envoy.SetWaiting("the tunnels of other gateways are not queried yet")
	}
	return a, nil
}

func (c Config) path(name string) string { return filepath.Join(c.RuntimeDir, name) }

func (c Config) admin() envoyadmin.Client {
	return envoyadmin.Client{Socket: c.path(envoy.AdminSocket), AdoptTimeout: c.adoptTimeout}
}

// Run gets identities, runs Envoy and keeps all going until ctx ends; then it has Envoy finish what is open, stops it and
// returns nil. It returns an error if a folder is not usable or another agent uses it, if a socket can't be listened on, or
// if a right is missing; an Envoy that runs then goes on.
func (a *Agent) Run(ctx context.Context) error {
	if err := a.whenRoom(ctx, a.config.makeFolders); err != nil {
		return unlessEnded(ctx, err)
	}
	_ = heartbeat.Notify("READY=1") // it serves Envoy as soon as it can; without systemd there is no socket
	unlock, err := a.config.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := a.whenRoom(ctx, a.makeSubfolders); err != nil {
		return unlessEnded(ctx, err)
	}
	if err := a.load(); err != nil {
		return err
	}
	var socket net.Listener
	if err := a.whenRoom(ctx, func() (err error) { socket, err = listenUnix(a.config.path(envoy.AgentSocket)); return err }); err != nil {
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

// load reads what earlier agents left: identities, and what Envoy had. Envoy must not ask before.
func (a *Agent) load() (err error) {
	if a.xds, err = xdsproxy.New(filepath.Join(a.config.StateDir, cacheFolder), a.log); err != nil {
		return err
	}
	if a.config.Gateway != nil {
		a.gateway, err = gateway.New(*a.config.Gateway, gateway.Deps{
			XDS: a.xds, Admin: a.config.admin(), Listen: listenUnix, Workers: a.config.Concurrency,
			StateDir: a.config.StateDir, RuntimeDir: a.config.RuntimeDir, Log: a.log,
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
	return nil
}

// run keeps everything going until ctx ends and Envoy has ended after it, or Leave says so, or something fails.
func (a *Agent) run(ctx context.Context, socket, health, figures net.Listener) error {
	// What Envoy needs goes on while it finishes what is open.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, work := errgroup.WithContext(work)
	group.Go(func() error { return a.serve(work, socket) })
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
	if a.gateway != nil {
		m := a.members[0]
		group.Go(func() error {
			return a.gateway.Run(work, gateway.Member{Store: m.store, Subject: m.current, Carries: a.carries, Await: a.envoy.SetWaiting})
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

// watchConfiguration tells the memberships when something about their configuration may have changed.
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

// serve answers Envoy until ctx ends, and closes the listener.
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

// listenUnix takes over the socket of an agent that died: the lock says that none runs.
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
