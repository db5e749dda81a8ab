package envoy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/assignment"
	"github.com/fairlead/fairlead/pkg/envoy/accesslog"
	"github.com/fairlead/fairlead/pkg/envoy/lane"
	"github.com/fairlead/fairlead/pkg/envoy/multiplex"
	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

// EdgeListeners returns the listeners of one edge, in the order of the installation's gateways. Each keeps the reverse
// tunnels to one gateway of its tunnel (pkg/assignment), and accepts only gateways. An edge of a network also has the
// listeners in dial.Listen. The Envoy beside an apiserver has only dial.Socket. node is the edge's node name. Adding or
// removing a gateway changes no other listener, because a listener that is updated would lose its reverse tunnels.
func EdgeListeners(
	inst model.Installation, wc model.WorkloadCluster, node string, dial EdgeDial,
) []*listenerv3.Listener {
	if ofNetwork(wc) && !dial.Version.Networks() {
		return nil
	}
	if wc.Egress {
		return egressListeners(inst, node, dial)
	}
	edge := edgeOf(wc, node)
	var listeners []*listenerv3.Listener
	for _, g := range assignment.Of(wc.ID, inst.GatewaysPerTunnel, inst.Gateways) {
		l := tunnelListener(inst, g, edge, wc, dial)
		listeners = append(listeners, l)
		for i := 1; i <= lanesOf(inst, wc, dial); i++ {
			listeners = append(listeners, lane.Listener(
				l, tunnelListenerName(g.Name, lane.Node(node, i)), reverseAddress(
					edge.NodeID()+model.LaneMark, inst.Domain.TunnelID(wc.ID)+model.LaneMark,
					laneCluster(g.Name, i, node), model.TunnelsInLane(i)*inst.WorkerCount(),
				),
			))
		}
	}
	if wc.Network != nil {
		listeners = append(listeners, localListeners(inst, node, dial)...)
	}
	return listeners
}

// EdgeClusters returns the Envoy clusters of one edge of a workload cluster: its apiservers or its network, then the
// gateways of its tunnel in order. The Envoy beside an apiserver has only one, of all gateways. Agents of versions
// without networks get nothing for a network or beside an apiserver. node is the edge's node name.
func EdgeClusters(inst model.Installation, wc model.WorkloadCluster, node string, dial EdgeDial) []*clusterv3.Cluster {
	edge := edgeOf(wc, node)
	var clusters []*clusterv3.Cluster
	switch {
	case ofNetwork(wc) && !dial.Version.Networks():
		return nil
	case wc.Egress:
		return []*clusterv3.Cluster{
			sharedGateways(inst, edge, egressCluster(node), inst.Domain.Egress(), gatewayTimeout, dial),
		}
	case wc.Network != nil:
		clusters = networkEdge(inst, wc, node, dial).Clusters()
		if len(dial.Listen) > 0 {
			clusters = append(
				clusters, sharedGateways(inst, edge, forwardingCluster(node), inst.Domain.Forward(), tunnelConnectTimeout, dial),
			)
		}
	default:
		clusters = append(clusters, edgeAPIServer(apiserverCluster(node), dial.apiservers(wc), dial.buffers().apiserver))
	}
	for _, g := range assignment.Of(wc.ID, inst.GatewaysPerTunnel, inst.Gateways) {
		at := dial.gateways(inst, g)
		clusters = append(clusters, edgeGateway(inst.Domain, g.Name, edge, at))
		for i := 1; i <= lanesOf(inst, wc, dial); i++ {
			// One address each: the other lanes serve while it is dead.
			c := edgeGateway(inst.Domain, g.Name, edge, at[i%len(at):][:1])
			clusters = append(clusters, lane.Cluster(c, laneCluster(g.Name, i, node), inst.Domain.Lane(g.Name, i)))
		}
	}
	return clusters
}

// lanesOf returns how many lanes an edge has to each gateway: none if its bandwidth is limited, because the limit is
// one of all connections in the reverse tunnels of one listener.
func lanesOf(inst model.Installation, wc model.WorkloadCluster, dial EdgeDial) int {
	if wc.Limits.Bandwidth > 0 {
		return 0
	}
	return dial.Version.lanes(inst)
}

// ofNetwork reports whether agents of versions without networks do not accept the resources.
func ofNetwork(wc model.WorkloadCluster) bool { return wc.Egress || wc.Network != nil }

func edgeOf(wc model.WorkloadCluster, node string) model.Subject {
	if wc.Egress {
		return model.Subject{Role: model.RoleEgress, Node: node, ID: wc.ID}
	}
	return model.Subject{Role: model.RoleEdge, Node: node, ID: wc.ID}
}

func tunnelListener(
	inst model.Installation, to model.Gateway, edge model.Subject, wc model.WorkloadCluster, dial EdgeDial,
) *listenerv3.Listener {
	gateway := to.Name
	manager := connectManager("tunnel", apiserverRoute(apiserverCluster(edge.Node)))
	manager.AccessLog = accesslog.Of(inst.AccessLog, "tunnel", dial.Version.has(connectionLogged))
	if at := dial.gateways(inst, to); dial.Version.has(redialledAtNewAddress) && !slices.Equal(at, dial.first(inst, to)) {
		manager.StatPrefix = tunnelStats(at)
	}
	manager.CodecType = hcmv3.HttpConnectionManager_HTTP2
	manager.Http2ProtocolOptions = multiplex.Edge()
	if wc.Network != nil {
		networkEdge(inst, wc, edge.Node, dial).Manager(manager)
		manager.StatPrefix += narrowedStats(*wc.Network)
	}
	manager.HttpFilters = bandwidthLimit(wc.Limits, manager.HttpFilters)
	name := tunnelListenerName(gateway, edge.Node)
	return &listenerv3.Listener{
		Name:       name,
		StatPrefix: name,
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: reverseAddress(
				edge.NodeID(), inst.Domain.TunnelID(edge.ID), gatewayCluster(gateway, edge.Node), inst.Tunnels(wc),
			),
			PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 0},
			ResolverName:  "envoy.resolvers.reverse_connection",
		}}},
		// an idle reverse tunnel has not begun its TLS, however long it waits
		ListenerFiltersTimeout:        durationpb.New(0),
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(dial.buffers().tunnel),
		FilterChains: []*listenerv3.FilterChain{{
			Name:            gateway,
			TransportSocket: serverTLS(edge, exactly(inst.Domain.Gateway()), "h2"),
			Filters:         []*listenerv3.Filter{managerFilter(manager)},
		}},
	}
}

// tunnelStats is the prefix of statistics of tunnels to some addresses. Envoy keeps open tunnels when only the
// addresses of their Envoy cluster change, so a wrong address would show when the last one has broken. A filter chain
// that changes with them has Envoy dial all tunnels of the listener anew. It is the usual one at the address with which
// the installation began: agents of versions before have that.
func tunnelStats(at []model.Endpoint) string {
	sum := sha256.New()
	for _, e := range at {
		fmt.Fprintln(sum, e)
	}
	return "tunnel_" + hex.EncodeToString(sum.Sum(nil)[:4])
}

// narrowedStats is appended to the prefix of statistics of a network's tunnels, so that Envoy ends their streams when
// the network has lost a part: Envoy checks a destination only when a stream is opened. A part that is added changes
// only an Envoy cluster, and no stream ends.
func narrowedStats(n model.Network) string {
	if n.Narrowed == 0 {
		return ""
	}
	return "_narrowed" + strconv.FormatInt(n.Narrowed, 10)
}

// Gateways returns the addresses at which an Envoy cluster of an edge dials a gateway, or nil for any other resource.
func Gateways(resource *anypb.Any) []model.Endpoint {
	c := &clusterv3.Cluster{}
	if resource.UnmarshalTo(c) != nil || !strings.HasPrefix(c.GetName(), gatewayPrefix) {
		return nil
	}
	return dials(c.GetLoadAssignment().GetEndpoints())
}

// edgeGateway dials one gateway, at every address at the same time: all of its reverse tunnels to each address, so
// that a dead address has no effect. SNI identifies the gateway: if all gateways share one address, another gateway
// may accept the connection, and relays it.
func edgeGateway(d model.TunnelDomain, gateway string, edge model.Subject, at []model.Endpoint) *clusterv3.Cluster {
	const notSentLowat = 25 // TCP_NOTSENT_LOWAT of Linux
	name := gatewayCluster(gateway, edge.Node)
	c := &clusterv3.Cluster{
		Name:                      name,
		ConnectTimeout:            durationpb.New(dialTimeout),
		LoadAssignment:            typed.LoadAssignment(name, endpoints(at...)),
		UpstreamConnectionOptions: &clusterv3.UpstreamConnectionOptions{TcpKeepalive: tunnelKeepalive()},
		TransportSocket:           clientTLS(edge, d.GatewayReplica(gateway)),
	}
	discoverAll(c, at)
	c.UpstreamBindConfig = tcpOption("TCP_NOTSENT_LOWAT", notSentLowat, notSentLowWater)
	return c
}
