package envoy

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/model"
)

// EdgeListeners are the listeners of one edge, in the order of the installation's gateways: each keeps the tunnels to one
// gateway, and lets only gateways in. The node is the edge's node name.
func EdgeListeners(inst model.Installation, wc model.WorkloadCluster, node string) []*listenerv3.Listener {
	edge := model.Subject{Role: model.RoleEdge, Node: node, ID: wc.ID}
	var listeners []*listenerv3.Listener
	for _, g := range inst.Gateways {
		listeners = append(listeners, tunnelListener(inst.Domain, g.Name, edge))
	}
	return listeners
}

// EdgeClusters are the Envoy clusters of an edge of a workload cluster: its apiserver, then the installation's gateways
// in order, all at its one public address.
func EdgeClusters(inst model.Installation, wc model.WorkloadCluster) []*clusterv3.Cluster {
	clusters := []*clusterv3.Cluster{edgeAPIServer(wc.APIServer, len(inst.Gateways))}
	for _, g := range inst.Gateways {
		clusters = append(clusters, edgeGateway(inst, g.Name))
	}
	return clusters
}

func tunnelListener(d model.TunnelDomain, gateway string, edge model.Subject) *listenerv3.Listener {
	manager := connectManager("tunnel", &routev3.Route{Match: connectMatch(), Action: &routev3.Route_Route{Route: &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: apiserverCluster},
		Timeout:          durationpb.New(0), // a connection lasts as long as its two ends want
		UpgradeConfigs: []*routev3.RouteAction_UpgradeConfig{{
			UpgradeType:   "CONNECT",
			ConnectConfig: &routev3.RouteAction_UpgradeConfig_ConnectConfig{},
		}},
	}}})
	manager.CodecType = hcmv3.HttpConnectionManager_HTTP2
	manager.Http2ProtocolOptions = tunnelHTTP2()
	name := tunnelListenerPrefix + gateway
	return &listenerv3.Listener{
		Name:       name,
		StatPrefix: name,
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address:       reverseAddress(edge, d, gateway),
			PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 0},
			ResolverName:  "envoy.resolvers.reverse_connection",
		}}},
		ListenerFiltersTimeout:        durationpb.New(0), // an idle tunnel has not begun its TLS, however long it waits
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(edgeBuffer),
		FilterChains: []*listenerv3.FilterChain{{
			Name:            gateway,
			TransportSocket: serverTLS(exactly(d.Gateway()), "h2"),
			Filters:         []*listenerv3.Filter{managerFilter(manager)},
		}},
	}
}

// edgeGateway dials one gateway. All are behind one address and known by SNI.
func edgeGateway(inst model.Installation, gateway string) *clusterv3.Cluster {
	const (
		levelTCP     = 6  // IPPROTO_TCP
		notSentLowat = 25 // TCP_NOTSENT_LOWAT of Linux
	)
	c := dialledCluster(gateway, inst.Public, tunnelKeepalive())
	if c.GetType() == clusterv3.Cluster_LOGICAL_DNS {
		// Tunnels to each address. With only the address that comes first, they would be cut whenever the order changes.
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
	}
	c.TransportSocket = clientTLS(inst.Domain.GatewayReplica(gateway))
	c.UpstreamBindConfig = &corev3.BindConfig{SocketOptions: []*corev3.SocketOption{{
		Description: "TCP_NOTSENT_LOWAT",
		Level:       levelTCP,
		Name:        notSentLowat,
		Value:       &corev3.SocketOption_IntValue{IntValue: notSentLowWater},
		State:       corev3.SocketOption_STATE_PREBIND,
	}}}
	return c
}

// edgeAPIServer dials the apiserver: one connection for each stream of each tunnel, so it must take as many.
func edgeAPIServer(at model.Endpoint, gateways int) *clusterv3.Cluster {
	c := dialledCluster(apiserverCluster, at, clientKeepalive())
	c.ConnectTimeout = durationpb.New(apiserverTimeout)
	c.PerConnectionBufferLimitBytes = wrapperspb.UInt32(edgeBuffer)
	c.CircuitBreakers = breaker(&clusterv3.CircuitBreakers_Thresholds{
		MaxConnections: wrapperspb.UInt32(uint32(gateways * tunnelsPerGateway * streamsPerTunnel)),
	})
	return c
}
