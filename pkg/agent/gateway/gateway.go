// Package gateway is the part of an agent that is specific to a gateway. Input: resources from the xds-server and
// Envoy's records of tunnels. Output: decisions on which connections and tunnels Envoy accepts, which workload
// clusters are unreachable, which limits apply, and when the gateway begins to accept clients. It knows neither
// Envoy's process nor how its identity is obtained.
package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/pkg/agent/envoyadmin"
	"github.com/fairlead/fairlead/pkg/agent/trips"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/model"
	reportagent "github.com/fairlead/fairlead/pkg/report/agent"
	"github.com/fairlead/fairlead/pkg/sockets"
	"github.com/fairlead/fairlead/pkg/tunnels"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

// denialsFile holds what is denied, in the state folder: like Envoy's configuration, it outlives a restart of the
// machine.
const denialsFile = "denials.json"

// Deps are the dependencies of a gateway. All are required.
type Deps struct {
	XDS        *xdsproxy.Proxy
	Admin      envoyadmin.Client                       // of the gateway's Envoy
	Listen     func(path string) (net.Listener, error) // on a Unix socket for Envoy
	StateDir   string
	RuntimeDir string // where Envoy runs
	Workers    int    // threads of Envoy
	MaxTunnels int    // limit of the reverse tunnels of all edges
	Forward    bool   // the gateways forward clients to each other
	// Replace has the running Envoy replaced, and returns at once; false means that there is none. It is used only with
	// Config.WithoutNetAdmin.
	Replace func() bool
	Log     *slog.Logger
}

// Member is the membership of a gateway, as required to wait for its readiness. All fields are required.
type Member struct {
	Store   *certs.Store                    // of its identity
	Subject func() (model.Subject, error)   // the subject of that identity
	Carries func(ctx context.Context) error // returns nil if the Envoy that the agent will not replace carries tunnels
	Await   func(what string)               // called with what the gateway waits for; empty: it no longer waits
}

// Gateway is the part of a gateway's agent besides running Envoy. It maintains the table of tunnels, decides what
// Envoy accepts, rejects clients of unreachable workload clusters, and decides when the gateway begins to accept
// clients.
type Gateway struct {
	config     *Config
	deps       Deps
	Table      *tunnels.Table
	tenants    *reachability
	admissions *admissions
	// Durations are the metrics of the gateway that have buckets.
	Durations *metrics.Set
}

// New returns a Gateway and registers it as the override of the xDS proxy. It must be called before Envoy is served.
// It returns an error if a capability is missing.
func New(g Config, deps Deps) (*Gateway, error) {
	durations := &metrics.Set{}
	p := &Gateway{config: &g, deps: deps, Durations: durations}
	request := func(r tunnels.Placed) { p.admissions.requested(r) }
	table, err := newTable(deps, g, observer(durations, "fairlead_gateway_cut_seconds"), request)
	if err != nil {
		return nil, err
	}
	meter := trips.New(filepath.Join(deps.StateDir, tripsFile), deps.Log)
	p.Table, p.tenants = table, newReachability(deps.XDS, table, deps.Admin, meter, deps.Log)
	if deps.Forward {
		p.tenants.forwards.me, p.tenants.forwards.domain = g.Name, g.Domain
	}
	p.tenants.outages.ended = observer(durations, "fairlead_gateway_outage_seconds")
	p.admissions = newAdmissions(g, deps, p.tenants, table)
	p.tenants.restore()
	deps.XDS.SetOverride(p.admissions)
	return p, nil
}

// Register registers the services that Envoy queries before it accepts a connection.
func (g *Gateway) Register(server *grpc.Server) { g.admissions.server().Register(server) }

// EmitAdmissions emits the metrics of admitted and rejected connections and tunnels.
func (g *Gateway) EmitAdmissions(emit metrics.Emit) { g.admissions.collect(emit) }

// Role returns the role of the gateway's membership. takes is for reportagent.SendGateway.
func (g *Gateway) Role(takes func() (reportagent.GatewayState, <-chan struct{})) *Role {
	return &Role{
		Config: *g.config, table: g.Table, follow: g.admissions.follow, gatewayState: takes, ways: g.tenants.ways,
		log: g.deps.Log,
	}
}

// Run runs all parts until ctx ends.
func (g *Gateway) Run(ctx context.Context, m Member) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return g.Table.Run(ctx) })
	group.Go(func() error { g.tenants.run(ctx, g.config.Domain); return nil })
	group.Go(func() error {
		asked := &peerServers{gateway: g.config, store: m.Store}
		defer asked.close()
		g.tenants.askOthers(ctx, g.config.Domain, asked.ask)
		return nil
	})
	group.Go(func() error {
		g.tenants.measure(ctx)
		return nil
	})
	group.Go(func() error { g.admissions.run(ctx); return nil })
	group.Go(func() error { g.admissions.followRelays(ctx); return nil })
	group.Go(func() error { return g.rejectUnreachable(ctx) })
	group.Go(func() error { g.awaitPeers(ctx, m); return nil })
	return group.Wait()
}

// newTable returns the table of live tunnels. To close a tunnel requires the capability to destroy sockets: a gateway
// without it would leave revoked edges connected, so it does not start, unless it may replace its Envoy.
func newTable(c Deps, g Config, cut func(time.Duration), request func(tunnels.Placed)) (*tunnels.Table, error) {
	replace := c.Replace
	if !g.WithoutNetAdmin {
		replace = nil
		if err := sockets.Permitted(); err != nil {
			return nil, fmt.Errorf(
				"checking rights: a gateway closes the tunnels of revoked edges, for which it needs CAP_NET_ADMIN "+
					"(systemd: AmbientCapabilities=CAP_NET_ADMIN; Kubernetes: capabilities add NET_ADMIN, and the program has the "+
					"file capability where it does not run as root; where it is not permitted: --net-admin=false): %w",
				err,
			)
		}
	}
	var pid func() (int, error)
	if g.ProxyProtocol.Enabled() {
		pid = c.Admin.PID
	}
	return tunnels.New(tunnels.Config{
		Envoy:   pid,
		Domain:  g.Domain,
		Log:     filepath.Join(c.RuntimeDir, record.TunnelLog),
		Denials: filepath.Join(c.StateDir, denialsFile),
		Reopen:  func(ctx context.Context) error { return c.Admin.Post(ctx, "/reopen_logs") },
		Workers: c.Workers,
		Public:  g.Bind.PublicAddress(),
		Writes:  c.writes,
		Cut:     cut,
		Request: request,
		Replace: replace,
		Logger:  c.Log,
	}), nil
}
