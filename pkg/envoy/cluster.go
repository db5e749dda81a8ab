package envoy

import (
	"net"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	reverseclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/reverse_connection/v3"
	upstreamhttpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fairlead/fairlead/pkg/envoy/front"
	"github.com/fairlead/fairlead/pkg/envoy/lane"
	"github.com/fairlead/fairlead/pkg/envoy/multiplex"
	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

// dialledCluster dials one address over TCP. For a DNS name it uses any address that answers, of either family.
func dialledCluster(name string, to model.Endpoint, keepalive *corev3.TcpKeepalive) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name:                      name,
		ClusterDiscoveryType:      &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:            durationpb.New(dialTimeout),
		LoadAssignment:            typed.LoadAssignment(name, endpoints(to)),
		UpstreamConnectionOptions: &clusterv3.UpstreamConnectionOptions{TcpKeepalive: keepalive},
		// By default Envoy allows 1,024 connections to an Envoy cluster. One source could use them all up for every
		// edge. The limit of the public listener is the bound instead, and the xds-server and the other gateway have
		// limits by source and by tunnel.
		CircuitBreakers: breaker(unlimited()),
	}
	if isName(to) {
		c.ClusterDiscoveryType = byDNS(true)
	}
	return c
}

// agentSocketCluster is the agent of this Envoy. It is not verified: a process that can create this socket in Envoy's
// own directory can also replace Envoy.
func agentSocketCluster() *clusterv3.Cluster {
	socket := lbEndpoint(&corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: AgentSocket}}})
	return &clusterv3.Cluster{
		Name:                          agentCluster,
		ClusterDiscoveryType:          &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:                durationpb.New(dialTimeout),
		LoadAssignment:                typed.LoadAssignment(agentCluster, []*endpointv3.LbEndpoint{socket}),
		TypedExtensionProtocolOptions: http2(&corev3.Http2ProtocolOptions{}),
	}
}

// controlChannel forwards the control channel to the xds-server, and sends the client's address before each connection
// (PROXY protocol, version 2), which the xds-server could not see otherwise. TLS is between the edge and the
// xds-server.
func controlChannel(at model.Endpoint) *clusterv3.Cluster {
	c := dialledCluster(controlCluster, at, clientKeepalive())
	c.TransportSocket = sendAddress()
	return c
}

// behindConnect leads from the port for clients by CONNECT to their listener.
func behindConnect() *clusterv3.Cluster {
	return front.Cluster(&clusterv3.Cluster{
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(dialTimeout),
		CircuitBreakers:      breaker(unlimited()),
		TransportSocket:      sendAddress(),
	}, connectListener, lane.Buffer)
}

// tunnelCluster uses the reverse tunnels of one tunnel id. The TLS of the handshake ends with the handshake, so this
// is another TLS connection, in which the edge is the server: without it everything in a reverse tunnel could be read
// and changed on the network.
func tunnelCluster(name, tunnelID string, limits model.Limits) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name: name,
		ClusterDiscoveryType: &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
			Name:        "envoy.clusters.reverse_connection",
			TypedConfig: typed.Pack(&reverseclusterv3.ReverseConnectionClusterConfig{HostIdFormat: tunnelID}),
		}},
		LbPolicy:                      clusterv3.Cluster_CLUSTER_PROVIDED,
		ConnectTimeout:                durationpb.New(tunnelConnectTimeout),
		CircuitBreakers:               breaker(tunnelLimits(limits)),
		TransportSocket:               clientTLS(model.Subject{Role: model.RoleGateway}, tunnelID, "h2"),
		TypedExtensionProtocolOptions: http2(multiplex.Gateway()),
	}
}

// emptyCluster returns an Envoy cluster without endpoints.
func emptyCluster(name string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(dialTimeout),
	}
}

func breaker(thresholds *clusterv3.CircuitBreakers_Thresholds) *clusterv3.CircuitBreakers {
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{thresholds}}
}

func http2(options *corev3.Http2ProtocolOptions) map[string]*anypb.Any {
	return typed.HTTPOptions(&upstreamhttpv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
					Http2ProtocolOptions: options,
				},
			},
		},
	})
}

func endpoints(at ...model.Endpoint) []*endpointv3.LbEndpoint {
	var group []*endpointv3.LbEndpoint
	for _, e := range at {
		group = append(group, lbEndpoint(socketAddress(e)))
	}
	return group
}

func lbEndpoint(at *corev3.Address) *endpointv3.LbEndpoint {
	return &endpointv3.LbEndpoint{
		HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: at}},
	}
}

// discoverAll makes every address of every endpoint, of either family, a separate host.
func discoverAll(c *clusterv3.Cluster, at []model.Endpoint) {
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	if slices.ContainsFunc(at, isName) {
		c.ClusterDiscoveryType = byDNS(false)
	}
}

func isName(e model.Endpoint) bool { return net.ParseIP(e.Host) == nil }

func socketAddress(e model.Endpoint) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       e.Host,
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(e.Port)},
	}}}
}

// tcpOption sets an option of TCP for the connections of an Envoy cluster: see tcp(7).
func tcpOption(description string, name, value int64) *corev3.BindConfig {
	const level = 6 // IPPROTO_TCP
	return typed.SocketOption(description, level, name, value)
}
