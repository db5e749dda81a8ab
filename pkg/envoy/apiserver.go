package envoy

import (
	"cmp"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	previoushostsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	previousprioritiesv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/priority/previous_priorities/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/model"
)

// APIServers are the apiservers that an Envoy cluster of an edge dials, in the order in which it prefers them; nil for every
// other resource.
func APIServers(resource *anypb.Any) []model.Endpoint {
	c := &clusterv3.Cluster{}
	if resource.UnmarshalTo(c) != nil || !strings.HasPrefix(c.GetName(), apiserverClusterPrefix) {
		return nil
	}
	groups := slices.SortedStableFunc(slices.Values(c.GetLoadAssignment().GetEndpoints()), func(a, b *endpointv3.LocalityLbEndpoints) int {
		return cmp.Compare(a.GetPriority(), b.GetPriority())
	})
	var found []model.Endpoint
	for _, group := range groups {
		for _, e := range group.GetLbEndpoints() {
			at := e.GetEndpoint().GetAddress().GetSocketAddress()
			found = append(found, model.Endpoint{Host: at.GetAddress(), Port: uint16(at.GetPortValue())})
		}
	}
	return found
}

// apiserverRoute passes every CONNECT in a tunnel to the apiservers.
func apiserverRoute(cluster string) *routev3.Route {
	return &routev3.Route{Match: connectMatch(), Action: &routev3.Route_Route{Route: &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
		Timeout:          durationpb.New(0), // a connection lasts as long as its two ends want
		UpgradeConfigs: []*routev3.RouteAction_UpgradeConfig{{
			UpgradeType:   "CONNECT",
			ConnectConfig: &routev3.RouteAction_UpgradeConfig_ConnectConfig{},
		}},
		RetryPolicy: tryAnother(),
	}}}
}

// tryAnother takes the next apiserver if one can't be connected to: another address of the same name, or another priority.
// Where there is no other it tries the same again. Nothing of the client has been sent by then, because a gateway waits for
// the answer to its CONNECT.
func tryAnother() *routev3.RetryPolicy {
	return &routev3.RetryPolicy{
		RetryOn:    "connect-failure",
		NumRetries: wrapperspb.UInt32(apiserverAttempts - 1),
		RetryBackOff: &routev3.RetryPolicy_RetryBackOff{
			BaseInterval: durationpb.New(apiserverBackoff), MaxInterval: durationpb.New(apiserverBackoff),
		},
		RetryHostPredicate: []*routev3.RetryPolicy_RetryHostPredicate{{
			Name: "envoy.retry_host_predicates.previous_hosts",
			ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{
				TypedConfig: pack(&previoushostsv3.PreviousHostsPredicate{}),
			},
		}},
		HostSelectionRetryMaxAttempts: apiserverAttempts,
		RetryPriority: &routev3.RetryPolicy_RetryPriority{
			Name: "envoy.retry_priorities.previous_priorities",
			ConfigType: &routev3.RetryPolicy_RetryPriority_TypedConfig{
				TypedConfig: pack(&previousprioritiesv3.PreviousPrioritiesConfig{UpdateFrequency: 1}),
			},
		},
	}
}

// edgeAPIServer dials apiservers, the first that is well: one connection for each stream of each tunnel. Where there is but
// one address nothing is to be chosen, so nothing is asked of it, and it can't be thought dead.
func edgeAPIServer(name string, at []model.Endpoint, buffer uint32) *clusterv3.Cluster {
	var groups [][]*endpointv3.LbEndpoint
	for _, e := range at {
		groups = append(groups, endpoints(e))
	}
	c := &clusterv3.Cluster{
		Name:                          name,
		ConnectTimeout:                durationpb.New(apiserverTimeout),
		LoadAssignment:                assignment(name, groups...),
		UpstreamConnectionOptions:     &clusterv3.UpstreamConnectionOptions{TcpKeepalive: clientKeepalive()},
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(buffer),
		CircuitBreakers:               breaker(unlimited()),
	}
	discoverAll(c, at)
	if len(at) > 1 || slices.ContainsFunc(at, isName) { // a name may have several addresses
		c.HealthChecks = []*corev3.HealthCheck{readyz()}
		c.TransportSocketMatches = []*clusterv3.Cluster_TransportSocketMatch{forHealthChecks()}
		// Who is not in DNS any more gets no new connections, however well it is.
		c.IgnoreHealthOnHostRemoval = true
		// Those that are not well are tried only when none is; by default they would be as soon as half of them are not.
		c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{Value: 1}}
	}
	return c
}

// unlimited lets tunnels alone bound what goes through them.
func unlimited() *clusterv3.CircuitBreakers_Thresholds {
	most := func() *wrapperspb.UInt32Value { return wrapperspb.UInt32(apiserverConnections) }
	return &clusterv3.CircuitBreakers_Thresholds{MaxConnections: most(), MaxPendingRequests: most(), MaxRequests: most(), MaxRetries: most()}
}

// readyz asks an apiserver how it is, as a stranger. Any answer shows that it serves, even one that refuses strangers, but
// those by which a server says that it can't.
func readyz() *corev3.HealthCheck {
	return &corev3.HealthCheck{
		Timeout:            durationpb.New(healthTimeout),
		Interval:           durationpb.New(healthInterval),
		NoTrafficInterval:  durationpb.New(healthInterval),
		UnhealthyThreshold: wrapperspb.UInt32(1),
		HealthyThreshold:   wrapperspb.UInt32(healthyThreshold),
		HealthChecker: &corev3.HealthCheck_HttpHealthCheck_{HttpHealthCheck: &corev3.HealthCheck_HttpHealthCheck{
			Host:             "kubernetes.default.svc",
			Path:             "/readyz",
			ExpectedStatuses: []*typev3.Int64Range{{Start: 200, End: 500}},
		}},
		TransportSocketMatchCriteria: healthCheckOnly(),
	}
}

// forHealthChecks is TLS for health checks alone: no endpoint has metadata that match, so connections of clients stay bytes.
// Nobody is verified, because nothing is said and nobody believed but "I serve"; who can forge that can as well stop the
// clients' connections, and can do no more with them either way.
func forHealthChecks() *clusterv3.Cluster_TransportSocketMatch {
	return &clusterv3.Cluster_TransportSocketMatch{
		Name:  "health_check",
		Match: healthCheckOnly(),
		TransportSocket: tlsSocket(&tlsv3.UpstreamTlsContext{
			AutoHostSni: true, // the DNS name, where there is one: some front ends know apiservers by it
			CommonTlsContext: &tlsv3.CommonTlsContext{TlsParams: &tlsv3.TlsParameters{
				TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2,
				TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3, // as a client Envoy would stop at 1.2
			}},
		}),
	}
}

func healthCheckOnly() *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{"health_check": structpb.NewBoolValue(true)}}
}
