package network

import (
	"net/netip"
	"slices"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	dfpclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dynamic_forward_proxy/v3"
	dfpcachev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/dynamic_forward_proxy/v3"
	dfpfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/dynamic_forward_proxy/v3"
	rbacfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	codecv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/upstream_codec/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	addressv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/rbac/matchers/upstream_ip_port/v3"
	upstreamhttpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/accesslog"
	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

// HTTP filters of an edge's listeners, in order.
const (
	identityFilter = "identity" // rejects other apiservers
	targetsFilter  = "targets"  // resolves the address of a target
)

// HTTP filters of the Envoy cluster that dials for apiservers, in order.
const (
	neverFilter     = "never" // rejects addresses that no edge dials
	permittedFilter = "permitted"
)

const (
	// dialTimeout bounds an edge's connection attempt to an address in its network, which takes one round trip.
	dialTimeout = 2 * time.Second
	// queryTimeout bounds a DNS query of an edge: with dialTimeout it bounds the wait of an apiserver, which sets no
	// deadline.
	queryTimeout = 2 * time.Second
	// addressTTL is how long an edge keeps the address of a destination that it has not dialled again. refreshRate and
	// minRefreshRate bound the time between two DNS queries for a destination in use.
	addressTTL     = time.Minute
	refreshRate    = time.Minute
	minRefreshRate = 5 * time.Second
	// maxDestinations is how many destinations an edge may dial within addressTTL. Each uses 3 to 6 KB of its memory.
	maxDestinations = 16384
)

// literal matches an authority that is an IP address and a port.
const literal = `([0-9]+(\.[0-9]+){3}|\[[0-9A-Fa-f:.]+\]):[0-9]+`

// Edge is one edge of a network.
type Edge struct {
	Domain   model.TunnelDomain
	Node     string
	Network  model.Network
	Excluded []netip.Prefix // never dialled, in addition to model.NeverDialled: the gateways' addresses
	Buffer   uint32         // of a connection, in bytes
	// Keepalive and Limits apply to the connections that it dials.
	Keepalive *corev3.TcpKeepalive
	Limits    *clusterv3.CircuitBreakers
}

// networkCluster and targetsCluster return the names of the Envoy clusters of an edge.
func networkCluster(node string) string { return "network_" + node }
func targetsCluster(node string) string { return "targets_" + node }

// dialled returns the addresses that the edge dials for apiservers.
func (e Edge) dialled() destinations {
	if e.Network.EgressID == "" {
		return destinations{}
	}
	return destinations{e.Network.CIDRs, slices.Concat(model.NeverDialled(), e.Excluded)}
}

// dialledForTargets returns the addresses that the edge dials for targets: only theirs, or any if one is a name, and
// never a gateway.
func (e Edge) dialledForTargets() destinations {
	var all []netip.Prefix
	for _, t := range e.Network.Targets {
		addr, err := netip.ParseAddr(t.Address.Host)
		if err != nil {
			all = everything()
			break
		}
		all = append(all, netip.PrefixFrom(addr, addr.BitLen()))
	}
	all = slices.Compact(slices.SortedFunc(slices.Values(all), netip.Prefix.Compare))
	return destinations{all, slices.Concat(model.NeverDialled(), e.Excluded)}
}

// Manager adds everything to the HTTP connection manager of a reverse tunnel that depends on the network, except what
// Clusters has: its routes, filters, answers and log. Its other filters remain, before the router. CIDRs and ports are
// not part of it: Envoy ends the streams of a reverse tunnel whose listener changes.
func (e Edge) Manager(m *hcmv3.HttpConnectionManager) {
	last := len(m.GetHttpFilters()) - 1
	m.HttpFilters = slices.Insert(m.GetHttpFilters(), last, e.filters()...)
	m.LocalReplyConfig = edgeReplies()
	m.AccessLog = append(m.GetAccessLog(), accesslog.Refusals())
	m.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
		IgnorePortInHostMatching: true,
		VirtualHosts:             e.hosts(),
	}}
}

// filters returns the filters of a listener.
func (e Edge) filters() (filters []*hcmv3.HttpFilter) {
	if !e.dialled().none() {
		filters = append(filters,
			rbac(identityFilter, rbacv3.RBAC_ALLOW, []*rbacv3.Principal{apiserver(e.Domain.EgressID(e.Network.EgressID))},
				&rbacv3.Permission{Rule: &rbacv3.Permission_Any{Any: true}}))
	}
	if dialled := e.dialledForTargets(); !dialled.none() {
		filters = append(filters, typed.HTTPFilter(targetsFilter, &dfpfilterv3.FilterConfig{
			ImplementationSpecifier: &dfpfilterv3.FilterConfig_DnsCacheConfig{
				DnsCacheConfig: cache(targetsCluster(e.Node), dialled),
			},
		}))
	}
	return filters
}

// hosts returns the virtual hosts of the targets, of the DNS suffixes, and of addresses.
func (e Edge) hosts() (hosts []*routev3.VirtualHost) {
	egress, targets := !e.dialled().none(), !e.dialledForTargets().none()
	if targets {
		for _, t := range e.Network.Targets {
			host := host(t.Name, []string{t.Name}, terminated(targetsCluster(e.Node), typed.ConnectMatch()))
			if egress {
				without(host, identityFilter)
			}
			perFilter(host, targetsFilter, &dfpfilterv3.PerRouteConfig{
				HostRewriteSpecifier: &dfpfilterv3.PerRouteConfig_HostRewriteLiteral{HostRewriteLiteral: t.Address.String()},
			})
			hosts = append(hosts, host)
		}
	}
	if !egress {
		return hosts
	}
	var names []string
	for _, suffix := range e.Network.Suffixes {
		names = append(names, suffix, "*."+suffix)
	}
	all := []*routev3.VirtualHost{host(addressesHost, []string{"*"}, terminated(networkCluster(e.Node), literalMatch()))}
	if len(names) > 0 {
		all = append(all, host("names", names, terminated(networkCluster(e.Node), typed.ConnectMatch())))
	}
	for _, host := range all {
		if targets {
			without(host, targetsFilter)
		}
		hosts = append(hosts, host)
	}
	return hosts
}

func host(name string, domains []string, route *routev3.Route) *routev3.VirtualHost {
	return &routev3.VirtualHost{Name: name, Domains: domains, Routes: []*routev3.Route{route}}
}

func literalMatch() *routev3.RouteMatch {
	match := typed.ConnectMatch()
	match.Headers = []*routev3.HeaderMatcher{{
		Name: ":authority",
		HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: literal}},
		}},
	}}
	return match
}

// terminated answers CONNECT, and forwards the bytes that follow.
func terminated(cluster string, match *routev3.RouteMatch) *routev3.Route {
	return &routev3.Route{Match: match, Action: &routev3.Route_Route{Route: &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
		Timeout:          durationpb.New(0), // a connection lasts until one of its ends closes
		UpgradeConfigs: []*routev3.RouteAction_UpgradeConfig{{
			UpgradeType:   "CONNECT",
			ConnectConfig: &routev3.RouteAction_UpgradeConfig_ConnectConfig{},
		}},
	}}}
}

// without disables filters for a virtual host.
func without(h *routev3.VirtualHost, filters ...string) {
	for _, name := range filters {
		perFilter(h, name, &routev3.FilterConfig{Disabled: true})
	}
}

func perFilter(h *routev3.VirtualHost, name string, config proto.Message) {
	if h.TypedPerFilterConfig == nil {
		h.TypedPerFilterConfig = map[string]*anypb.Any{}
	}
	h.TypedPerFilterConfig[name] = typed.Pack(config)
}

// Clusters returns the Envoy clusters of the edge that dial addresses of its network.
func (e Edge) Clusters() (clusters []*clusterv3.Cluster) {
	if dialled := e.dialled(); !dialled.none() {
		c := e.cluster(networkCluster(e.Node), dialled)
		c.TypedExtensionProtocolOptions = typed.HTTPOptions(e.checks())
		clusters = append(clusters, c)
	}
	if dialled := e.dialledForTargets(); !dialled.none() {
		clusters = append(clusters, e.cluster(targetsCluster(e.Node), dialled))
	}
	return clusters
}

// checks returns the options of an Envoy cluster with filters that check the address of a destination before it is
// dialled. The check of the resolved addresses, in the DNS cache, is the only one for all addresses of a name: these
// filters read the first one, and Envoy dials the next if that fails.
func (e Edge) checks() *upstreamhttpv3.HttpProtocolOptions {
	return &upstreamhttpv3.HttpProtocolOptions{
		// Envoy requires both, and they have no effect without TLS.
		UpstreamHttpProtocolOptions: &corev3.UpstreamHttpProtocolOptions{AutoSni: true, AutoSanValidation: true},
		UpstreamProtocolOptions: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{
					HttpProtocolOptions: &corev3.Http1ProtocolOptions{},
				},
			},
		},
		HttpFilters: []*hcmv3.HttpFilter{
			rbac(neverFilter, rbacv3.RBAC_DENY, anyone(), addresses(model.NeverDialled())),
			rbac(permittedFilter, rbacv3.RBAC_ALLOW, anyone(), &rbacv3.Permission{Rule: &rbacv3.Permission_AndRules{
				AndRules: &rbacv3.Permission_Set{Rules: []*rbacv3.Permission{
					addresses(e.Network.CIDRs), ports(e.Network.AllowedPorts()),
				}},
			}}),
			typed.HTTPFilter("envoy.filters.http.upstream_codec", &codecv3.UpstreamCodec{}),
		},
	}
}

func (e Edge) cluster(name string, dialled destinations) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:           name,
		ConnectTimeout: durationpb.New(dialTimeout),
		LbPolicy:       clusterv3.Cluster_CLUSTER_PROVIDED,
		ClusterDiscoveryType: &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
			Name: "envoy.clusters.dynamic_forward_proxy",
			TypedConfig: typed.Pack(&dfpclusterv3.ClusterConfig{
				ClusterImplementationSpecifier: &dfpclusterv3.ClusterConfig_DnsCacheConfig{
					DnsCacheConfig: cache(name, dialled),
				},
			}),
		}},
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(e.Buffer),
		UpstreamConnectionOptions:     &clusterv3.UpstreamConnectionOptions{TcpKeepalive: e.Keepalive},
		CircuitBreakers:               e.Limits,
	}
}

// rbac returns an HTTP filter with one policy. In an Envoy cluster it is Envoy's upstream RBAC filter.
func rbac(
	name string, action rbacv3.RBAC_Action, of []*rbacv3.Principal, may ...*rbacv3.Permission,
) *hcmv3.HttpFilter {
	return typed.HTTPFilter(name, &rbacfilterv3.RBAC{
		RulesStatPrefix: name + "_",
		Rules: &rbacv3.RBAC{
			Action:   action,
			Policies: map[string]*rbacv3.Policy{name: {Principals: of, Permissions: may}},
		},
	})
}

func anyone() []*rbacv3.Principal {
	return []*rbacv3.Principal{{Identifier: &rbacv3.Principal_Any{Any: true}}}
}

// apiserver matches the apiserver that a gateway has authenticated.
func apiserver(name string) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Header{Header: &routev3.HeaderMatcher{
		Name: IdentityHeader,
		HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_Exact{Exact: name},
		}},
	}}}
}

func addresses(in []netip.Prefix) *rbacv3.Permission {
	var rules []*rbacv3.Permission
	for _, cidr := range typed.CIDRRanges(in) {
		rules = append(rules, upstream(&addressv3.UpstreamIpPortMatcher{UpstreamIp: cidr}))
	}
	return oneOf(rules)
}

func ports(in []model.PortRange) *rbacv3.Permission {
	var rules []*rbacv3.Permission
	for _, p := range in {
		rules = append(rules, upstream(&addressv3.UpstreamIpPortMatcher{
			// Envoy includes the end here, unlike in its other ranges.
			UpstreamPortRange: &typev3.Int64Range{Start: int64(p.First), End: int64(p.Last)},
		}))
	}
	return oneOf(rules)
}

func oneOf(rules []*rbacv3.Permission) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_OrRules{OrRules: &rbacv3.Permission_Set{Rules: rules}}}
}

func upstream(matcher *addressv3.UpstreamIpPortMatcher) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_Matcher{Matcher: typed.Extension("address", matcher)}}
}

// cache returns a DNS cache that removes every address that is not dialled from the answers, whenever they change. It
// also applies to a destination that is an address.
func cache(prefix string, dialled destinations) *dfpcachev3.DnsCacheConfig {
	return named(prefix, &dfpcachev3.DnsCacheConfig{
		DnsLookupFamily:            clusterv3.Cluster_ALL,
		DnsRefreshRate:             durationpb.New(refreshRate),
		DnsMinRefreshRate:          durationpb.New(minRefreshRate),
		DisableDnsRefreshOnFailure: true,
		HostTtl:                    durationpb.New(addressTTL),
		MaxHosts:                   wrapperspb.UInt32(maxDestinations),
		DnsQueryTimeout:            durationpb.New(queryTimeout),
		ResolvedAddressFilter:      dialled.filter(),
		TypedDnsResolverConfig:     resolver(),
	})
}
