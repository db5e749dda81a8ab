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
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/health"
	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

// APIServers returns the apiservers that an Envoy cluster of an edge dials, in order of preference, or nil for any
// other resource.
func APIServers(resource *anypb.Any) []model.Endpoint {
	c := &clusterv3.Cluster{}
	if resource.UnmarshalTo(c) != nil || !strings.HasPrefix(c.GetName(), apiserverClusterPrefix) {
		return nil
	}
	groups := slices.SortedStableFunc(
		slices.Values(c.GetLoadAssignment().GetEndpoints()),
		func(a, b *endpointv3.LocalityLbEndpoints) int {
			return cmp.Compare(a.GetPriority(), b.GetPriority())
		},
	)
	return dials(groups)
}

// dials returns the addresses of all endpoints.
func dials(groups []*endpointv3.LocalityLbEndpoints) (all []model.Endpoint) {
	for _, group := range groups {
		for _, e := range group.GetLbEndpoints() {
			at := e.GetEndpoint().GetAddress().GetSocketAddress()
			all = append(all, model.Endpoint{Host: at.GetAddress(), Port: uint16(at.GetPortValue())})
		}
	}
	return all
}

// apiserverRoute routes every CONNECT in a reverse tunnel to the apiservers.
func apiserverRoute(cluster string) *routev3.Route {
	return &routev3.Route{Match: typed.ConnectMatch(), Action: &routev3.Route_Route{Route: &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
		Timeout:          durationpb.New(0), // a connection lasts until one of its ends closes
		UpgradeConfigs: []*routev3.RouteAction_UpgradeConfig{{
			UpgradeType:   "CONNECT",
			ConnectConfig: &routev3.RouteAction_UpgradeConfig_ConnectConfig{},
		}},
		RetryPolicy: retryAnother(),
	}}}
}

// retryAnother retries with the next apiserver if a connection fails: another address of the same name, or another
// priority. If there is no other, it retries the same one. No data of the client has been sent by then, because a
// gateway waits for the answer to its CONNECT.
func retryAnother() *routev3.RetryPolicy {
	return &routev3.RetryPolicy{
		RetryOn:    "connect-failure",
		NumRetries: wrapperspb.UInt32(apiserverAttempts - 1),
		RetryBackOff: &routev3.RetryPolicy_RetryBackOff{
			BaseInterval: durationpb.New(apiserverBackoff), MaxInterval: durationpb.New(apiserverBackoff),
		},
		RetryHostPredicate:            anotherHost(),
		HostSelectionRetryMaxAttempts: apiserverAttempts,
		RetryPriority: &routev3.RetryPolicy_RetryPriority{
			Name: "envoy.retry_priorities.previous_priorities",
			ConfigType: &routev3.RetryPolicy_RetryPriority_TypedConfig{
				TypedConfig: typed.Pack(&previousprioritiesv3.PreviousPrioritiesConfig{UpdateFrequency: 1}),
			},
		},
	}
}

// anotherHost makes a retry avoid the addresses that have failed, as long as there are others.
func anotherHost() []*routev3.RetryPolicy_RetryHostPredicate {
	return []*routev3.RetryPolicy_RetryHostPredicate{{
		Name: "envoy.retry_host_predicates.previous_hosts",
		ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{
			TypedConfig: typed.Pack(&previoushostsv3.PreviousHostsPredicate{}),
		},
	}}
}

// edgeAPIServer returns the Envoy cluster that dials apiservers, the first healthy one: one connection for each stream
// of each reverse tunnel. If there is only one address, it has no health check, because there is no alternative, and
// so it cannot be considered unhealthy.
func edgeAPIServer(name string, at []model.Endpoint, buffer uint32) *clusterv3.Cluster {
	var groups [][]*endpointv3.LbEndpoint
	for _, e := range at {
		groups = append(groups, endpoints(e))
	}
	c := &clusterv3.Cluster{
		Name:                          name,
		ConnectTimeout:                durationpb.New(apiserverTimeout),
		LoadAssignment:                typed.LoadAssignment(name, groups...),
		UpstreamConnectionOptions:     &clusterv3.UpstreamConnectionOptions{TcpKeepalive: clientKeepalive()},
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(buffer),
		CircuitBreakers:               breaker(unlimited()),
	}
	discoverAll(c, at)
	if len(at) > 1 || slices.ContainsFunc(at, isName) { // a name may have several addresses
		c.HealthChecks = []*corev3.HealthCheck{health.Readyz()}
		c.TransportSocketMatches = []*clusterv3.Cluster_TransportSocketMatch{health.TransportSocket()}
		// An address that is removed from DNS gets no new connections, even if it is healthy.
		c.IgnoreHealthOnHostRemoval = true
		// Unhealthy apiservers are used only if none is healthy. By default Envoy uses them as soon as half of them
		// are unhealthy.
		c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{Value: 1}}
	}
	return c
}

// unlimited disables Envoy's own limits: only the limits of the reverse tunnels apply.
func unlimited() *clusterv3.CircuitBreakers_Thresholds {
	most := func() *wrapperspb.UInt32Value { return wrapperspb.UInt32(apiserverConnections) }
	return &clusterv3.CircuitBreakers_Thresholds{
		MaxConnections:     most(),
		MaxPendingRequests: most(),
		MaxRequests:        most(),
		MaxRetries:         most(),
	}
}
