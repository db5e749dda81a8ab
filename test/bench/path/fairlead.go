package path

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/bench/secrets"
)

const domain model.TunnelDomain = "tunnels.example.com"

// fairlead starts the Envoys of a gateway and an edge with the configuration of pkg/envoy. Their agents are not on the
// data path, so this process simulates them: it serves the certificates.
func fairlead(ctx context.Context, p *place, s *subject, l link) error {
	ca, err := secrets.NewAuthority(domain)
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
	inst.Lanes, bind.Version = model.DefaultLanes, envoy.Current
	clusters := append(envoy.GatewayClusters(inst), envoy.TunnelClusters(inst, wc)...)
	for _, c := range clusters {
		envoy.Complete(c) // as a gateway's agent does
	}
	bootstrap := envoy.GatewayBootstrap(envoy.BootstrapConfig{})
	if err := s.envoy(ctx, p, ca, "gateway", secrets.Envoy{
		Self: model.Subject{Role: model.RoleGateway, Node: "gateway-0"},
		Bootstrap: envoy.Static(
			bootstrap, envoy.GatewayListeners(inst, "gateway-0", bind, model.Denied{}), clusters,
		),
		ADS: bootstrap.GetDynamicResources(), // the listeners of networks need it
	}); err != nil {
		return err
	}
	node := model.NewNodeName()
	// An agent determines Near from the measured round trip.
	dial := envoy.EdgeDial{Version: envoy.Current, Near: 2*l.delay < envoy.NearBelow}
	if err := s.envoy(ctx, p, ca, "edge", secrets.Envoy{
		Self: model.Subject{Role: model.RoleEdge, Node: node, ID: wc.ID},
		Bootstrap: envoy.Static(
			envoy.EdgeBootstrap(envoy.BootstrapConfig{}), envoy.EdgeListeners(inst, wc, node, dial),
			envoy.EdgeClusters(inst, wc, node, dial),
		),
	}); err != nil {
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
	ctx context.Context, p *place, ca *secrets.Authority, name string, of secrets.Envoy,
) error {
	dir := filepath.Join(s.dir, name)
	of.Dir = dir
	stop, err := ca.Prepare(of)
	if err != nil {
		return err
	}
	s.stops = append(s.stops, stop)
	envoyd, err := start(dir, name, filepath.Join(p.bin, "envoy"), secrets.Args()...)
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
