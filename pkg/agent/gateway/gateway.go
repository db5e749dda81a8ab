// Package gateway is what is particular to a gateway. In go resources from the xds-server and Envoy's records of tunnels; out come
// decisions: which connections and tunnels Envoy accepts, which workload clusters are dark, which limits hold, and from when on
// the gateway takes clients. It knows neither the process of Envoy nor how its identity is got.
package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/pkg/agent/envoyadmin"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	reportagent "github.com/fairlead/fairlead/pkg/report/agent"
	"github.com/fairlead/fairlead/pkg/sockets"
	"github.com/fairlead/fairlead/pkg/tunnels"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

// Deps are what the parts of a gateway stand on. All are needed.
type Deps struct {
	XDS        *xdsproxy.Proxy
	Admin      envoyadmin.Client                       // of the gateway's Envoy
	Listen     func(path string) (net.Listener, error) // on a Unix socket for Envoy
	StateDir   string
	RuntimeDir string // where Envoy runs
	Workers    int    // threads of Envoy
	Log        *slog.Logger
}

// Member is what a gateway that waits needs to know of its membership. All are needed.
type Member struct {
	Store   *certs.Store                    // of its identity
	Subject func() (model.Subject, error)   // whose identity that is
	Carries func(ctx context.Context) error // nil: Envoy carries tunnels
	Await   func(what string)               // for what the gateway waits; empty: for nothing any more
}

// Gateway are what the agent of a gateway does beside running Envoy: they know its tunnels, decide what Envoy accepts, tell
// clients of workload clusters without a tunnel so, and decide from when on it takes clients.
type Gateway struct {
	config     *Config
	deps       Deps
	Table      *tunnels.Table
	tenants    *tenants
	admissions *admissions
}

// New makes the parts, and has the xDS proxy ask them in which form Envoy is to have resources. It must be called before Envoy is
// served. The error is that of a right which is missing.
func New(g Config, deps Deps) (*Gateway, error) {
	table, err := newTable(deps, g)
	if err != nil {
		return nil, err
	}
	p := &Gateway{config: &g, deps: deps, Table: table, tenants: newTenants(deps.XDS, table, deps.Admin, deps.Log)}
	p.admissions = newAdmissions(g, deps, p.tenants, table)
	deps.XDS.SetOverride(p.admissions)
	return p, nil
}

// Register adds the services by which Envoy asks whether to accept a connection.
func (g *Gateway) Register(server *grpc.Server) { g.admissions.server().Register(server) }

// EmitAdmissions publishes what the gateway has admitted and refused.
func (g *Gateway) EmitAdmissions(emit metrics.Emit) { g.admissions.look(emit) }

// Role is the membership of the gateway. takes is for reportagent.SendGateway.
func (g *Gateway) Role(takes func() (reportagent.GatewayState, <-chan struct{})) *Role {
	return &Role{Config: *g.config, table: g.Table, takes: takes, log: g.deps.Log}
}

// Run keeps all parts going until ctx ends.
func (g *Gateway) Run(ctx context.Context, m Member) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return g.Table.Run(ctx) })
	group.Go(func() error { g.tenants.run(ctx, g.config.Domain); return nil })
	group.Go(func() error {
		asked := &askedServers{gateway: g.config, store: m.Store}
		defer asked.close()
		g.tenants.askOthers(ctx, g.config.Domain, asked.ask)
		return nil
	})
	group.Go(func() error { g.admissions.run(ctx); return nil })
	group.Go(func() error { return g.sayNo(ctx) })
	group.Go(func() error { g.awaitPeers(ctx, m); return nil })
	return group.Wait()
}

// newTable makes the table of live tunnels. To cut a tunnel takes the right to destroy sockets: a gateway without it would
// leave revoked edges connected, so it does not start.
func newTable(c Deps, g Config) (*tunnels.Table, error) {
	if err := sockets.Permitted(); err != nil {
		return nil, fmt.Errorf("checking rights: a gateway closes the tunnels of revoked edges, for which it needs CAP_NET_ADMIN "+
			"(systemd: AmbientCapabilities=CAP_NET_ADMIN; Kubernetes: capabilities add NET_ADMIN, and the program has the file capability where it does not run as root): %w", err)
	}
	return tunnels.New(tunnels.Config{
		Domain:  g.Domain,
		Log:     filepath.Join(c.RuntimeDir, envoy.TunnelLog),
		Reopen:  func(ctx context.Context) error { return c.Admin.Post(ctx, "/reopen_logs") },
		Workers: c.Workers,
		Public:  g.Bind.PublicAddress(),
		Writes:  c.writes,
		Logger:  c.Log,
	}), nil
}
