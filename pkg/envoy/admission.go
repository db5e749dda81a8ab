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

	"github.com/fairlead/fairlead/pkg/envoy/lane"
	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/envoy/typed"
)

const (
	// PublicListener is the listener to which AddAdmission applies.
	PublicListener = publicListener
	// AdmissionForm identifies the form of AddAdmission's result. It changes whenever that changes, so that an agent
	// that takes over a running Envoy replaces the listener.
	AdmissionForm = "admission-3"
	// AdmissionSource is the key of the descriptor with the source address of a connection.
	AdmissionSource = "source"
	// AdmissionRelayed is the key of the descriptor of a relayed connection.
	AdmissionRelayed = "relayed"
	// AdmissionStreams is in the metadata of a call about a connection that is no reverse tunnel.
	AdmissionStreams = "x-fairlead-streams"

	// admissionTimeout is how long a connection waits for the agent's answer before it is admitted without one. An
	// answer takes 0.2 ms. On a machine without a free core it takes longer, and that must not admit a flood.
	admissionTimeout = 200 * time.Millisecond
	// streamsTimeout is how long such a connection waits. It is rejected without an answer, so a busy machine gets longer.
	streamsTimeout = 2 * time.Second
	// backstop is how many connections a filter chain accepts before it calls the agent, as a multiple of the rate of
	// new reverse tunnels. All sources share this bucket, so it must not be exhausted before a worker is: a rejected
	// connection costs Envoy 0.4 ms. backstopFloor keeps the bucket large if the rate of reverse tunnels is low.
	backstop      = 4
	backstopFloor = backstop * handshakeRate

	// clientSource is the operator for the source of a connection: in its PROXY header, if it has one, or of its socket.
	clientSource = "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"

	reverseTunnelFilter = "envoy.filters.network.reverse_tunnel"
	localLimitFilter    = "envoy.filters.network.local_ratelimit"
	managerFilterName   = "envoy.filters.network.http_connection_manager"
)

// AddAdmission returns a gateway's public listener with the filters that call its agent: in every filter chain, before
// TLS, for the source of the connection; in the filter chains where TLS ends, after TLS, for the node. The bucket for
// the rate of new reverse tunnels, which all clients share, comes after the agent's answer, so that it limits
// connections that are admitted without one. Another bucket, before the call, also limits connections that will be
// rejected. ok is false for a resource that is not a public listener.
//
// Records of connections get the addresses of the socket. For an HTTP connection manager Envoy's other operators take
// an address from the header X-Forwarded-For, which the other side chooses: its connection would not be on record, and
// a revocation would not close it.
//
// The agent adds these filters instead of the xds-server, because they call the agent's own service: the policy needs
// no rule for them, and no xds-server can remove them.
func AddAdmission(resource *anypb.Any) (with *anypb.Any, ok bool) {
	l := asPublic(resource)
	if l == nil {
		return resource, false
	}
	rate := tunnelRate(l)
	for _, chain := range l.GetFilterChains() {
		// TLS does not end at this gateway, or the source is another gateway.
		relayed := chain.GetTransportSocket() == nil || record.Owner(chain) == record.OwnerPeer
		var filters []*listenerv3.Filter
		for _, f := range chain.GetFilters() {
			switch f.GetName() {
			case localLimitFilter:
				continue
			case reverseTunnelFilter:
				filters = append(filters, callForTunnel())
			case managerFilterName:
				if record.Owner(chain) != record.OwnerPeer {
					filters = append(filters, callForStreams())
				}
			}
			filters = append(filters, f)
		}
		chain.Filters = slices.Insert(
			filters, 0, connectionLimit("backstop", max(backstop*rate, backstopFloor)), callForConnection(clientSource, relayed),
			connectionLimit("handshakes", rate),
		)
		recordSocket(chain)
	}
	return typed.Pack(l), true
}

// PublicLimits returns how many connections of each kind per second a gateway's public listener allows, and how many
// lanes each edge may open, as an xds-server sent it. ok is false for any other resource.
func PublicLimits(resource *anypb.Any) (rate, lanes int, ok bool) {
	if l := asPublic(resource); l != nil {
		return tunnelRate(l), lane.Of(l), true
	}
	return 0, 0, false
}

// tunnelRate returns how many reverse tunnels per second the xds-server allows.
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

// callForConnection calls the agent when a connection is accepted. source is the operator for its address. Envoy 1.40
// begins TLS while it waits for the answer.
func callForConnection(source string, relayed bool) *listenerv3.Filter {
	entries := []*ratelimitcommonv3.RateLimitDescriptor_Entry{
		{Key: AdmissionSource, Value: source},
	}
	if relayed {
		entries = append(entries, &ratelimitcommonv3.RateLimitDescriptor_Entry{Key: AdmissionRelayed, Value: "true"})
	}
	return typed.NetworkFilter("envoy.filters.network.ratelimit", &ratelimitv3.RateLimit{
		StatPrefix: "admission", Domain: "fairlead", Timeout: durationpb.New(admissionTimeout),
		Descriptors: []*ratelimitcommonv3.RateLimitDescriptor{{Entries: entries}},
		RateLimitService: &ratelimitconfigv3.RateLimitServiceConfig{
			GrpcService:         agentCall(),
			TransportApiVersion: corev3.ApiVersion_V3,
		},
	})
}

// callForTunnel calls the agent when the first data of an edge has arrived, which is after TLS.
func callForTunnel() *listenerv3.Filter {
	return callAfterTLS(&extauthzv3.ExtAuthz{StatPrefix: "admission", FailureModeAllow: true}, admissionTimeout)
}

func callAfterTLS(f *extauthzv3.ExtAuthz, wait time.Duration, metadata ...*corev3.HeaderValue) *listenerv3.Filter {
	f.GrpcService, f.TransportApiVersion, f.IncludePeerCertificate = agentCall(), corev3.ApiVersion_V3, true
	f.GrpcService.Timeout, f.GrpcService.InitialMetadata = durationpb.New(wait), metadata
	return typed.NetworkFilter("envoy.filters.network.ext_authz", f)
}

// callForStreams asks the agent whether a node is denied. Without an answer the connection is rejected: these filter
// chains have no deny list, because each of its changes would end all their streams.
func callForStreams() *listenerv3.Filter {
	return callAfterTLS(&extauthzv3.ExtAuthz{StatPrefix: "admission_streams"}, streamsTimeout,
		&corev3.HeaderValue{Key: AdmissionStreams, Value: "true"})
}

func agentCall() *corev3.GrpcService {
	return &corev3.GrpcService{
		TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: agentCluster}},
	}
}
