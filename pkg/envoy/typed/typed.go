// Package typed makes parts of Envoy resources that the same message or text always gives: encoded extensions, matches,
// ranges, internal listeners, options of sockets and groups of hosts. The package does not know which extensions
// Fairlead uses.
package typed

import (
	"net/netip"

	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	headermutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	upstreamhttpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Pack encodes the configuration of an extension deterministically. It panics if a string is not UTF-8.
func Pack(message proto.Message) *anypb.Any {
	packed := &anypb.Any{}
	if err := anypb.MarshalFrom(packed, message, proto.MarshalOptions{Deterministic: true}); err != nil {
		// Only a string that is not UTF-8 cannot be encoded, and no validated name contains one.
		panic(err)
	}
	return packed
}

// Extension is Pack with a name.
func Extension(name string, config proto.Message) *corev3.TypedExtensionConfig {
	return &corev3.TypedExtensionConfig{Name: name, TypedConfig: Pack(config)}
}

// HTTPProtocols is the key of an Envoy cluster's HTTP options.
const HTTPProtocols = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

// HTTPOptions returns the HTTP options of an Envoy cluster.
func HTTPOptions(options *upstreamhttpv3.HttpProtocolOptions) map[string]*anypb.Any {
	return map[string]*anypb.Any{HTTPProtocols: Pack(options)}
}

// SocketOption sets an option of the sockets of an Envoy cluster before they connect: see setsockopt(2). description
// is its name.
func SocketOption(description string, level, name, value int64) *corev3.BindConfig {
	return &corev3.BindConfig{SocketOptions: []*corev3.SocketOption{{
		Description: description,
		Level:       level,
		Name:        name,
		Value:       &corev3.SocketOption_IntValue{IntValue: value},
		State:       corev3.SocketOption_STATE_PREBIND,
	}}}
}

// HTTPFilter returns a filter of an HTTP connection manager.
func HTTPFilter(name string, config proto.Message) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: Pack(config)}}
}

// Text returns a text as a data source.
func Text(text string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: text}}
}

// ConnectMatch matches CONNECT requests.
func ConnectMatch() *routev3.RouteMatch {
	return &routev3.RouteMatch{
		PathSpecifier: &routev3.RouteMatch_ConnectMatcher_{ConnectMatcher: &routev3.RouteMatch_ConnectMatcher{}},
	}
}

// RetryAnswers makes a retry policy also repeat requests whose answer has a header. It returns the policy.
func RetryAnswers(policy *routev3.RetryPolicy, header string) *routev3.RetryPolicy {
	if len(policy.GetRetriableHeaders()) == 0 {
		policy.RetryOn += ",retriable-headers"
	}
	policy.RetriableHeaders = append(policy.RetriableHeaders, &routev3.HeaderMatcher{
		Name: header, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
	})
	return policy
}

// EarlyHeaders changes the headers of each request before Envoy uses any of them. It sets some, whatever the request
// contains, and removes X-Forwarded-For: an HTTP connection manager, and each one behind it, would take the address of
// the connection from it.
func EarlyHeaders(set ...*corev3.HeaderValue) []*corev3.TypedExtensionConfig {
	config := &headermutationv3.HeaderMutation{}
	for _, header := range set {
		config.Mutations = append(config.Mutations, &mutationv3.HeaderMutation{
			Action: &mutationv3.HeaderMutation_Append{Append: &corev3.HeaderValueOption{
				Header: header, AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
			}},
		})
	}
	config.Mutations = append(config.Mutations, &mutationv3.HeaderMutation{
		Action: &mutationv3.HeaderMutation_Remove{Remove: "x-forwarded-for"},
	})
	return []*corev3.TypedExtensionConfig{Extension("identity", config)}
}

// CIDRRanges returns ranges of addresses.
func CIDRRanges(networks []netip.Prefix) []*corev3.CidrRange {
	ranges := make([]*corev3.CidrRange, 0, len(networks))
	for _, n := range networks {
		ranges = append(ranges, &corev3.CidrRange{
			AddressPrefix: n.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(n.Bits())),
		})
	}
	return ranges
}

// InternalListener returns a listener that only Envoy itself can connect to, at InternalHost.
func InternalListener(name, statPrefix string, filters ...*listenerv3.Filter) *listenerv3.Listener {
	return &listenerv3.Listener{
		Name:       name,
		StatPrefix: statPrefix,
		ListenerSpecifier: &listenerv3.Listener_InternalListener{
			InternalListener: &listenerv3.Listener_InternalListenerConfig{},
		},
		FilterChains: []*listenerv3.FilterChain{{Filters: filters}},
	}
}

// InternalHost returns an internal listener as a host of an Envoy cluster.
func InternalHost(listener string) *endpointv3.LbEndpoint {
	specifier := &corev3.EnvoyInternalAddress_ServerListenerName{ServerListenerName: listener}
	at := &corev3.Address{Address: &corev3.Address_EnvoyInternalAddress{
		EnvoyInternalAddress: &corev3.EnvoyInternalAddress{AddressNameSpecifier: specifier},
	}}
	return &endpointv3.LbEndpoint{
		HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: at}},
	}
}

// NetworkFilter returns a filter of connections.
func NetworkFilter(name string, config proto.Message) *listenerv3.Filter {
	return &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: Pack(config)}}
}

// LoadAssignment returns the endpoints of an Envoy cluster: one group for each priority, highest first.
func LoadAssignment(cluster string, groups ...[]*endpointv3.LbEndpoint) *endpointv3.ClusterLoadAssignment {
	a := &endpointv3.ClusterLoadAssignment{ClusterName: cluster}
	for i, group := range groups {
		a.Endpoints = append(a.Endpoints, &endpointv3.LocalityLbEndpoints{Priority: uint32(i), LbEndpoints: group})
	}
	return a
}
