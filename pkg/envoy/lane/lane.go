// Package lane makes the resources of lanes from those of an edge's usual reverse tunnels. A lane is a further set of
// reverse tunnels of an edge to one gateway. Each carries the connection of one client by HTTP/1, so that this has a
// TCP connection of its own, with the windows and the end of TCP, and the edge dials another in its place when it ends.
// A gateway's Envoy tries the lanes first, and the usual reverse tunnels if no lane is free: see First. The package
// does not know what else listeners and Envoy clusters consist of.
package lane

import (
	"fmt"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	reverseclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/reverse_connection/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	reversetunnelv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/reverse_tunnel/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	upstreamhttpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

// Names of a lane's resources: they begin and end as the usual ones, because what dials a gateway, and the gateway of a
// listener, is known by that.

// Gateway returns what takes the place of the gateway's name in the name of an Envoy cluster.
func Gateway(gateway string, lane int) string { return fmt.Sprintf("%s-lane-%d", gateway, lane) }

// Node returns what takes the place of the node name in the name of a listener.
func Node(node string, lane int) string { return fmt.Sprintf("%s_lane-%d", node, lane) }

const (
	// protocol is the name of HTTP/1 in TLS (ALPN), and http2 that of the usual reverse tunnels.
	protocol, http2 = "http/1.1", "h2"
	// Buffer is how much of a connection waits in an Envoy, in bytes: a worker serves one connection until its buffer is
	// full, and what a client does not read is pinned in it. Larger ones do not make downloads faster, because TCP has
	// windows of its own; with half of it, one download takes a fifth more CPU time on some machines.
	Buffer = 128 << 10
	// shared is the part of connections that use the usual reverse tunnels at once: one of so many. Otherwise an edge
	// whose lanes are closed would get no client beside one whose lanes are open, and never open them.
	shared = 16
	// firstAttempt is the number of a connection's first attempt when Envoy selects its reverse tunnel: its router counts
	// an attempt before that, and its TCP proxy, which has no request, after it.
	firstAttempt = "(has(request.method) ? 1 : 0)"
	// connections is no limit: an Envoy cluster of a gateway is limited by its requests.
	connections = 1 << 20
)

// Listener returns the listener of a lane from the usual one. The node id and the tunnel id in its address end with
// model.LaneMark. When an apiserver has closed its connection, Envoy closes the reverse tunnel as soon as everything is
// sent: by default it would wait for a second, and also discard what cannot be sent for so long.
func Listener(usual *listenerv3.Listener, name, address string) *listenerv3.Listener {
	l := proto.CloneOf(usual)
	l.Name, l.StatPrefix = name, name
	l.GetAddress().GetSocketAddress().Address = address
	l.PerConnectionBufferLimitBytes = wrapperspb.UInt32(Buffer)
	for _, chain := range l.GetFilterChains() {
		context := &tlsv3.DownstreamTlsContext{}
		change(chain.GetTransportSocket().GetTypedConfig(), context, func() {
			context.CommonTlsContext.AlpnProtocols = []string{protocol}
		})
		manager := &hcmv3.HttpConnectionManager{}
		change(chain.GetFilters()[len(chain.GetFilters())-1].GetTypedConfig(), manager, func() {
			manager.CodecType, manager.Http2ProtocolOptions = hcmv3.HttpConnectionManager_HTTP1, nil
			manager.DelayedCloseTimeout = durationpb.New(0)
		})
	}
	return l
}

// First changes an Envoy cluster of a gateway that uses the reverse tunnels of a tunnel id by HTTP/2: the first attempt
// of each connection uses a lane, and the further ones the usual reverse tunnels. The edge decides the protocol, in
// TLS. So lanes that are all in use, or that an edge does not have, cost a wait for the second attempt: every route to
// such an Envoy cluster has to retry. inUse detects that a lane in use is dead while no data is on its way; while there
// is, the gateway's agent does (package tunnels). First returns false if nothing has changed.
//
// A gateway's agent does this, not the xds-server: an Envoy cluster that changes while it is in use loses its reverse
// tunnels, and all gateways share the Envoy clusters of the xds-server, also those of earlier versions.
func First(c *clusterv3.Cluster, inUse *corev3.TcpKeepalive) bool {
	reverse, options, context := &reverseclusterv3.ReverseConnectionClusterConfig{}, &upstreamhttpv3.HttpProtocolOptions{},
		&tlsv3.UpstreamTlsContext{}
	packed := c.GetTypedExtensionProtocolOptions()[typed.HTTPProtocols]
	if c.GetClusterType().GetTypedConfig().UnmarshalTo(reverse) != nil ||
		packed.UnmarshalTo(options) != nil || options.GetExplicitHttpConfig() == nil ||
		len(c.GetCircuitBreakers().GetThresholds()) != 1 {
		return false
	}
	reverse.HostIdFormat += fmt.Sprintf(
		`%%CEL(upstream.request_attempt_count > %s || connection.id %% %du == 0u ? "" : "%s")%%`, firstAttempt, shared,
		model.LaneMark,
	)
	c.GetClusterType().TypedConfig = typed.Pack(reverse)
	options.UpstreamProtocolOptions = &upstreamhttpv3.HttpProtocolOptions_AutoConfig{
		AutoConfig: &upstreamhttpv3.HttpProtocolOptions_AutoHttpConfig{
			HttpProtocolOptions:  &corev3.Http1ProtocolOptions{},
			Http2ProtocolOptions: options.GetExplicitHttpConfig().GetHttp2ProtocolOptions(),
		},
	}
	c.TypedExtensionProtocolOptions[typed.HTTPProtocols] = typed.Pack(options)
	change(c.GetTransportSocket().GetTypedConfig(), context, func() {
		context.CommonTlsContext.AlpnProtocols = []string{http2, protocol}
	})
	c.PerConnectionBufferLimitBytes = wrapperspb.UInt32(Buffer)
	c.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{TcpKeepalive: inUse}
	c.UpstreamBindConfig = onlyConnected()
	c.CircuitBreakers.Thresholds[0].MaxConnections = wrapperspb.UInt32(connections)
	return true
}

// onlyConnected makes connections of an Envoy cluster that get no reverse tunnel fail at once. Envoy opens a socket for
// them and connects it to port 0, where nothing listens. But the socket can have the file descriptor of a reverse
// tunnel that ends in the same round of Envoy's event loop, and then Envoy is not told that nothing listens: the
// attempt ends at the Envoy cluster's timeout, and others wait for it too. The kernel rejects SOF_TIMESTAMPING_OPT_ID
// for a TCP socket that is not connected. It only numbers time stamps, and there are none without further flags
// (https://docs.kernel.org/networking/timestamping.html).
func onlyConnected() *corev3.BindConfig {
	const (
		socket       = 1      // SOL_SOCKET
		timestamping = 37     // SO_TIMESTAMPING of Linux
		number       = 1 << 7 // SOF_TIMESTAMPING_OPT_ID
	)
	return typed.SocketOption("SO_TIMESTAMPING", socket, timestamping, number)
}

// change unpacks a message, has it changed, and packs it again in its place.
func change(packed *anypb.Any, message proto.Message, by func()) {
	must(packed.UnmarshalTo(message))
	by()
	packed.Value = typed.Pack(message).GetValue()
}

// Cluster returns the Envoy cluster that dials a lane from the one that dials the gateway. sni is the name of the lane;
// the name in the gateway's leaf stays.
func Cluster(usual *clusterv3.Cluster, name, sni string) *clusterv3.Cluster {
	c := proto.CloneOf(usual)
	c.Name, c.LoadAssignment.ClusterName = name, name
	context := &tlsv3.UpstreamTlsContext{}
	change(c.GetTransportSocket().GetTypedConfig(), context, func() { context.Sni = sni })
	c.UpstreamBindConfig = nil // data that waits in the kernel delays no other connection
	return c
}

// prefix is what the name of the filter chain of lanes begins with.
const prefix = "lanes."

// Chain returns the filter chain that accepts the reverse tunnels of a gateway's lanes, from the one for its usual
// ones, which ends with the filter for reverse tunnels. names are those of the lanes. Both ids of a lane are those of
// the leaf, with model.LaneMark.
func Chain(usual *listenerv3.FilterChain, names []string) *listenerv3.FilterChain {
	c := proto.CloneOf(usual)
	c.Name = prefix + usual.GetName()
	c.FilterChainMatch.ServerNames = names
	tunnels := &reversetunnelv3.ReverseTunnel{}
	change(c.GetFilters()[len(c.GetFilters())-1].GetTypedConfig(), tunnels, func() {
		tunnels.GetValidation().NodeIdFormat += model.LaneMark
		tunnels.GetValidation().ClusterIdFormat += model.LaneMark
	})
	return c
}

// Names returns the names of the first lanes of a gateway.
func Names(d model.TunnelDomain, gateway string, lanes int) (names []string) {
	for lane := 1; lane <= lanes; lane++ {
		names = append(names, d.Lane(gateway, lane))
	}
	return names
}

// Of returns how many lanes a listener accepts.
func Of(l *listenerv3.Listener) int {
	for _, chain := range l.GetFilterChains() {
		if strings.HasPrefix(chain.GetName(), prefix) {
			return min(len(chain.GetFilterChainMatch().GetServerNames()), model.MaxLanes)
		}
	}
	return 0
}

// must panics: the resources come from this build.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
