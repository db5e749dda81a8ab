package envoy

import (
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	ratelimitconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/ratelimit/v3"
	ratelimitcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	extauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ext_authz/v3"
	localratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/local_ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ratelimit/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	// PublicListener is the listener to which AddAdmission applies.
	PublicListener = publicListener
	// AdmissionForm names what AddAdmission makes. It changes with every change of that, so that an Envoy that an agent takes
	// over gets the listener anew.
	AdmissionForm = "admission-1"
	// AdmissionSource is the key of the descriptor with the source address of a connection.
	AdmissionSource = "source"
	// AdmissionRelayed is the key of the descriptor of a connection that is passed on.
	AdmissionRelayed = "relayed"

	// admissionTimeout is how long a connection waits for the agent's answer before it is admitted without one. An answer takes
	// 0.2 ms. On a machine without a free core it takes longer, and a flood must not be admitted for that.
	admissionTimeout = 200 * time.Millisecond
	// backstop is how many times the rate of new tunnels a filter chain takes in connections, before the agent is asked. All
	// sources share this bucket, so it must not be used up before a worker is: a refused connection costs Envoy 0.4 ms, and
	// with backstopFloor a low rate of tunnels does not make a flood out of fewer connections.
	backstop      = 4
	backstopFloor = backstop * handshakeRate

	reverseTunnelFilter = "envoy.filters.network.reverse_tunnel"
	localLimitFilter    = "envoy.filters.network.local_ratelimit"
)

// AddAdmission returns a gateway's public listener with the filters that ask its agent: in every filter chain, before TLS, whether
// the source may connect; in that of the tunnels, after TLS, whether the edge may open one more. The rate is how many
// tunnels may be opened in a second. The bucket for that, which all clients share, comes behind the agent's answer, so that it holds
// for what is admitted without one. In front is another one, for connections that are refused too. ok is false for a
// resource that is no public listener.
//
// The agent adds these filters and not the xds-server: it is the agent's service that they ask, the policy needs no rule for them,
// and no xds-server can remove them.
func AddAdmission(resource *anypb.Any) (with *anypb.Any, rate int, ok bool) {
	l := &listenerv3.Listener{}
	if resource.UnmarshalTo(l) != nil || l.GetName() != publicListener {
		return resource, 0, false
	}
	rate = tunnelRate(l)
	for _, chain := range l.GetFilterChains() {
		relayed := true
		var filters []*listenerv3.Filter
		for _, f := range chain.GetFilters() {
			switch f.GetName() {
			case localLimitFilter:
				continue
			case reverseTunnelFilter:
				relayed = false
				filters = append(filters, askAboutTunnel())
			}
			filters = append(filters, f)
		}
		chain.Filters = slices.Insert(filters, 0,
			connectionLimit("backstop", max(backstop*rate, backstopFloor)), askAboutConnection(relayed), connectionLimit("handshakes", rate))
	}
	return pack(l), rate, true
}

// tunnelRate is how many tunnels a second an xds-server allows.
func tunnelRate(l *listenerv3.Listener) int {
	for _, chain := range l.GetFilterChains() {
		for _, f := range chain.GetFilters() {
			limit := &localratelimitv3.LocalRateLimit{}
			if f.GetTypedConfig().UnmarshalTo(limit) == nil {
				return int(min(max(1, limit.GetTokenBucket().GetMaxTokens()), 1<<24))
			}
		}
	}
	return handshakeRate
}

// askAboutConnection asks the agent when a connection is accepted. Envoy 1.40 begins TLS while it waits for the answer.
func askAboutConnection(relayed bool) *listenerv3.Filter {
	entries := []*ratelimitcommonv3.RateLimitDescriptor_Entry{{Key: AdmissionSource, Value: "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"}}
	if relayed {
		entries = append(entries, &ratelimitcommonv3.RateLimitDescriptor_Entry{Key: AdmissionRelayed, Value: "true"})
	}
	return filter("envoy.filters.network.ratelimit", &ratelimitv3.RateLimit{
		StatPrefix: "admission", Domain: "fairlead", Timeout: durationpb.New(admissionTimeout),
		Descriptors:      []*ratelimitcommonv3.RateLimitDescriptor{{Entries: entries}},
		RateLimitService: &ratelimitconfigv3.RateLimitServiceConfig{GrpcService: agentCall(), TransportApiVersion: corev3.ApiVersion_V3},
	})
}

// askAboutTunnel asks the agent when the first data of an edge has come, which is after TLS.
func askAboutTunnel() *listenerv3.Filter {
	service := agentCall()
	service.Timeout = durationpb.New(admissionTimeout)
	return filter("envoy.filters.network.ext_authz", &extauthzv3.ExtAuthz{
		StatPrefix: "admission", GrpcService: service, FailureModeAllow: true, TransportApiVersion: corev3.ApiVersion_V3,
		IncludePeerCertificate: true,
	})
}

func agentCall() *corev3.GrpcService {
	return &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: agentCluster}}}
}
