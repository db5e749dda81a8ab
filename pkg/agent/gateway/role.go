package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/dial"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/policy"
	"github.com/fairlead/fairlead/pkg/model"
	reportagent "github.com/fairlead/fairlead/pkg/report/agent"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/pkg/tunnels"
)

// Config is the enrolment of a gateway.
type Config struct {
	Domain model.TunnelDomain
	Name   string       // gateway-<i>
	Dialer *dial.Dialer // to the xds-server
	// Servers is a name that resolves to the addresses of all xds-servers, and their port. They are queried for the
	// tunnels of other gateways.
	Servers model.Endpoint
	// ReadyDeadline is how long a configured gateway waits, at most, for tunnels of all edges that other gateways have,
	// before it accepts clients.
	ReadyDeadline time.Duration
	Bind          envoy.GatewayBind
	// MaxEdges is the number of edges of one tunnel id that may have tunnels to this gateway; 0:
	// admission.DefaultMaxEdges.
	MaxEdges int
	// WithoutNetAdmin has the gateway close tunnels of revoked edges by a replacement of its Envoy. Otherwise it closes
	// single connections, for which it needs the capability NET_ADMIN.
	WithoutNetAdmin bool
	// ProxyProtocol has the gateway require PROXY headers. Without Gateways in it, these are the addresses at which this
	// gateway reaches the others.
	ProxyProtocol envoy.ProxyProtocol
	// Credential returns what the gateway enrols with, and the CA (PEM) of the control channel.
	Credential func() (credential enrolclient.GatewayCredential, ca []byte, err error)
}

// Role implements the role of a gateway.
type Role struct {
	Config
	table        *tunnels.Table
	follow       func(rate, lanes int)                              // called with each public listener
	gatewayState func() (reportagent.GatewayState, <-chan struct{}) // see reportagent.SendGateway
	ways         func() (zone string, to []*reportv1.Way)           // as gatewayState
	log          *slog.Logger
}

// Enrol implements identity.Role.
func (g *Role) Enrol(ctx context.Context) (certs.Identity, []byte, error) {
	credential, ca, err := g.Credential()
	if err != nil {
		return certs.Identity{}, nil, err
	}
	return enrolclient.Client{
		Dialer: g.Dialer,
		Domain: g.Domain,
		Trust:  certs.Bundle(ca),
	}.EnrolGateway(ctx, g.Name, credential)
}

// Cure implements identity.Role.
func (*Role) Cure() string {
	return "give the gateway the current token, from the Secret fairlead-gateway-bootstrap or from its ServiceAccount: " +
		"it is read at each attempt"
}

// Expected implements identity.Role.
func (g *Role) Expected() (id string, ca []byte, err error) {
	_, ca, err = g.Credential()
	return "", ca, err
}

// Control implements identity.Role.
func (g *Role) Control() (model.TunnelDomain, *dial.Dialer) { return g.Domain, g.Dialer }

// Owns implements identity.Role.
func (g *Role) Owns(subject model.Subject) error {
	if subject.Role != model.RoleGateway || subject.Node != g.Name {
		return fmt.Errorf("using identity of %s: the certificate belongs to the %s %s", g.Name, subject.Role, subject.Node)
	}
	return nil
}

// Node implements the role of an agent.
func (g *Role) Node(subject model.Subject) *corev3.Node {
	bind := g.Bind
	bind.Version = envoy.Current
	return &corev3.Node{Id: subject.NodeID(), Cluster: string(model.RoleGateway), Metadata: bind.Metadata()}
}

// Check implements the role of an agent.
func (g *Role) Check(subject model.Subject) func(string, *anypb.Any) error {
	allowed := policy.Of(policy.Scope{Domain: g.Domain, Subject: subject, Listens: g.Bind})
	return func(_ string, resource *anypb.Any) error {
		if err := allowed.Check(resource); err != nil {
			return err
		}
		if err := envoy.RecordsOwners(resource); err != nil {
			return err
		}
		rate, lanes, isPublic := envoy.PublicLimits(resource)
		if g.table != nil && isPublic {
			g.table.Unrecorded("") // an earlier agent accepted listeners without records
		}
		if g.follow != nil && isPublic {
			g.follow(rate, lanes)
		}
		return nil
	}
}

// Over implements the role of an agent.
func (*Role) Over() {}

// Report implements the role of an agent.
func (g *Role) Report(ctx context.Context, conn grpc.ClientConnInterface, dump reportagent.Dump) error {
	return reportagent.SendGateway(
		ctx, conn, reportagent.GatewaySource{Table: g.table, State: g.gatewayState, Ways: g.ways, Dump: dump}, g.log,
	)
}

// fileStats matches the counters of what Envoy has written to files.
const fileStats = `^filesystem\.(write_failed|reopen_failed|write_total_buffered)$`

// writes returns how much of its logs Envoy has written.
func (c Deps) writes(ctx context.Context) (w tunnels.Writes, err error) {
	stats, err := c.Admin.Sums(ctx, fileStats)
	w.Failed = stats["envoy_filesystem_write_failed"] + stats["envoy_filesystem_reopen_failed"]
	w.Buffered = stats["envoy_filesystem_write_total_buffered"]
	return w, err
}
