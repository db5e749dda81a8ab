package agent

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/version"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/policy"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/report"
	"github.com/fairlead/fairlead/pkg/tunnels"
)

// Gateway is the enrolment beside the management cluster.
type Gateway struct {
	Domain model.TunnelDomain
	Name   string    // gateway-<i>
	Way    *dial.Way // to the xds-server
	// Servers is a name that has the address of every xds-server, and their port. They are asked what tunnels other gateways have.
	Servers model.Endpoint
	// ReadyDeadline is how long a gateway that has its configuration waits, at most, for tunnels of all edges of which others
	// have some, before it takes clients.
	ReadyDeadline time.Duration
	Bind          envoy.GatewayBind
	// MaxEdges is of how many edges one tunnel id may have tunnels to this gateway; 0: admission.DefaultMaxEdges.
	MaxEdges int
	// Credential reads what the gateway enrols with, and the CA (PEM) of the control channel.
	Credential func() (credential enrol.GatewayCredential, ca []byte, err error)
}

// gatewayRole is a Gateway at work.
type gatewayRole struct {
	Gateway
	table *tunnels.Table
	takes func() (report.GatewayState, <-chan struct{}) // see report.SendGateway
	log   *slog.Logger
}

// enrol implements role.
func (g *gatewayRole) enrol(ctx context.Context) (certs.Identity, []byte, error) {
	credential, ca, err := g.Credential()
	if err != nil {
		return certs.Identity{}, nil, err
	}
	return enrol.Client{Way: g.Way, Domain: g.Domain, Trust: certs.Bundle(ca)}.EnrolGateway(ctx, g.Name, credential)
}

// cure implements role.
func (*gatewayRole) cure() string {
	return "give the gateway the present token, of the Secret fairlead-gateway-bootstrap or of its ServiceAccount: it is read at each attempt"
}

// expected implements role.
func (g *gatewayRole) expected() (id string, ca []byte, err error) {
	_, ca, err = g.Credential()
	return "", ca, err
}

// control implements role.
func (g *gatewayRole) control() (model.TunnelDomain, *dial.Way) { return g.Domain, g.Way }

// owns implements role.
func (g *gatewayRole) owns(subject model.Subject) error {
	if subject.Role != model.RoleGateway || subject.Node != g.Name {
		return fmt.Errorf("using identity of %s: the certificate is that of the %s %s", g.Name, subject.Role, subject.Node)
	}
	return nil
}

// node implements role.
func (g *gatewayRole) node(subject model.Subject) *corev3.Node {
	bind := g.Bind
	bind.Version = envoy.Current
	return withVersion(&corev3.Node{Id: subject.NodeID(), Cluster: string(model.RoleGateway), Metadata: bind.Metadata()})
}

// withVersion adds which build this is, for people who ask an xds-server; what is rendered for is in the metadata.
func withVersion(node *corev3.Node) *corev3.Node {
	node.UserAgentName = "fairlead"
	node.UserAgentVersionType = &corev3.Node_UserAgentVersion{UserAgentVersion: version.Get()}
	return node
}

// check implements role.
func (g *gatewayRole) check(subject model.Subject) func(string, *anypb.Any) error {
	allowed := policy.Of(policy.Scope{Domain: g.Domain, Subject: subject, Listens: g.Bind})
	return func(_ string, resource *anypb.Any) error {
		if err := allowed.Check(resource); err != nil {
			return err
		}
		if err := envoy.RecordsOwners(resource); err != nil {
			return err
		}
		if g.table != nil && envoy.IsPublicListener(resource) {
			g.table.Unrecorded("") // an agent of before took listeners without records
		}
		return nil
	}
}

// over implements role.
func (*gatewayRole) over() {}

// report implements role.
func (g *gatewayRole) report(ctx context.Context, conn grpc.ClientConnInterface, dump report.Dump) error {
	return report.SendGateway(ctx, conn, g.table, g.takes, dump, g.log)
}

// newTable makes the table of live tunnels. To cut a tunnel takes the right to destroy sockets: a gateway without it would
// leave revoked edges connected, so it does not start.
func (a *Agent) newTable() (*tunnels.Table, error) {
	if err := tunnels.Permitted(); err != nil {
		return nil, fmt.Errorf("checking rights: a gateway cuts the tunnels of revoked edges, for which it needs CAP_NET_ADMIN "+
			"(systemd: AmbientCapabilities=CAP_NET_ADMIN; Kubernetes: capabilities add NET_ADMIN, and the program has the file capability where it does not run as root): %w", err)
	}
	return tunnels.New(tunnels.Config{
		Domain:  a.config.Gateway.Domain,
		Log:     a.config.path(envoy.TunnelLog),
		Reopen:  func(ctx context.Context) error { return a.config.admin().post(ctx, "/reopen_logs") },
		Workers: a.config.Concurrency,
		Public:  a.config.Gateway.Bind.PublicAddress(),
		Writes:  a.config.admin().writes,
		Logger:  a.log,
	}), nil
}

const fileStats = `^filesystem\.(write_failed|reopen_failed|write_total_buffered)$`

// writes says what Envoy has written of its logs.
func (a admin) writes(ctx context.Context) (w tunnels.Writes, err error) {
	stats, err := a.values(ctx, fileStats)
	w.Failed = stats["filesystem.write_failed"] + stats["filesystem.reopen_failed"]
	w.Buffered = stats["filesystem.write_total_buffered"]
	return w, err
}
