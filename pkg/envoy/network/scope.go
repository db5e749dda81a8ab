package network

import (
	"cmp"
	"net/netip"
	"slices"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	xdsmatcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	filterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	headertometadatav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_to_metadata/v3"
	setstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkinputsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/network/v3"
	ipv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/input_matchers/ip/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

// IdentityHeader names the apiserver of a request, with model.TunnelDomain.EgressID. A gateway overwrites it with the
// name in the certificate of the apiserver, selects the scope by it, and removes it from all other requests.
const IdentityHeader = "x-fairlead-egress"

// addressesHost is the virtual host of a scope for IP addresses.
const addressesHost = "addresses"

const (
	metadataNamespace = "fairlead"
	metadataAddress   = "address"
	destinationState  = "fairlead.destination"
	// authorityAddress removes brackets and the port from an authority that is an IP address.
	authorityAddress = `^\[?([0-9a-fA-F.:]+?)\]?:[0-9]+$`
)

// Destination is a network, and the Envoy cluster of a gateway that leads to its edges.
type Destination struct {
	Cluster string
	model.Network
}

// Scope returns the routes of the apiservers whose IdentityHeader is the name. A DNS name is routed by the longest
// suffix, an address by the longest prefix. Of two equal ones the first destination's counts. Everything else has no
// route. retry is changed: it also repeats requests whose answer has RepeatHeader.
func Scope(name string, retry *routev3.RetryPolicy, to []Destination) *routev3.ScopedRouteConfiguration {
	retry = typed.RetryAnswers(retry, RepeatHeader)
	hosts := nameHosts(retry, to)
	if matchers := addressMatchers(to); len(matchers) > 0 {
		hosts = append(hosts, &routev3.VirtualHost{
			Name: addressesHost, Domains: []string{"*"}, RetryPolicy: retry,
			Matcher: &xdsmatcherv3.Matcher{MatcherType: &xdsmatcherv3.Matcher_MatcherList_{
				MatcherList: &xdsmatcherv3.Matcher_MatcherList{Matchers: matchers},
			}},
		})
	}
	return &routev3.ScopedRouteConfiguration{
		Name: name,
		Key: &routev3.ScopedRouteConfiguration_Key{Fragments: []*routev3.ScopedRouteConfiguration_Key_Fragment{
			{Type: &routev3.ScopedRouteConfiguration_Key_Fragment_StringKey{StringKey: name}},
		}},
		RouteConfiguration: &routev3.RouteConfiguration{
			Name:                     name,
			IgnorePortInHostMatching: true,
			ValidateClusters:         wrapperspb.Bool(false), // scopes may arrive before Envoy clusters
			VirtualHosts:             hosts,
		},
	}
}

// nameHosts returns a virtual host for each destination with DNS suffixes. Envoy prefers the longest domain.
func nameHosts(retry *routev3.RetryPolicy, to []Destination) (hosts []*routev3.VirtualHost) {
	taken := map[string]bool{}
	for _, d := range to {
		var domains []string
		for _, suffix := range d.Suffixes {
			if !taken[suffix] {
				taken[suffix] = true
				domains = append(domains, suffix, "*."+suffix)
			}
		}
		if len(domains) > 0 {
			hosts = append(hosts, &routev3.VirtualHost{
				Name: d.Cluster, Domains: domains, RetryPolicy: retry, Routes: []*routev3.Route{routeTo(d.Cluster)},
			})
		}
	}
	return hosts
}

// addressMatchers returns a matcher for each CIDR, the longest prefix first, because the first match counts.
func addressMatchers(to []Destination) (matchers []*xdsmatcherv3.Matcher_MatcherList_FieldMatcher) {
	type prefix struct {
		netip.Prefix
		cluster string
	}
	var all []prefix
	for _, d := range to {
		for _, cidr := range d.CIDRs {
			all = append(all, prefix{cidr, d.Cluster})
		}
	}
	slices.SortStableFunc(all, func(a, b prefix) int { return cmp.Compare(b.Bits(), a.Bits()) })
	for _, p := range all {
		matchers = append(matchers, addressMatcher(p.Prefix, p.cluster))
	}
	return matchers
}

func addressMatcher(cidr netip.Prefix, cluster string) *xdsmatcherv3.Matcher_MatcherList_FieldMatcher {
	predicate := &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate{
		Input: extension("destination", typed.Extension("", &networkinputsv3.FilterStateInput{Key: destinationState})),
		Matcher: &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate_CustomMatch{
			CustomMatch: extension("ip", typed.Extension("", &ipv3.Ip{
				StatPrefix: "egress", CidrRanges: typed.CIDRRanges([]netip.Prefix{cidr}),
			})),
		},
	}
	return &xdsmatcherv3.Matcher_MatcherList_FieldMatcher{
		Predicate: &xdsmatcherv3.Matcher_MatcherList_Predicate{
			MatchType: &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate_{SinglePredicate: predicate},
		},
		OnMatch: &xdsmatcherv3.Matcher_OnMatch{OnMatch: &xdsmatcherv3.Matcher_OnMatch_Action{
			Action: extension("route", typed.Extension("", routeTo(cluster))),
		}},
	}
}

// extension converts Envoy's type of an extension to the equal one of matchers.
func extension(name string, e *corev3.TypedExtensionConfig) *xdscorev3.TypedExtensionConfig {
	return &xdscorev3.TypedExtensionConfig{Name: name, TypedConfig: e.GetTypedConfig()}
}

// routeTo forwards CONNECT to an Envoy cluster.
func routeTo(cluster string) *routev3.Route {
	return &routev3.Route{
		Match: typed.ConnectMatch(),
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
			Timeout:          durationpb.New(0), // a connection lasts until one of its ends closes
		}},
	}
}

// ScopedRoutes makes a gateway select the scope of a request by IdentityHeader. Scopes come from a source.
func ScopedRoutes(from *corev3.ConfigSource) *hcmv3.HttpConnectionManager_ScopedRoutes {
	type builder = hcmv3.ScopedRoutes_ScopeKeyBuilder
	type fragment = hcmv3.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder
	extractor := &hcmv3.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder_HeaderValueExtractor{
		Name: IdentityHeader,
		// The whole value: without a separator there is a single element.
		ExtractType: &hcmv3.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder_HeaderValueExtractor_Index{Index: 0},
	}
	return &hcmv3.HttpConnectionManager_ScopedRoutes{ScopedRoutes: &hcmv3.ScopedRoutes{
		Name: "egress",
		ScopeKeyBuilder: &builder{Fragments: []*fragment{{
			Type: &hcmv3.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder_HeaderValueExtractor_{HeaderValueExtractor: extractor},
		}}},
		ConfigSpecifier: &hcmv3.ScopedRoutes_ScopedRds{ScopedRds: &hcmv3.ScopedRds{ScopedRdsConfigSource: from}},
	}}
}

// WithScopes returns a copy of a listener that has these scopes, at least one, and requests none.
func WithScopes(l *listenerv3.Listener, scopes []*routev3.ScopedRouteConfiguration) *listenerv3.Listener {
	l = proto.CloneOf(l)
	for _, chain := range l.GetFilterChains() {
		for _, filter := range chain.GetFilters() {
			manager := &hcmv3.HttpConnectionManager{}
			if filter.GetTypedConfig().UnmarshalTo(manager) != nil || manager.GetScopedRoutes() == nil {
				continue
			}
			manager.GetScopedRoutes().ConfigSpecifier = &hcmv3.ScopedRoutes_ScopedRouteConfigurationsList{
				ScopedRouteConfigurationsList: &hcmv3.ScopedRouteConfigurationsList{ScopedRouteConfigurations: scopes},
			}
			filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: typed.Pack(manager)}
		}
	}
	return l
}

// ScopeFilters are the HTTP filters of a gateway that let a scope match the address in the authority. Envoy's own
// input for the authority would be a text with brackets and port.
func ScopeFilters() []*hcmv3.HttpFilter {
	return []*hcmv3.HttpFilter{
		typed.HTTPFilter("address", &headertometadatav3.Config{RequestRules: []*headertometadatav3.Config_Rule{{
			Header: ":authority",
			OnHeaderPresent: &headertometadatav3.Config_KeyValuePair{
				MetadataNamespace: metadataNamespace, Key: metadataAddress,
				RegexValueRewrite: &matcherv3.RegexMatchAndSubstitute{
					Pattern: &matcherv3.RegexMatcher{Regex: authorityAddress}, Substitution: `\1`,
				},
			},
		}}}),
		typed.HTTPFilter("destination", &setstatev3.Config{
			ClearRouteCache: true,
			OnRequestHeaders: []*filterstatev3.FilterStateValue{{
				Key:        &filterstatev3.FilterStateValue_ObjectKey{ObjectKey: destinationState},
				FactoryKey: "envoy.string",
				Value: &filterstatev3.FilterStateValue_FormatString{FormatString: inlineFormat(
					"%DYNAMIC_METADATA(" + metadataNamespace + ":" + metadataAddress + ")%")},
			}},
		}),
	}
}

func inlineFormat(text string) *corev3.SubstitutionFormatString {
	return &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_TextFormatSource{
		TextFormatSource: typed.Text(text),
	}}
}
