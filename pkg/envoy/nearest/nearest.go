// Package nearest makes an Envoy cluster use its nearest hosts, and others while these fail. In go groups of hosts in
// order, out come priorities and an outlier detection. It also ranks hosts by their round trips. It does not know what
// the hosts are.
package nearest

import (
	"maps"
	"slices"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/matcher/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	upstreamhttpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
)

const (
	// returnEvery is how often Envoy looks for ejected hosts whose time is over. For 5,000 Envoy clusters that takes 0.7 %
	// of a core. returnAfter is that time after the first failure. It grows by itself with each failure in a row, up to
	// returnAtMost: one connection pays for each attempt.
	returnEvery, returnAfter, returnAtMost = 2 * time.Second, 2 * time.Second, 10 * time.Second
	// enough is the overprovisioning factor in percent with which one healthy host of a hundred is enough for its group.
	// With Envoy's default of 140, a group of two in which one fails would share its clients with the next group, and a
	// group of three in which two fail would use these again.
	// https://www.envoyproxy.io/docs/envoy/v1.40.0/intro/arch_overview/upstream/load_balancing/priority
	enough = 10_000
)

// Prefer gives an Envoy cluster groups of hosts, the nearest first. With several hosts, one that fails once is ejected:
// its clients try the next host of the group, and then the next group. It returns after returnAfter, so that the
// nearest one is used again, soon after returnAtMost at the latest. If all hosts are ejected, all are used. Each
// ejection has effect at once: by default Envoy waits up to a second for further ones, and every client would meet the
// host that fails.
//
// Envoy 1.40 counts a stream of CONNECT that the other side resets as a failure too, so a connection that ends this way
// may send others to the next host for returnAfter.
// https://www.envoyproxy.io/docs/envoy/v1.40.0/intro/arch_overview/upstream/outlier
func Prefer(c *clusterv3.Cluster, groups ...[]*endpointv3.LbEndpoint) {
	c.LoadAssignment = typed.LoadAssignment(c.GetName(), groups...)
	if len(slices.Concat(groups...)) < 2 {
		return
	}
	c.LoadAssignment.Policy = &endpointv3.ClusterLoadAssignment_Policy{OverprovisioningFactor: wrapperspb.UInt32(enough)}
	c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{UpdateMergeWindow: durationpb.New(0)}
	always, never, once := wrapperspb.UInt32(100), wrapperspb.UInt32(0), wrapperspb.UInt32(1)
	c.OutlierDetection = &clusterv3.OutlierDetection{
		SplitExternalLocalOriginErrors: true,
		ConsecutiveLocalOriginFailure:  once, EnforcingConsecutiveLocalOriginFailure: always,
		EnforcingConsecutiveGatewayFailure: never, EnforcingConsecutive_5Xx: never,
		EnforcingSuccessRate: never, EnforcingLocalOriginSuccessRate: never,
		Interval:           durationpb.New(returnEvery),
		BaseEjectionTime:   durationpb.New(returnAfter),
		MaxEjectionTime:    durationpb.New(returnAtMost),
		MaxEjectionPercent: always,
	}
}

// SkipRefusals makes an answer of a host with a header a failure for Prefer. Any other answer is none, whatever its
// status, because it may be that of the client's destination. options are the HTTP options of the Envoy cluster.
func SkipRefusals(c *clusterv3.Cluster, options *upstreamhttpv3.HttpProtocolOptions, header string) {
	o := c.GetOutlierDetection()
	if o == nil {
		return
	}
	always, once := wrapperspb.UInt32(100), wrapperspb.UInt32(1)
	o.ConsecutiveGatewayFailure, o.EnforcingConsecutiveGatewayFailure = once, always
	o.Consecutive_5Xx, o.EnforcingConsecutive_5Xx = once, always
	present := &routev3.HeaderMatcher{
		Name: header, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
	}
	refused := &matcherv3.MatchPredicate{Rule: &matcherv3.MatchPredicate_HttpResponseHeadersMatch{
		HttpResponseHeadersMatch: &matcherv3.HttpHeadersMatch{Headers: []*routev3.HeaderMatcher{present}},
	}}
	options.OutlierDetection = &upstreamhttpv3.HttpProtocolOptions_OutlierDetection{ErrorMatcher: refused}
}

// Groups puts hosts into groups of equal rank for Prefer, the lowest rank first. Each group keeps the order of hosts.
func Groups[H any](hosts []H, rank func(H) int) [][]H {
	byRank := map[int][]H{}
	for _, h := range hosts {
		byRank[rank(h)] = append(byRank[rank(h)], h)
	}
	groups := make([][]H, 0, len(byRank))
	for _, r := range slices.Sorted(maps.Keys(byRank)) {
		groups = append(groups, byRank[r])
	}
	return groups
}
