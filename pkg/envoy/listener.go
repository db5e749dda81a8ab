package envoy

import (
	"net/netip"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	xdsmatcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	inspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	networkinputsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/network/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

// listening returns a listener on a TCP address.
func listening(name string, at model.Endpoint, keepalive *corev3.TcpKeepalive) *listenerv3.Listener {
	address := socketAddress(at)
	if ip, err := netip.ParseAddr(at.Host); err == nil { // all addresses of the machine, not only IPv6
		address.GetSocketAddress().Ipv4Compat = ip.Is6() && ip.IsUnspecified()
	}
	return &listenerv3.Listener{Name: name, StatPrefix: name, Address: address, TcpKeepalive: keepalive}
}

// tlsInspector reads the SNI of a connection before a filter chain is chosen.
func tlsInspector() []*listenerv3.ListenerFilter {
	return []*listenerv3.ListenerFilter{{
		Name:       "envoy.filters.listener.tls_inspector",
		ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: typed.Pack(&inspectorv3.TlsInspector{})},
	}}
}

// chainFor returns a filter chain for one SNI.
func chainFor(serverName string, filters ...*listenerv3.Filter) *listenerv3.FilterChain {
	return &listenerv3.FilterChain{
		Name:             serverName,
		FilterChainMatch: &listenerv3.FilterChainMatch{ServerNames: []string{serverName}},
		Filters:          filters,
	}
}

// chainForDNSNames routes connections whose SNI matches dnsNamePattern to a filter chain, and closes all others.
func chainForDNSNames(chain string) *xdsmatcherv3.Matcher {
	predicate := &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate{
		Input: &xdscorev3.TypedExtensionConfig{Name: "sni", TypedConfig: typed.Pack(&networkinputsv3.ServerNameInput{})},
		Matcher: &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate_ValueMatch{
			ValueMatch: &xdsmatcherv3.StringMatcher{MatchPattern: &xdsmatcherv3.StringMatcher_SafeRegex{
				SafeRegex: &xdsmatcherv3.RegexMatcher{
					EngineType: &xdsmatcherv3.RegexMatcher_GoogleRe2{GoogleRe2: &xdsmatcherv3.RegexMatcher_GoogleRE2{}},
					Regex:      dnsNamePattern,
				},
			}},
		},
	}
	return &xdsmatcherv3.Matcher{
		MatcherType: &xdsmatcherv3.Matcher_MatcherList_{MatcherList: &xdsmatcherv3.Matcher_MatcherList{
			Matchers: []*xdsmatcherv3.Matcher_MatcherList_FieldMatcher{{
				Predicate: &xdsmatcherv3.Matcher_MatcherList_Predicate{
					MatchType: &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate_{SinglePredicate: predicate},
				},
				OnMatch: &xdsmatcherv3.Matcher_OnMatch{OnMatch: &xdsmatcherv3.Matcher_OnMatch_Action{
					Action: &xdscorev3.TypedExtensionConfig{Name: "filter-chain", TypedConfig: typed.Pack(wrapperspb.String(chain))},
				}},
			}},
		}},
	}
}

// dnsName matches an HTTP header that matches dnsNamePattern.
func dnsName() *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{
		MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: dnsNamePattern}},
	}
}

// tcpProxy forwards connections to one Envoy cluster.
func tcpProxy(statPrefix, cluster string) *tcpproxyv3.TcpProxy {
	return &tcpproxyv3.TcpProxy{
		StatPrefix:       statPrefix,
		ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: cluster},
		IdleTimeout:      durationpb.New(idleTimeout),
	}
}

// relayed is a TCP proxy from the public port to the xds-server or another gateway. When the other side has closed a
// connection, Envoy waits for the edge's side to close as well, up to the idle timeout. A hostile source never closes,
// so this timeout is short: the control channel and reverse tunnels have pings.
func relayed(statPrefix, cluster string) *tcpproxyv3.TcpProxy {
	proxy := tcpProxy(statPrefix, cluster)
	proxy.IdleTimeout = durationpb.New(relayedIdleTimeout)
	return proxy
}

func tcpProxyFilter(config *tcpproxyv3.TcpProxy) *listenerv3.Filter {
	return typed.NetworkFilter("envoy.filters.network.tcp_proxy", config)
}

// connectManager is an HTTP connection manager that answers CONNECT, by one route, and everything else with 404.
func connectManager(statPrefix string, route *routev3.Route) *hcmv3.HttpConnectionManager {
	return &hcmv3.HttpConnectionManager{
		StatPrefix:        statPrefix,
		StreamIdleTimeout: durationpb.New(idleTimeout),
		UpgradeConfigs:    []*hcmv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "CONNECT"}},
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			VirtualHosts: []*routev3.VirtualHost{{Name: statPrefix, Domains: []string{"*"}, Routes: []*routev3.Route{route}}},
		}},
		HttpFilters: []*hcmv3.HttpFilter{typed.HTTPFilter("envoy.filters.http.router", &routerv3.Router{})},
	}
}

func managerFilter(config *hcmv3.HttpConnectionManager) *listenerv3.Filter {
	return typed.NetworkFilter("envoy.filters.network.http_connection_manager", config)
}
