package network

import (
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	celv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
)

// addressDenied matches the answer of an edge to an address that it must not dial. Envoy's own status is that of a
// failed DNS query.
const addressDenied = "response.code_details == 'dns_resolution_failure{address_denied}'"

// GatewayReplies make a gateway answer 403 to an apiserver without a network for its destination.
func GatewayReplies() *hcmv3.LocalReplyConfig {
	return &hcmv3.LocalReplyConfig{Mappers: []*hcmv3.ResponseMapper{
		reply(flagged("NR"), 403, "refused by the gateway: no network of the cluster contains this destination"),
	}}
}

// edgeReplies make an edge answer 403 for each destination that it refuses, and 502 for a name that it cannot resolve:
// 503 is Envoy's own answer to that and to an address that does not answer.
func edgeReplies() *hcmv3.LocalReplyConfig {
	denied := &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ExtensionFilter{
		ExtensionFilter: &accesslogv3.ExtensionFilter{
			Name: "denied",
			ConfigType: &accesslogv3.ExtensionFilter_TypedConfig{
				TypedConfig: typed.Pack(&celv3.ExpressionFilter{Expression: addressDenied}),
			},
		},
	}}
	return &hcmv3.LocalReplyConfig{Mappers: []*hcmv3.ResponseMapper{
		reply(denied, 403, "refused by the edge: its network does not contain this address"),
		reply(flagged("NR"), 403, "refused by the edge: its network does not contain this destination"),
		reply(flagged("DF"), 502, "the DNS of the network does not resolve this name"),
	}}
}

// flagged matches answers with a response flag of Envoy: NR without a route, DF after a failed DNS query.
func flagged(flag string) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
		ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: []string{flag}},
	}}
}

func reply(when *accesslogv3.AccessLogFilter, code uint32, body string) *hcmv3.ResponseMapper {
	return &hcmv3.ResponseMapper{Filter: when, StatusCode: wrapperspb.UInt32(code), Body: typed.Text(body)}
}
