package networks

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/bench/secrets"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
)

const domain model.TunnelDomain = "tunnels.example.com"

// gatewayName is the name of the only gateway.
const gatewayName = "gateway-0"

// installation is a gateway, a network and the apiserver that uses it, with the configuration of pkg/envoy. The agents
// of its Envoys are not on the data path, so this process simulates them.
type installation struct {
	*world
	model   model.Installation
	ca      *secrets.Authority
	network model.WorkloadCluster
	egress  model.WorkloadCluster // beside the apiserver
}

// fairlead starts the Envoys of a gateway, of an edge in the remote network, and beside the apiserver.
func fairlead(ctx context.Context, w *world, s *subject) ([]byte, error) {
	i, err := newInstallation(w)
	if err != nil {
		return nil, err
	}
	gateway, err := i.startGateway()
	if err != nil {
		return nil, err
	}
	socket := w.File("egress.sock")
	sidecar, err := i.startInitiator("sidecar", w.network.Management, i.egress, model.RoleEgress,
		envoy.EdgeDial{Socket: socket})
	if err != nil {
		return nil, err
	}
	s.shared = append(s.shared, gateway, sidecar)
	s.edge = func(ctx context.Context) (*proc.Process, error) {
		edge, err := i.startInitiator("edge-"+strconv.Itoa(s.number), w.network.Workload, i.network, model.RoleEdge,
			envoy.EdgeDial{})
		if err != nil {
			return nil, err
		}
		return edge, edge.WaitReady(ctx, patience, i.hasTunnels(edge))
	}
	if err := s.addEdge(ctx); err != nil {
		return nil, err
	}
	return kube.EgressSelector("HTTPConnect", socket), sidecar.WaitReady(ctx, patience, proc.Listens(socket))
}

func newInstallation(w *world) (*installation, error) {
	ca, err := secrets.NewAuthority(domain)
	if err != nil {
		return nil, err
	}
	public := model.Endpoint{Host: netns.PublicAddress(0).String(), Port: netns.PublicPort}
	limits := model.Limits{Connections: 2000, Pending: 2000}
	cluster := model.Key{Namespace: "prod", Name: "c1"}
	i := &installation{world: w, ca: ca, model: model.Installation{
		Domain: domain, Public: public, Control: model.Endpoint{Host: "127.0.0.1", Port: 1},
		Gateways: []model.Gateway{{Name: gatewayName, Peer: public}},
	}}
	i.egress = model.WorkloadCluster{
		Key: model.Key{Namespace: cluster.Namespace, Name: "c1.egress"}, ID: model.NewID(), Limits: limits, Egress: true,
	}
	i.network = model.WorkloadCluster{
		Key: model.Key{Namespace: cluster.Namespace, Name: "site.network"}, ID: model.NewID(), Limits: limits,
		Network: &model.Network{
			Name: "site", Cluster: cluster, EgressID: i.egress.ID,
			CIDRs: []netip.Prefix{netip.PrefixFrom(netns.WorkloadAddress, netns.WorkloadAddress.BitLen())},
			Ports: []model.PortRange{{First: kube.KubeletPort, Last: kube.KubeletPort}},
		},
	}
	return i, nil
}

func (i *installation) startGateway() (*proc.Process, error) {
	host := netns.InsideAddress(0).String()
	bind := envoy.GatewayBind{
		Public:    i.model.Public,
		APIServer: model.Endpoint{Host: host, Port: netns.APIServerPort},
		Connect:   model.Endpoint{Host: host, Port: netns.ConnectPort},
		Version:   envoy.Current,
	}
	var clusters []*clusterv3.Cluster
	for _, wc := range []model.WorkloadCluster{i.network, i.egress} {
		clusters = append(clusters, envoy.TunnelClusters(i.model, wc)...)
	}
	clusters = append(envoy.GatewayClusters(i.model), clusters...)
	for _, c := range clusters {
		envoy.Complete(c) // as a gateway's agent does
	}
	bootstrap := envoy.GatewayBootstrap(envoy.BootstrapConfig{})
	listeners := envoy.GatewayListeners(i.model, gatewayName, bind, model.Denied{})
	scope := envoy.NetworkScope(i.model, i.egress.ID, []model.WorkloadCluster{i.network})
	return i.startEnvoy("gateway", i.world.network.Gateways[0], secrets.Envoy{
		Self:      model.Subject{Role: model.RoleGateway, Node: gatewayName},
		Bootstrap: envoy.Static(bootstrap, listeners, clusters),
		ADS:       bootstrap.GetDynamicResources(), Scopes: []*routev3.ScopedRouteConfiguration{scope},
	})
}

// startInitiator starts the Envoy of an edge, or the one beside the apiserver.
func (i *installation) startInitiator(
	name string, in *netns.Namespace, wc model.WorkloadCluster, role model.Role, dial envoy.EdgeDial,
) (*proc.Process, error) {
	node := model.NewNodeName()
	// The round trip is that of one machine, which an agent would measure.
	dial.Near, dial.Version = true, envoy.Current
	return i.startEnvoy(name, in, secrets.Envoy{
		Self: model.Subject{Role: role, Node: node, ID: wc.ID},
		Bootstrap: envoy.Static(
			envoy.EdgeBootstrap(envoy.BootstrapConfig{}), envoy.EdgeListeners(i.model, wc, node, dial),
			envoy.EdgeClusters(i.model, wc, node, dial),
		),
	})
}

func (i *installation) startEnvoy(name string, in *netns.Namespace, e secrets.Envoy) (*proc.Process, error) {
	e.Dir = i.File(name)
	stop, err := i.ca.Prepare(e)
	if err != nil {
		return nil, err
	}
	i.OnClose(func(context.Context) { stop() })
	p, err := proc.Start(proc.Spec{
		Name: name, Namespace: in, Program: i.Parts.RealPath("envoy"), Log: i.LogFile(name), Dir: e.Dir, Args: secrets.Args(),
	})
	if err != nil {
		return nil, err
	}
	i.OnClose(func(context.Context) { p.Kill() })
	return p, nil
}

// hasTunnels returns a condition that holds as soon as an edge has all of its reverse tunnels.
func (i *installation) hasTunnels(edge *proc.Process) func(context.Context) error {
	gateway := netip.AddrPortFrom(netns.PublicAddress(0), netns.PublicPort)
	return func(context.Context) error {
		remotes, err := edge.Remotes()
		if err != nil {
			return err
		}
		open := 0
		for _, remote := range remotes {
			if remote == gateway {
				open++
			}
		}
		if want := i.model.Tunnels(i.network); open < want {
			return fmt.Errorf("%d of %d reverse tunnels are open", open, want)
		}
		return nil
	}
}
