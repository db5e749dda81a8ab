package envoy

import (
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/accesslog"
	"github.com/fairlead/fairlead/pkg/envoy/multiplex"
	"github.com/fairlead/fairlead/pkg/envoy/nearest"
	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

// localListeners returns the listeners of an edge of a network for machines that reach their apiserver. The bytes pass
// through unchanged, with or without SNI.
func localListeners(inst model.Installation, node string, dial EdgeDial) []*listenerv3.Listener {
	var listeners []*listenerv3.Listener
	for _, at := range unique(dial.Listen) {
		proxy := tcpProxy("local", forwardingCluster(node))
		proxy.AccessLog = accesslog.Of(inst.AccessLog, "local", dial.Version.has(connectionLogged))
		proxy.MaxConnectAttempts = wrapperspb.UInt32(connectAttempts)
		proxy.BackoffOptions = &corev3.BackoffStrategy{
			BaseInterval: durationpb.New(connectBackoff),
			MaxInterval:  durationpb.New(connectBackoff),
		}
		proxy.TunnelingConfig = &tcpproxyv3.TcpProxy_TunnelingConfig{Hostname: localAuthority}
		l := listening(localListenerName(node, at), at, clientKeepalive())
		l.StatPrefix = "local"
		l.Freebind = wrapperspb.Bool(true) // the machine may get the address later
		l.FilterChains = []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{tcpProxyFilter(proxy)}}}
		listeners = append(listeners, l)
	}
	return listeners
}

// IsLocalListener reports whether a resource is a listener of an edge for the machines of its network.
func IsLocalListener(resource *anypb.Any) bool {
	l := &listenerv3.Listener{}
	return resource.UnmarshalTo(l) == nil && strings.HasPrefix(l.GetName(), localListenerPrefix)
}

// egressListeners returns the listener of the Envoy beside an apiserver, or none if it has no path.
func egressListeners(inst model.Installation, node string, dial EdgeDial) []*listenerv3.Listener {
	if dial.Socket == "" {
		return nil
	}
	return []*listenerv3.Listener{egressListener(inst, node, dial)}
}

// egressListener is the Unix socket of the Envoy beside an apiserver. The apiserver sends a CONNECT on each connection;
// they share a few HTTP/2 connections to the gateways.
func egressListener(inst model.Installation, node string, dial EdgeDial) *listenerv3.Listener {
	manager := connectManager(record.OwnerEgress, &routev3.Route{
		Match: typed.ConnectMatch(), Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: egressCluster(node)},
			Timeout:          durationpb.New(0), // a connection lasts until one of its ends closes
			RetryPolicy:      retryGateway(),
		}},
	})
	manager.CodecType = hcmv3.HttpConnectionManager_HTTP1
	manager.DelayedCloseTimeout = durationpb.New(answerTimeout)
	manager.AccessLog = accesslog.Of(inst.AccessLog, record.OwnerEgress, dial.Version.has(connectionLogged))
	return &listenerv3.Listener{
		Name:       egressListenerPrefix + node,
		StatPrefix: record.OwnerEgress,
		Address: &corev3.Address{Address: &corev3.Address_Pipe{
			Pipe: &corev3.Pipe{Path: dial.Socket, Mode: socketMode},
		}},
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{managerFilter(manager)}}},
	}
}

// retryGateway retries at another address of the gateways, so that an apiserver gets an answer within about 4 s: it
// sets no deadline.
func retryGateway() *routev3.RetryPolicy {
	policy := retry(gatewayAttempts, gatewayBackoff)
	policy.RetryHostPredicate = anotherHost()
	policy.HostSelectionRetryMaxAttempts = gatewayAttempts
	return policy
}

// sharedGateways is an Envoy cluster of all gateways, by one name of their public port. Each connection carries many
// streams. Every gateway has the name in its leaf that the client verifies.
func sharedGateways(
	inst model.Installation, self model.Subject, name, serverName string, timeout time.Duration, dial EdgeDial,
) *clusterv3.Cluster {
	var at []model.Endpoint
	for _, g := range inst.Gateways {
		at = append(at, dial.gateways(inst, g)...)
	}
	at = unique(at)
	c := &clusterv3.Cluster{
		Name:                          name,
		ConnectTimeout:                durationpb.New(timeout),
		LoadAssignment:                typed.LoadAssignment(name, endpoints(at...)),
		UpstreamConnectionOptions:     &clusterv3.UpstreamConnectionOptions{TcpKeepalive: tunnelKeepalive()},
		CircuitBreakers:               breaker(unlimited()),
		TransportSocket:               clientTLSBy(self, serverName, inst.Domain.Gateway(), "h2"),
		TypedExtensionProtocolOptions: http2(multiplex.Shared()),
	}
	discoverAll(c, at)
	return c
}

// SharedGateways returns the addresses of the gateways in the Envoy cluster of all of them, of an edge of a network or
// beside an apiserver; nil for any other resource.
func SharedGateways(resource *anypb.Any) []model.Endpoint {
	c := &clusterv3.Cluster{}
	if resource.UnmarshalTo(c) != nil || !IsSharedGateways(c.GetName()) {
		return nil
	}
	return dials(c.GetLoadAssignment().GetEndpoints())
}

// IsSharedGateways reports whether an Envoy cluster of an edge has all gateways.
func IsSharedGateways(name string) bool {
	return strings.HasPrefix(name, forwardingClusterPrefix) || strings.HasPrefix(name, egressClusterPrefix)
}

// PreferNearest returns the Envoy cluster of all gateways with the nearest addresses first, by their ranks. Any other
// resource stays as it is.
func PreferNearest(resource *anypb.Any, rank func(model.Endpoint) int) *anypb.Any {
	at := SharedGateways(resource)
	c := &clusterv3.Cluster{}
	if len(at) < 2 || resource.UnmarshalTo(c) != nil {
		return resource
	}
	var groups [][]*endpointv3.LbEndpoint
	for _, group := range nearest.Groups(at, rank) {
		groups = append(groups, endpoints(group...))
	}
	nearest.Prefer(c, groups...)
	if strings.HasPrefix(c.GetName(), egressClusterPrefix) {
		// in one network with the gateways, unlike an edge, whose uplink may be slow to acknowledge
		noticeSilence(c)
		multiplex.PingOften(c)
	}
	return typed.Pack(c)
}
