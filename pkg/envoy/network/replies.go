package network

import (
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	celv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
)

// RepeatHeader is in the answer of an edge that must be asked again: see known.
const RepeatHeader = "x-fairlead-repeat"

// addressDenied matches the answer of an edge to an address that it must not dial, and unresolved the answer to a name
// that does not resolve. Envoy's own status is the same for both, and its response flag depends on where it resolves.
const (
	addressDenied = "response.code_details == 'dns_resolution_failure{address_denied}'"
	unresolved    = "response.code_details.startsWith('dns_resolution_failure{')"
	// known matches an answer that contains the result of a DNS query: Envoy 1.40 had the addresses, but answered 503 "no
	// healthy upstream", because another request for the same destination caused the query and it ended in that moment.
	known = "response.code_details.startsWith('cares_')"
)

// GatewayReplies make a gateway answer 403 to an apiserver without a network for its destination.
func GatewayReplies() *hcmv3.LocalReplyConfig {
	return &hcmv3.LocalReplyConfig{Mappers: []*hcmv3.ResponseMapper{
		reply(flagged("NR"), 403, "refused by the gateway: no network of the cluster contains this destination"),
	}}
}

// edgeReplies make an edge answer 403 for each destination that it refuses, and 502 for a name that it cannot resolve:
// 503 is Envoy's own answer to that and to an address that does not answer. RepeatHeader makes a gateway ask again.
func edgeReplies() *hcmv3.LocalReplyConfig {
	return &hcmv3.LocalReplyConfig{Mappers: []*hcmv3.ResponseMapper{
		reply(detailed("denied", addressDenied), 403, "refused by the edge: its network does not contain this address"),
		reply(flagged("NR"), 403, "refused by the edge: its network does not contain this destination"),
		reply(detailed("unresolved", unresolved), 502, "the DNS of the network does not resolve this name"),
		{Filter: detailed("known", known), HeadersToAdd: []*corev3.HeaderValueOption{{
			Header: &corev3.HeaderValue{Key: RepeatHeader, Value: "known"},
		}}},
	}}
}

// detailed matches answers by an expression about Envoy's response code details.
func detailed(name, expression string) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ExtensionFilter{
		ExtensionFilter: &accesslogv3.ExtensionFilter{
			Name: name,
			ConfigType: &accesslogv3.ExtensionFilter_TypedConfig{
				TypedConfig: typed.Pack(&celv3.ExpressionFilter{Expression: expression}),
			},
		},
	}}
}

// flagged matches answers with a response flag of Envoy, such as NR: without a route.
func flagged(flag string) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
		ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: []string{flag}},
	}}
}

func reply(when *accesslogv3.AccessLogFilter, code uint32, body string) *hcmv3.ResponseMapper {
	return &hcmv3.ResponseMapper{Filter: when, StatusCode: wrapperspb.UInt32(code), Body: typed.Text(body)}
}
