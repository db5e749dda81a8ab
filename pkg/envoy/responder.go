package envoy

import (
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	filterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	reversetunnelv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/reverse_tunnel/v3"
	setstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/set_filter_state/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/accesslog"
	"github.com/fairlead/fairlead/pkg/envoy/denylist"
	"github.com/fairlead/fairlead/pkg/envoy/front"
	"github.com/fairlead/fairlead/pkg/envoy/lane"
	"github.com/fairlead/fairlead/pkg/envoy/network"
	"github.com/fairlead/fairlead/pkg/envoy/peers"
	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

// GatewayListeners returns the listeners of one gateway, in constant order. They depend only on the installation and on
// denied: adding or removing a workload cluster does not change them. The gateway need not be in the installation.
func GatewayListeners(
	inst model.Installation, gateway string, bind GatewayBind, denied model.Denied,
) []*listenerv3.Listener {
	return slices.Concat(
		[]*listenerv3.Listener{
			gatewayPublic(inst, gateway, bind, denied),
			gatewayAPIServer(inst, bind.APIServer, bind.Version),
		},
		gatewayConnect(inst, bind.Connect, bind.Version),
		peerListeners(inst, gateway, bind.Version),
	)
}

// GatewayClusters returns the Envoy clusters of all gateways of an installation that are not tunnels, in constant
// order.
func GatewayClusters(inst model.Installation) []*clusterv3.Cluster {
	clusters := []*clusterv3.Cluster{
		emptyCluster(noSuchTunnelCluster),
		controlChannel(inst.Control),
	}
	for _, g := range inst.Gateways {
		if g.Peer != (model.Endpoint{}) {
			clusters = append(clusters, dialledCluster(peerCluster(g.Name), g.Peer, tunnelKeepalive()))
		}
	}
	if inst.GatewaysPerTunnel > 0 {
		clusters = append(clusters, PeerClusters(inst)...)
	}
	return clusters
}

// TunnelClusters returns the Envoy clusters through which gateways reach one workload cluster: one for each of its
// names, in the order of WorkloadCluster.Names. They share its reverse tunnels. A network has others before these. The
// apiservers of a Cluster have none.
func TunnelClusters(inst model.Installation, wc model.WorkloadCluster) []*clusterv3.Cluster {
	var clusters []*clusterv3.Cluster
	if wc.Network != nil {
		clusters = forNetwork(inst, wc)
	}
	for _, name := range wc.Names() {
		clusters = append(clusters, tunnelCluster(name, inst.Domain.TunnelID(wc.ID), wc.Limits))
	}
	return clusters
}

// gatewayPublic is the only listener that workload networks can reach. It gives no access to any apiserver except that
// an edge of a network reaches the one of its Cluster: edges open reverse tunnels here, or are relayed to another
// replica or to the xds-server; apiservers reach the networks of their Cluster; every other connection is closed.
func gatewayPublic(inst model.Installation, me string, bind GatewayBind, denied model.Denied) *listenerv3.Listener {
	l := listening(publicListener, bind.Public, tunnelKeepalive())
	l.ListenerFilters = tlsInspector()
	l.ListenerFiltersTimeout = durationpb.New(helloTimeout)
	l.MaxConnectionsToAcceptPerSocketEvent, l.TcpBacklogSize = wrapperspb.UInt32(1), wrapperspb.UInt32(publicBacklog)
	own := chainFor(inst.Domain.GatewayReplica(me),
		handshakeLimit(inst),
		typed.NetworkFilter("envoy.filters.network.rbac", denylist.Filter(inst.Domain, denied)),
		typed.NetworkFilter("envoy.filters.network.reverse_tunnel", reverseTunnel()))
	// Only the leaves of edges have names with this suffix. A regular expression would work only for short tunnel
	// domains: Envoy rejects large ones, and only once the trust bundle arrives.
	own.TransportSocket = serverTLS(
		model.Subject{Role: model.RoleGateway, Node: me}, endingWith(inst.Domain.TunnelIDSuffix()),
	)
	own.TransportSocketConnectTimeout = durationpb.New(handshakeTimeout)
	l.FilterChains = []*listenerv3.FilterChain{own}
	lanes := bind.Version.lanes(inst)
	if lanes > 0 {
		l.FilterChains = append(l.FilterChains, lane.Chain(own, lane.Names(inst.Domain, me, lanes)))
	}
	l.FilterChains = append(
		l.FilterChains,
		chainFor(
			inst.Domain.Control(),
			tcpProxyFilter(record.Connections(record.OwnerControl, relayed("control", controlCluster))),
		),
	)
	for _, g := range inst.Gateways {
		if g.Name != me && g.Peer != (model.Endpoint{}) {
			relay := record.Connections(record.OwnerRelay, relayed("peer", peerCluster(g.Name)))
			chain := chainFor(inst.Domain.GatewayReplica(g.Name), tcpProxyFilter(relay))
			match := chain.GetFilterChainMatch()
			match.ServerNames = append(match.GetServerNames(), lane.Names(inst.Domain, g.Name, lanes)...)
			l.FilterChains = append(l.FilterChains, chain)
		}
	}
	l.FilterChains = append(l.FilterChains, networkChains(inst, me, bind.Version)...)
	l.FilterChains = append(l.FilterChains, peerChain(inst, me, bind.Version)...)
	return l
}

// reverseTunnel accepts the handshake of an edge. Both ids must equal the names in its leaf: a reverse tunnel is
// selected by either, so an edge that could choose one of them would get the connections of another. The tenant id is
// the installation's constant. Envoy bounds all headers together at 60 KiB and has no smaller bound; only these three
// headers are used or recorded.
func reverseTunnel() *reversetunnelv3.ReverseTunnel {
	return &reversetunnelv3.ReverseTunnel{
		PingInterval:     durationpb.New(reversePing),
		HandshakeTimeout: durationpb.New(handshakeTimeout),
		Validation: &reversetunnelv3.Validation{
			NodeIdFormat:    "%DOWNSTREAM_PEER_SUBJECT%",
			ClusterIdFormat: "%DOWNSTREAM_PEER_DNS_SAN%",
			TenantIdFormat:  model.TenantID,
		},
	}
}

// gatewayAPIServer is the SNI route: the name of the Envoy cluster is the client's SNI, so the listener does not
// depend on the number of tunnels. TLS is between the client and the apiserver.
func gatewayAPIServer(inst model.Installation, at model.Endpoint, version Version) *listenerv3.Listener {
	l := listening(apiserverListener, at, clientKeepalive())
	l.PerConnectionBufferLimitBytes = clientBuffer(version)
	l.ListenerFilters = tlsInspector()
	l.ListenerFiltersTimeout = durationpb.New(lostTimeout)
	proxy := tcpProxy("apiserver", noSuchTunnelCluster) // never used: the filter state has another name
	proxy.AccessLog = accesslog.Of(inst.AccessLog, apiserverListener, version.has(connectionLogged))
	attempts, wait := connectAttempts, connectBackoff
	if version.has(quickRetries) {
		attempts, wait = lostSNIAttempts, lostSNIBackoff
	}
	proxy.MaxConnectAttempts = wrapperspb.UInt32(uint32(attempts))
	proxy.BackoffOptions = &corev3.BackoffStrategy{
		BaseInterval: durationpb.New(wait), MaxInterval: durationpb.New(wait),
	}
	proxy.TunnelingConfig = &tcpproxyv3.TcpProxy_TunnelingConfig{Hostname: "%REQUESTED_SERVER_NAME%:6443"}
	if forwards(inst, version) {
		proxy.TunnelingConfig.HeadersToAdd = []*corev3.HeaderValueOption{peers.AddCluster("%REQUESTED_SERVER_NAME%")}
	}
	l.FilterChains = []*listenerv3.FilterChain{{
		Name: apiserverListener,
		Filters: []*listenerv3.Filter{
			typed.NetworkFilter("envoy.filters.network.set_filter_state", clusterBySNI()),
			tcpProxyFilter(proxy),
		},
	}}
	l.FilterChainMatcher = chainForDNSNames(apiserverListener)
	return l
}

// clientBuffer is the buffer of a client's connection to a gateway: that of lanes, as its connection uses one. nil:
// Envoy's default of 1 MiB.
func clientBuffer(version Version) *wrapperspb.UInt32Value {
	if !version.has(lanes) {
		return nil
	}
	return wrapperspb.UInt32(lane.Buffer)
}

// HasClients reports whether a listener of a gateway with this name knows the workload cluster of each client. That on
// the port for CONNECT does not: the one behind it does.
func HasClients(listener string) bool {
	return listener == apiserverListener || listener == front.Name(connectListener)
}

// clusterBySNI sets the Envoy cluster of the TCP proxy that follows.
func clusterBySNI() *setstatev3.Config {
	return &setstatev3.Config{OnNewConnection: []*filterstatev3.FilterStateValue{{
		Key: &filterstatev3.FilterStateValue_ObjectKey{ObjectKey: "envoy.tcp_proxy.cluster"},
		Value: &filterstatev3.FilterStateValue_FormatString{FormatString: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: typed.Text("%REQUESTED_SERVER_NAME%")},
		}},
	}}}
}

// gatewayConnect is the CONNECT route: the name of the Envoy cluster is the authority, without its port. It answers
// 200, 404 for a name without a tunnel, and 503 if a reverse tunnel is missing for as long as the SNI route holds a
// connection.
func gatewayConnect(inst model.Installation, at model.Endpoint, version Version) []*listenerv3.Listener {
	l := listening(connectListener, at, clientKeepalive())
	l.PerConnectionBufferLimitBytes = clientBuffer(version)
	match := typed.ConnectMatch()
	match.Headers = []*routev3.HeaderMatcher{{
		Name:                 ":authority",
		HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: dnsName()},
	}}
	manager := connectManager(
		"connect",
		&routev3.Route{Match: match, Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier:            &routev3.RouteAction_ClusterHeader{ClusterHeader: ":authority"},
			ClusterNotFoundResponseCode: routev3.RouteAction_NOT_FOUND,
			Timeout:                     durationpb.New(0), // a connection lasts until one of its ends closes
			RetryPolicy:                 retryTunnel(inst, version),
		}}},
	)
	if version.Networks() {
		manager.GetRouteConfig().RequestHeadersToRemove = []string{network.IdentityHeader}
	}
	manager.AccessLog = accesslog.Of(inst.AccessLog, connectListener, version.has(connectionLogged))
	if version.has(ownAddress) {
		manager.EarlyHeaderMutationExtensions = typed.EarlyHeaders()
	}
	manager.CodecType = hcmv3.HttpConnectionManager_HTTP1
	manager.StripPortMode = &hcmv3.HttpConnectionManager_StripAnyHostPort{StripAnyHostPort: true}
	manager.StripTrailingHostDot = true
	// A client whose reverse tunnel has ended is disconnected at once, as by SNI. By default Envoy would wait for a
	// second for the client to close first.
	manager.DelayedCloseTimeout = durationpb.New(0)
	// A client sends its request at once. A connection that Envoy has lost is closed, and its client retries: see
	// docs/decisions/0023-client-first-message.md. A request that has begun has as long: the idle timeout ends none.
	if version.has(requestsBounded) {
		manager.RequestHeadersTimeout = durationpb.New(lostTimeout)
	}
	manager.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(lostTimeout)}
	l.FilterChains = []*listenerv3.FilterChain{
		{Name: connectListener, Filters: []*listenerv3.Filter{managerFilter(manager)}},
	}
	l.ListenerFilters = []*listenerv3.ListenerFilter{readAddress()}
	return front.Split(l, tcpProxy("connect", front.Name(connectListener)))
}
