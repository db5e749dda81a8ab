package envoy

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fairlead/fairlead/pkg/envoy/accesslog"
	"github.com/fairlead/fairlead/pkg/envoy/multiplex"
	"github.com/fairlead/fairlead/pkg/envoy/network"
	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

// apiserverHeader is the name of the Envoy cluster of a request on the forward chain. A gateway overwrites it.
const apiserverHeader = "x-fairlead-apiserver"

// networkChains returns the filter chains of the public listener for apiservers that reach networks, and for machines
// of networks that reach their apiserver.
func networkChains(inst model.Installation, me string, version Version) []*listenerv3.FilterChain {
	if !version.Networks() {
		return nil
	}
	chains := []*listenerv3.FilterChain{
		terminating(
			inst, me, inst.Domain.Egress(), inst.Domain.EgressIDSuffix(), egressManager(inst, version), "h2", "http/1.1",
		),
		terminating(
			inst, me, inst.Domain.Forward(), inst.Domain.TunnelIDSuffix(), forwardManager(inst, version), "h2",
		),
	}
	// An apiserver that dials the gateways itself verifies the SNI, and leaves of gateways have only their own names.
	match := chains[0].GetFilterChainMatch()
	match.ServerNames = append(match.GetServerNames(), inst.Domain.Gateway())
	return chains
}

// terminating returns a filter chain for leaves with a suffix.
func terminating(
	inst model.Installation, me, serverName, suffix string, manager *listenerv3.Filter, alpn ...string,
) *listenerv3.FilterChain {
	chain := chainFor(serverName, handshakeLimit(inst), manager)
	chain.TransportSocket = serverTLS(model.Subject{Role: model.RoleGateway, Node: me}, endingWith(suffix), alpn...)
	chain.TransportSocketConnectTimeout = durationpb.New(handshakeTimeout)
	return chain
}

// egressManager accepts CONNECT of apiservers, by HTTP/2 from the Envoy beside an apiserver, or by HTTP/1 from an
// apiserver itself. The leaf decides which routes apply, whatever the request contains.
func egressManager(inst model.Installation, version Version) *listenerv3.Filter {
	manager := connectManager(record.OwnerEgress, nil)
	manager.RouteSpecifier = network.ScopedRoutes(scopeSource())
	manager.CodecType = hcmv3.HttpConnectionManager_AUTO
	manager.HttpFilters = append(network.ScopeFilters(), manager.HttpFilters...)
	manager.LocalReplyConfig = network.GatewayReplies()
	manager.DelayedCloseTimeout = durationpb.New(answerTimeout)
	return identified(manager, inst, version, record.OwnerEgress, network.IdentityHeader, "%DOWNSTREAM_PEER_DNS_SAN%")
}

// forwardManager accepts CONNECT of edges. The leaf decides which apiserver it leads to.
func forwardManager(inst model.Installation, version Version) *listenerv3.Filter {
	manager := connectManager(record.OwnerForward, &routev3.Route{
		Match: typed.ConnectMatch(), Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier:            &routev3.RouteAction_ClusterHeader{ClusterHeader: apiserverHeader},
			ClusterNotFoundResponseCode: routev3.RouteAction_NOT_FOUND,
			Timeout:                     durationpb.New(0), // a connection lasts until one of its ends closes
			RetryPolicy:                 retryTunnel(inst, version),
		}},
	})
	manager.CodecType = hcmv3.HttpConnectionManager_HTTP2
	return identified(
		manager, inst, version, record.OwnerForward, apiserverHeader, forwardCluster("%DOWNSTREAM_PEER_DNS_SAN%"),
	)
}

// identified adds a header from the leaf before the routes are selected, and what both chains have in common.
func identified(
	manager *hcmv3.HttpConnectionManager, inst model.Installation, version Version, owner, header, value string,
) *listenerv3.Filter {
	manager.EarlyHeaderMutationExtensions = typed.EarlyHeaders(&corev3.HeaderValue{Key: header, Value: value})
	manager.Http2ProtocolOptions = multiplex.Edge()
	manager.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(multiplex.UnusedAfter)}
	manager.RequestHeadersTimeout = durationpb.New(helloTimeout)
	manager.AccessLog = append(
		accesslog.Finished(accesslog.Of(inst.AccessLog, owner, version.has(connectionLogged))), record.Requests(owner),
	)
	manager.AccessLogOptions = &hcmv3.HttpConnectionManager_HcmAccessLogOptions{FlushAccessLogOnNewRequest: true}
	return managerFilter(manager)
}
