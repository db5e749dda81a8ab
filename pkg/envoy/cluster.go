package envoy

import (
	"net"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	reverseclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/reverse_connection/v3"
	upstreamhttpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/model"
)

// dialledCluster dials one address over TCP. Of the addresses of a DNS name it uses any that answers, of either family.
func dialledCluster(name string, to model.Endpoint, keepalive *corev3.TcpKeepalive) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name:                      name,
		ClusterDiscoveryType:      &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:            durationpb.New(dialTimeout),
		LoadAssignment:            assignment(name, socketAddress(to)),
		UpstreamConnectionOptions: &clusterv3.UpstreamConnectionOptions{TcpKeepalive: keepalive},
	}
	if net.ParseIP(to.Host) == nil {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_LOGICAL_DNS}
		c.DnsLookupFamily = clusterv3.Cluster_ALL
	}
	return c
}

// agentSocketCluster is the agent beside this Envoy. It is not verified: whoever can make this socket in Envoy's own
// folder can replace Envoy as well.
func agentSocketCluster() *clusterv3.Cluster {
	address := &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: AgentSocket}}}
	return &clusterv3.Cluster{
		Name:                          agentCluster,
		ClusterDiscoveryType:          &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:                durationpb.New(dialTimeout),
		LoadAssignment:                assignment(agentCluster, address),
		TypedExtensionProtocolOptions: http2(&corev3.Http2ProtocolOptions{}),
	}
}

// xdsCluster is the xds-server at an address, verified by the name of the control channel.
func xdsCluster(d model.TunnelDomain, at model.Endpoint) *clusterv3.Cluster {
	c := dialledCluster(xdsServerCluster, at, tunnelKeepalive())
	c.TransportSocket = clientTLS(d.Control(), "h2")
	c.TypedExtensionProtocolOptions = http2(&corev3.Http2ProtocolOptions{ConnectionKeepalive: http2Keepalive(controlPing)})
	return c
}

// tunnelCluster sends to the tunnels of one tunnel id. The TLS of the handshake ends with the handshake, so this is TLS
// of its own, in which the edge is the server: without it everything in a tunnel could be read and changed on the way.
func tunnelCluster(name, tunnelID string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name: name,
		ClusterDiscoveryType: &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
			Name:        "envoy.clusters.reverse_connection",
			TypedConfig: pack(&reverseclusterv3.ReverseConnectionClusterConfig{HostIdFormat: tunnelID}),
		}},
		LbPolicy:                      clusterv3.Cluster_CLUSTER_PROVIDED,
		ConnectTimeout:                durationpb.New(tunnelConnectTimeout),
		CircuitBreakers:               breaker(&clusterv3.CircuitBreakers_Thresholds{MaxRetries: wrapperspb.UInt32(waitingPerTunnel)}),
		TransportSocket:               clientTLS(tunnelID, "h2"),
		TypedExtensionProtocolOptions: http2(tunnelHTTP2()),
	}
}

// nowhere is an Envoy cluster without endpoints.
func nowhere(name string) *clusterv3.Cluster {
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
	return map[string]*anypb.Any{
		"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": pack(&upstreamhttpv3.HttpProtocolOptions{
			UpstreamProtocolOptions: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig_{
				ExplicitHttpConfig: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig{
					ProtocolConfig: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: options},
				},
			},
		}),
	}
}

func assignment(cluster string, address *corev3.Address) *endpointv3.ClusterLoadAssignment {
	return &endpointv3.ClusterLoadAssignment{
		ClusterName: cluster,
		Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}},
			}},
		}},
	}
}

func socketAddress(e model.Endpoint) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       e.Host,
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(e.Port)},
	}}}
}
