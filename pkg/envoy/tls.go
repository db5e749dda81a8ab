package envoy

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/sds"
	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

const tlsName = "envoy.transport_sockets.tls"

// serverTLS accepts a peer whose leaf was issued under self's trust bundle and has a DNS name that matches peer.
func serverTLS(self model.Subject, peer *matcherv3.StringMatcher, alpn ...string) *corev3.TransportSocket {
	return transportSocket(tlsName, &tlsv3.DownstreamTlsContext{
		RequireClientCertificate: wrapperspb.Bool(true),
		CommonTlsContext:         commonTLS(self, peer, alpn),
		// A resumed session is not verified again: a leaf would be accepted after its expiry.
		SessionTicketKeysType: &tlsv3.DownstreamTlsContext_DisableStatelessSessionResumption{
			DisableStatelessSessionResumption: true,
		},
		DisableStatefulSessionResumption: true,
	})
}

// clientTLS requests a server by SNI, and accepts it if its leaf was issued under self's trust bundle and has that
// name.
func clientTLS(self model.Subject, server string, alpn ...string) *corev3.TransportSocket {
	return clientTLSBy(self, server, server, alpn...)
}

// clientTLSBy is clientTLS for a server with another name in its leaf.
func clientTLSBy(self model.Subject, sni, server string, alpn ...string) *corev3.TransportSocket {
	return transportSocket(tlsName, &tlsv3.UpstreamTlsContext{
		Sni:              sni,
		CommonTlsContext: commonTLS(self, exactly(server), alpn),
		MaxSessionKeys:   wrapperspb.UInt32(0), // no resumption, see serverTLS
	})
}

func transportSocket(name string, config proto.Message) *corev3.TransportSocket {
	return &corev3.TransportSocket{
		Name: name, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: typed.Pack(config)},
	}
}

// commonTLS is common to both sides of every connection between Fairlead's own programs. Envoy keeps one copy of each
// secret, however many TLS contexts name it.
func commonTLS(self model.Subject, peer *matcherv3.StringMatcher, alpn []string) *tlsv3.CommonTlsContext {
	identity, trust := sds.Names(self)
	return &tlsv3.CommonTlsContext{
		// Only Fairlead's own programs are peers, and they all support the newest version. As a client, Envoy uses it
		// only if the maximum is set too.
		TlsParams: &tlsv3.TlsParameters{
			TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
			TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
		},
		AlpnProtocols:                  alpn,
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{secretFromAgent(identity)},
		ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext: &tlsv3.CertificateValidationContext{
					MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{
						{SanType: tlsv3.SubjectAltNameMatcher_DNS, Matcher: peer},
					},
				},
				ValidationContextSdsSecretConfig: secretFromAgent(trust),
			},
		},
	}
}

func secretFromAgent(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ResourceApiVersion: corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType:             corev3.ApiConfigSource_GRPC,
			TransportApiVersion: corev3.ApiVersion_V3,
			GrpcServices:        []*corev3.GrpcService{agentService()},
		}},
	}}
}

func exactly(name string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: name}}
}

func endingWith(suffix string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: suffix}}
}
