package path

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

const domain model.TunnelDomain = "tunnels.example.com"

// fairlead starts the Envoys of a gateway and an edge with the configuration of pkg/envoy. Their agents are not on the
// data path, so this process simulates them: it serves the certificates.
func fairlead(ctx context.Context, p *place, s *subject, l link) error {
	ca, err := certs.NewCA("bench", time.Now(), 24*time.Hour)
	if err != nil {
		return err
	}
	bind := envoy.GatewayBind{}
	for _, at := range []*model.Endpoint{&bind.Public, &bind.APIServer, &bind.Connect} {
		port, err := freePort()
		if err != nil {
			return err
		}
		*at = model.Endpoint{Host: "127.0.0.1", Port: port}
	}
	public, err := s.over(l, bind.Public.String())
	if err != nil {
		return err
	}
	inst, wc, err := fleet(public, p.at)
	if err != nil {
		return err
	}
	clusters := append(envoy.GatewayClusters(inst), envoy.TunnelClusters(inst, wc)...)
	for _, c := range clusters {
		envoy.CloseUnused(c) // as a gateway's agent does
	}
	gateway := envoy.Static(
		envoy.GatewayBootstrap(envoy.BootstrapConfig{}), envoy.GatewayListeners(inst, "gateway-0", bind, model.Denied{}),
		clusters,
	)
	if err := s.envoy(ctx, p, ca, "gateway", gateway, model.Subject{
		Role: model.RoleGateway,
		Node: "gateway-0",
	}); err != nil {
		return err
	}
	node := model.NewNodeName()
	dial := envoy.EdgeDial{Near: 2*l.delay < envoy.NearBelow} // an agent determines this from the measured round trip
	edge := envoy.Static(
		envoy.EdgeBootstrap(envoy.BootstrapConfig{}), envoy.EdgeListeners(inst, wc, node, dial),
		envoy.EdgeClusters(inst, wc, node, dial),
	)
	if err := s.envoy(ctx, p, ca, "edge", edge, model.Subject{Role: model.RoleEdge, Node: node, ID: wc.ID}); err != nil {
		return err
	}
	s.reach(bind.APIServer.String())
	return nil
}

// fleet returns an installation with one gateway and one workload cluster.
func fleet(public, apiserver string) (model.Installation, model.WorkloadCluster, error) {
	at, err1 := model.ParseEndpoint(public)
	to, err2 := model.ParseEndpoint(apiserver)
	key := model.Key{Namespace: "prod", Name: "c1"}
	hostname, err3 := domain.Hostname(key)
	inst := model.Installation{
		Domain:   domain,
		Public:   at,
		Control:  model.Endpoint{Host: "127.0.0.1", Port: 1},
		Gateways: []model.Gateway{{Name: "gateway-0", Peer: at}},
	}
	wc := model.WorkloadCluster{
		Key:       key,
		ID:        model.NewID(),
		Hostname:  hostname,
		APIServer: to,
		Limits:    model.Limits{Connections: 2000, Pending: 2000},
	}
	return inst, wc, errors.Join(err1, err2, err3)
}

// envoy starts an Envoy with its simulated agent, and returns when it is live.
func (s *subject) envoy(
	ctx context.Context, p *place, ca *certs.CA, name string, bootstrap *bootstrapv3.Bootstrap, self model.Subject,
) error {
	dir := filepath.Join(s.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	config, err := envoy.MarshalYAML(bootstrap)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "envoy.yaml"), config, 0o600); err != nil {
		return err
	}
	if err := s.serveSecrets(ca, dir, self); err != nil {
		return err
	}
	envoyd, err := start(
		dir, name, filepath.Join(p.bin, "envoy"), "-c", "envoy.yaml", "--disable-hot-restart", "--concurrency", "1", "-l",
		"warning", "--component-log-level", envoy.ComponentLogLevel,
	)
	if err != nil {
		return err
	}
	s.processes = append(s.processes, envoyd)
	return until(ctx, name+" is live", func() error {
		state, err := admin(ctx, dir, http.MethodGet, "/ready")
		if err == nil && strings.TrimSpace(state) != "LIVE" {
			err = fmt.Errorf("it is %s", state)
		}
		return err
	}, envoyd)
}

// serveSecrets simulates the agent of the Envoy in a folder.
func (s *subject) serveSecrets(ca *certs.CA, dir string, self model.Subject) error {
	key, err := certs.NewKey()
	if err != nil {
		return err
	}
	chain, err := ca.Issue(key.Public(), certs.Leaf{
		CommonName: self.Node, DNSNames: domain.DNSNames(self), Server: true, Client: true,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(12 * time.Hour),
	})
	if err != nil {
		return err
	}
	issued, err := certs.NewIdentity(chain, key)
	if err != nil {
		return err
	}
	pem, err := issued.KeyPEM()
	if err != nil {
		return err
	}
	identity, trust := envoy.SecretNames(self)
	secrets := map[string]types.Resource{
		identity: envoy.IdentitySecret(identity, issued.ChainPEM(), pem),
		trust:    envoy.TrustSecret(trust, ca.CertPEM()),
	}
	listener, err := net.Listen("unix", filepath.Join(dir, envoy.AgentSocket))
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	cache := cachev3.NewLinearCache(resourcev3.SecretType, cachev3.WithInitialResources(secrets))
	secretv3.RegisterSecretDiscoveryServiceServer(server, serverv3.NewServer(context.Background(), cache, nil))
	go func() { _ = server.Serve(listener) }()
	s.stops = append(s.stops, server.Stop)
	return nil
}
