package envoy

import (
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

	"github.com/fairlead/fairlead/pkg/model"
)

// GatewayListeners are the three listeners of one gateway, in constant order. They depend on the installation and on who is
// denied alone: workload clusters come and go without a change. The gateway need not be among the installation's.
func GatewayListeners(inst model.Installation, gateway string, bind GatewayBind, denied model.Denied) []*listenerv3.Listener {
	return []*listenerv3.Listener{
		gatewayPublic(inst, gateway, bind.Public, denied),
		gatewayAPIServer(inst, bind.APIServer, bind.Version),
		gatewayConnect(inst, bind.Connect, bind.Version),
	}
}

// GatewayClusters are the Envoy clusters that all gateways of an installation have beside the tunnels, in constant order.
func GatewayClusters(inst model.Installation) []*clusterv3.Cluster {
	clusters := []*clusterv3.Cluster{
		nowhere(noSuchTunnelCluster),
		controlChannel(inst.Control),
	}
	for _, g := range inst.Gateways {
		if g.Peer != (model.Endpoint{}) {
			clusters = append(clusters, dialledCluster(peerCluster(g.Name), g.Peer, tunnelKeepalive()))
		}
	}
	return clusters
}

// TunnelClusters are the Envoy clusters through which gateways reach one workload cluster: one for each of its names, in
// the order of WorkloadCluster.Names. They share its tunnels.
func TunnelClusters(inst model.Installation, wc model.WorkloadCluster) []*clusterv3.Cluster {
	var clusters []*clusterv3.Cluster
	for _, name := range wc.Names() {
		clusters = append(clusters, tunnelCluster(name, inst.Domain.TunnelID(wc.ID), wc.Limits))
	}
	return clusters
}

// gatewayPublic is all that workload networks can dial. It gives no access to any apiserver: edges open tunnels here, go
// on to another replica, or to the xds-server; every other connection is closed.
func gatewayPublic(inst model.Installation, me string, at model.Endpoint, denied model.Denied) *listenerv3.Listener {
	l := listening(publicListener, at, tunnelKeepalive())
	l.ListenerFilters = tlsInspector()
	l.ListenerFiltersTimeout = durationpb.New(helloTimeout)
	l.MaxConnectionsToAcceptPerSocketEvent, l.TcpBacklogSize = wrapperspb.UInt32(1), wrapperspb.UInt32(publicBacklog)
	own := chainFor(inst.Domain.GatewayReplica(me),
		handshakeLimit(inst),
		filter("envoy.filters.network.rbac", deny(inst.Domain, denied)),
		filter("envoy.filters.network.reverse_tunnel", reverseTunnel()))
	// Only the leaves of edges have names that end so. A regular expression would do for short tunnel domains alone: Envoy
	// refuses large ones, and that only once the trust bundle arrives.
	own.TransportSocket = serverTLS(model.Subject{Role: model.RoleGateway, Node: me}, endingWith(inst.Domain.TunnelIDSuffix()))
	own.TransportSocketConnectTimeout = durationpb.New(handshakeTimeout)
	l.FilterChains = []*listenerv3.FilterChain{own, chainFor(inst.Domain.Control(), tcpProxyFilter(recorded(OwnerControl, passedOn("control", controlCluster))))}
	for _, g := range inst.Gateways {
		if g.Name != me && g.Peer != (model.Endpoint{}) {
			relay := recorded(OwnerRelay, passedOn("peer", peerCluster(g.Name)))
			l.FilterChains = append(l.FilterChains, chainFor(inst.Domain.GatewayReplica(g.Name), tcpProxyFilter(relay)))
		}
	}
	return l
}

// reverseTunnel accepts the handshake of an edge. Both ids must be those of its leaf: a tunnel is found by either, so an
// edge that could choose one of them would get the connections of another. The tenant id is the installation's one. Envoy
// bounds all headers together at 60 KiB and has no smaller bound; no header is used or recorded but these three.
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

// gatewayAPIServer is the SNI route: the name of the Envoy cluster is the SNI that the client sends, so the listener is
// the same however many tunnels there are. TLS is the client's and the apiserver's own.
func gatewayAPIServer(inst model.Installation, at model.Endpoint, version Version) *listenerv3.Listener {
	l := listening(apiserverListener, at, clientKeepalive())
	l.ListenerFilters = tlsInspector()
	l.ListenerFiltersTimeout = durationpb.New(lostTimeout)
	proxy := tcpProxy("apiserver", noSuchTunnelCluster) // never used: the filter state has another name
	proxy.AccessLog = accessLog(inst.AccessLog, apiserverListener, version)
	proxy.MaxConnectAttempts = wrapperspb.UInt32(connectAttempts)
	proxy.BackoffOptions = &corev3.BackoffStrategy{BaseInterval: durationpb.New(connectBackoff), MaxInterval: durationpb.New(connectBackoff)}
	proxy.TunnelingConfig = &tcpproxyv3.TcpProxy_TunnelingConfig{Hostname: "%REQUESTED_SERVER_NAME%:6443"}
	l.FilterChains = []*listenerv3.FilterChain{{
		Name:    apiserverListener,
		Filters: []*listenerv3.Filter{filter("envoy.filters.network.set_filter_state", clusterBySNI()), tcpProxyFilter(proxy)},
	}}
	l.FilterChainMatcher = chainForDNSNames(apiserverListener)
	return l
}

// clusterBySNI tells the TCP proxy behind it which Envoy cluster to use.
func clusterBySNI() *setstatev3.Config {
	return &setstatev3.Config{OnNewConnection: []*filterstatev3.FilterStateValue{{
		Key: &filterstatev3.FilterStateValue_ObjectKey{ObjectKey: "envoy.tcp_proxy.cluster"},
		Value: &filterstatev3.FilterStateValue_FormatString{FormatString: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{InlineString: "%REQUESTED_SERVER_NAME%"},
			}},
		}},
	}}}
}

// gatewayConnect is the CONNECT route: the name of the Envoy cluster is the authority, without its port. It answers 200,
// 404 for a name that no tunnel has, and 503 if a tunnel stays down for as long as the SNI route holds a connection.
func gatewayConnect(inst model.Installation, at model.Endpoint, version Version) *listenerv3.Listener {
	l := listening(connectListener, at, clientKeepalive())
	match := connectMatch()
	match.Headers = []*routev3.HeaderMatcher{{
		Name:                 ":authority",
		HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: dnsName()},
	}}
	manager := connectManager("connect", &routev3.Route{Match: match, Action: &routev3.Route_Route{Route: &routev3.RouteAction{
		ClusterSpecifier:            &routev3.RouteAction_ClusterHeader{ClusterHeader: ":authority"},
		ClusterNotFoundResponseCode: routev3.RouteAction_NOT_FOUND,
		Timeout:                     durationpb.New(0), // a connection lasts as long as its two ends want
		RetryPolicy: &routev3.RetryPolicy{
			// Of the tunnel; an edge's own 503 is passed on. Until there is an answer nothing of the client has been sent, so what was on its way
			// in a tunnel that ends is sent again.
			RetryOn:      "connect-failure,refused-stream,reset",
			NumRetries:   wrapperspb.UInt32(connectAttempts - 1),
			RetryBackOff: &routev3.RetryPolicy_RetryBackOff{BaseInterval: durationpb.New(connectBackoff), MaxInterval: durationpb.New(connectBackoff)},
		},
	}}})
	manager.AccessLog = accessLog(inst.AccessLog, connectListener, version)
	manager.CodecType = hcmv3.HttpConnectionManager_HTTP1
	manager.StripPortMode = &hcmv3.HttpConnectionManager_StripAnyHostPort{StripAnyHostPort: true}
	manager.StripTrailingHostDot = true
	// Whose tunnel has ended hears so at once, as by SNI. By default Envoy would wait for a second, for the client to close first.
	manager.DelayedCloseTimeout = durationpb.New(0)
	// A client sends its first message at once. A client that Envoy has lost is closed and retries:
	// docs/decisions/0023-client-first-message.md.
	manager.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(lostTimeout)}
	l.FilterChains = []*listenerv3.FilterChain{{Name: connectListener, Filters: []*listenerv3.Filter{managerFilter(manager)}}}
	return l
}
