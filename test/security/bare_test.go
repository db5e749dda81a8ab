package security

import (
	"context"
	"crypto/x509"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/sds"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/world"
)

// bareGateway is a gateway's Envoy with the resources of an xds-server, but without the ones that its agent adds. It
// has one bucket for all clients, and no limit of tunnels.
type bareGateway struct {
	target
	ca *certs.CA
}

func newBareGateway(t *testing.T, rate int) *bareGateway {
	t.Helper()
	ca, err := certs.NewCA("bare", time.Now().Add(-time.Minute), time.Hour)
	must(t, err)
	control, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = control.Close() })
	go greet(control)
	bind := envoy.GatewayBind{
		Public: freeport.Endpoint(t), APIServer: freeport.Endpoint(t), Connect: freeport.Endpoint(t),
	}
	inst := model.Installation{
		Domain:     world.Domain,
		Public:     bind.Public,
		Handshakes: rate,
		Gateways:   []model.Gateway{{Name: "gateway-0"}},
	}
	inst.Control, err = model.ParseEndpoint(control.Addr().String())
	must(t, err)
	g := &bareGateway{ca: ca, target: target{
		tunnels: world.Domain.GatewayReplica("gateway-0"), control: world.Domain.Control(), address: bind.Public.String(),
		dial: func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", bind.Public.String())
		},
	}}
	dir := envoytest.Dir(t)
	g.serveSecrets(t, dir)
	config, err := envoy.MarshalYAML(envoy.Static(envoy.GatewayBootstrap(envoy.BootstrapConfig{}),
		envoy.GatewayListeners(inst, "gateway-0", bind, model.Denied{}), envoy.GatewayClusters(inst)))
	must(t, err)
	envoytest.Start(t, dir, config, "--component-log-level", envoy.ComponentLogLevel)
	return g
}

// greet sends data on each connection, like the first TLS message of an xds-server.
func greet(control net.Listener) {
	for {
		conn, err := control.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
			_, _ = conn.Write([]byte("hello"))
			_, _ = io.Copy(io.Discard, conn)
		}()
	}
}

// serveSecrets simulates the agent, as much as Envoy requires.
func (g *bareGateway) serveSecrets(t *testing.T, dir string) {
	t.Helper()
	subject := model.Subject{Role: model.RoleGateway, Node: "gateway-0"}
	issued, err := outsider.Forge(g.ca, world.Domain, subject, time.Now().Add(-time.Minute), time.Now().Add(time.Hour))
	must(t, err)
	key, err := issued.KeyPEM()
	must(t, err)
	identity, trust := sds.Names(subject)
	listener, err := net.Listen("unix", filepath.Join(dir, envoy.AgentSocket))
	must(t, err)
	server := grpc.NewServer()
	secretv3.RegisterSecretDiscoveryServiceServer(
		server,
		serverv3.NewServer(t.Context(), cachev3.NewLinearCache(resourcev3.SecretType,
			cachev3.WithInitialResources(map[string]types.Resource{
				identity: sds.Identity(identity, issued.ChainPEM(), key), trust: sds.Trust(trust, g.ca.CertPEM()),
			})), nil),
	)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
}

// leaf returns the identity of an edge.
func (g *bareGateway) leaf(t *testing.T, id string) outsider.Stolen {
	t.Helper()
	subject := model.Subject{Role: model.RoleEdge, Node: model.NewNodeName(), ID: id}
	identity, err := outsider.Forge(g.ca, world.Domain, subject, time.Now().Add(-time.Minute), time.Now().Add(time.Hour))
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(g.ca.CertPEM())
	return outsider.Stolen{Certificate: identity.TLSCertificate(), Roots: roots, Subject: subject}
}
