package xds_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/model"
)

// told returns what CSDS reports about nodes, by node id and resource.
func (b *bed) told(
	t *testing.T, r *statusv3.ClientStatusRequest,
) map[string]map[string]*statusv3.ClientConfig_GenericXdsConfig {
	t.Helper()
	response, err := b.Status().FetchClientStatus(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string]*statusv3.ClientConfig_GenericXdsConfig{}
	for _, config := range response.GetConfig() {
		of := map[string]*statusv3.ClientConfig_GenericXdsConfig{}
		for _, resource := range config.GetGenericXdsConfigs() {
			of[resource.GetName()] = resource
		}
		all[config.GetNode().GetId()] = of
	}
	return all
}

// becomes waits for the status of a resource.
func (b *bed) becomes(
	t *testing.T, node, name string, want adminv3.ClientResourceStatus,
) (got *statusv3.ClientConfig_GenericXdsConfig) {
	t.Helper()
	eventually.True(t, patience, name+" of "+node+" is "+want.String(), func() error {
		got = b.told(t, &statusv3.ClientStatusRequest{})[model.NodeID(node)][name]
		if got == nil || got.GetClientStatus() != want {
			return status.Errorf(codes.Unknown, "it is %v", got)
		}
		return nil
	})
	return got
}

// answer receives the next response and answers it.
func (a *ads) answer(t *testing.T, detail *statusv1.Status) *discoveryv3.DeltaDiscoveryResponse {
	t.Helper()
	select {
	case r := <-a.got:
		a.send(
			t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce(), ErrorDetail: detail},
		)
		return r
	case <-time.After(patience):
		t.Fatal("nothing was sent")
	}
	return nil
}

// refusing returns a NACK as pkg/xdsproxy sends it, of resources that are rejected together.
func refusing(t *testing.T, why string, at time.Time, versions map[string]string) *statusv1.Status {
	t.Helper()
	group := &statusv3.ClientConfig{}
	for name, version := range versions {
		group.GenericXdsConfigs = append(group.GenericXdsConfigs, &statusv3.ClientConfig_GenericXdsConfig{
			Name: name, ErrorState: &adminv3.UpdateFailureState{
				VersionInfo: version, Details: why,
				LastUpdateAttempt: timestamppb.New(at),
			},
		})
	}
	packed, err := anypb.New(group)
	if err != nil {
		t.Fatal(err)
	}
	return &statusv1.Status{Message: why, Details: []*anypb.Any{packed}}
}

func TestStatusFollowsTheAnswersOfAGateway(t *testing.T) {
	t.Parallel()
	one, two := workload("c1"), workload("c2")
	b := newBed(t, one, two)
	g := b.envoy(t, gateway)
	g.subscribe(t, cds, nil)
	sent := b.becomes(t, "gateway-0", one.Hostname, adminv3.ClientResourceStatus_REQUESTED)
	if sent.GetConfigStatus() != statusv3.ConfigStatus_STALE || sent.GetLastUpdated() == nil ||
		sent.GetXdsConfig() == nil {
		t.Errorf("before the answer: %v", sent)
	}
	had := versions(g.answer(t, nil))
	acked := b.becomes(t, "gateway-0", one.Hostname, adminv3.ClientResourceStatus_ACKED)
	if acked.GetVersionInfo() != had[one.Hostname] || acked.GetConfigStatus() != statusv3.ConfigStatus_SYNCED {
		t.Errorf("it was sent in version %s: %v", had[one.Hostname], acked)
	}

	// One of two is rejected, with Envoy's reason and the time by the agent's clock.
	since := time.Now().Add(-time.Minute).UTC().Truncate(time.Second)
	one.Limits.Connections, two.Limits.Connections = 7, 8
	b.Replace([]model.WorkloadCluster{one, two})
	r := <-g.got
	bad := refusing(t, "Envoy says no\x1b[2J", since, map[string]string{one.Hostname: versions(r)[one.Hostname]})
	g.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds, ResponseNonce: r.GetNonce(), ErrorDetail: bad})
	refused := b.becomes(t, "gateway-0", one.Hostname, adminv3.ClientResourceStatus_NACKED)
	state := refused.GetErrorState()
	if state.GetDetails() != "Envoy says no [2J" || !state.GetLastUpdateAttempt().AsTime().Equal(since) ||
		state.GetVersionInfo() != versions(r)[one.Hostname] {
		t.Errorf("got %v", state)
	}
	b.becomes(t, "gateway-0", two.Hostname, adminv3.ClientResourceStatus_ACKED)
	const seen, refusals = "fairlead_xds_cluster_info", "fairlead_xds_cluster_refused_since_timestamp_seconds"
	own := figuresOf(t, b.ClusterMetrics(), seen, "namespace", "prod", "name", "c1", "tunnel_id", one.ID)
	c1, all := figuresOf(t, b.ClusterMetrics(), refusals, "namespace", "prod", "name", "c1"), figuresOf(
		t, b.ClusterMetrics(), refusals,
	)
	if own != 1 || c1 != float64(since.Unix()) || all != c1 {
		t.Errorf("there is %v of it, refused since %v, all together %v", own, c1, all)
	}

	// It remains rejected while others are accepted, until it has another version.
	two.Limits.Connections = 9
	b.publish(two)
	g.answer(t, nil)
	b.becomes(t, "gateway-0", two.Hostname, adminv3.ClientResourceStatus_ACKED)
	b.becomes(t, "gateway-0", one.Hostname, adminv3.ClientResourceStatus_NACKED)
	one.Limits.Connections = 10
	b.publish(one)
	b.becomes(t, "gateway-0", one.Hostname, adminv3.ClientResourceStatus_REQUESTED)
	g.answer(t, nil)
	b.becomes(t, "gateway-0", one.Hostname, adminv3.ClientResourceStatus_ACKED)

	// The NACK of an agent that names no resources means all resources of the response.
	one.Limits.Connections = 11
	b.publish(one)
	g.answer(t, &statusv1.Status{Message: "no"})
	b.becomes(t, "gateway-0", one.Hostname, adminv3.ClientResourceStatus_NACKED)
	b.becomes(t, "gateway-0", two.Hostname, adminv3.ClientResourceStatus_ACKED)
}

func TestStatusOfAnEdgeAndMatchers(t *testing.T) {
	t.Parallel()
	wc := workload("c1")
	b := newBed(t, wc, workload("c2"))
	edge := edgeOf(wc)
	e, g := b.envoy(t, edge), b.envoy(t, gateway)
	sent := e.fetch(t, cds)
	e.fetch(t, lds)
	g.fetch(t, cds)
	got := b.becomes(t, edge.Node, edgeClusters[0], adminv3.ClientResourceStatus_ACKED)
	if got.GetVersionInfo() != sent[edgeClusters[0]] {
		t.Errorf("it was sent in version %q: %v", sent[edgeClusters[0]], got)
	}
	b.becomes(t, edge.Node, edgeListeners[0], adminv3.ClientResourceStatus_ACKED)
	role := func(value string) *statusv3.ClientStatusRequest {
		return &statusv3.ClientStatusRequest{
			ExcludeResourceContents: true,
			NodeMatchers: []*matcherv3.NodeMatcher{{NodeMetadatas: []*matcherv3.StructMatcher{{
				Path: []*matcherv3.StructMatcher_PathSegment{{Segment: &matcherv3.StructMatcher_PathSegment_Key{Key: "role"}}},
				Value: &matcherv3.ValueMatcher{
					MatchPattern: &matcherv3.ValueMatcher_StringMatch{
						StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: value}},
					},
				},
			}}}},
		}
	}
	if all := b.told(t, role("edge")); len(all) != 1 || len(all[edge.NodeID()]) != len(edgeClusters)+len(edgeListeners) ||
		all[edge.NodeID()][edgeClusters[0]].GetXdsConfig() != nil {
		t.Errorf("of edges: %v", all)
	}
	byID := &statusv3.ClientStatusRequest{NodeMatchers: []*matcherv3.NodeMatcher{{NodeId: &matcherv3.StringMatcher{
		MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: "CN=gateway-."}},
	}}}}
	if all := b.told(t, byID); len(all) != 1 || all[gateway.NodeID()] == nil {
		t.Errorf("of gateways: %v", all)
	}
	byID.NodeMatchers[0].GetNodeId().GetSafeRegex().Regex = "("
	if _, err := b.Status().FetchClientStatus(t.Context(), byID); status.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v", err)
	}
	// Resources by name: the gateway is listed, even if it has none of them; the edge lists only what it has.
	var nodes []string
	take := func(c *statusv3.ClientConfig) error {
		nodes = append(nodes, c.GetNode().GetId()+" "+strings.Join(resourceNames(c), ","))
		return nil
	}
	if err := b.Status().Resources([]string{edgeClusters[0]}, false, take); err != nil {
		t.Fatal(err)
	}
	expect(t, "nodes", nodes, []string{edge.NodeID() + " " + edgeClusters[0], gateway.NodeID() + " "})
}

func resourceNames(c *statusv3.ClientConfig) (all []string) {
	for _, r := range c.GetGenericXdsConfigs() {
		all = append(all, r.GetName())
	}
	return all
}

// TestStatusOfManyIsQuickAndBounded requests thousands of Envoy clusters and receives them at once. A request for
// all of their contents is too large: its error states how to request less.
func TestStatusOfManyIsQuickAndBounded(t *testing.T) {
	t.Parallel()
	const many = 4_000 // as many as this client accepts in one message
	clusters := make([]model.WorkloadCluster, many)
	for i := range clusters {
		clusters[i] = workload("c" + strconv.Itoa(i))
	}
	b := newBed(t, clusters...)
	g := b.envoy(t, gateway)
	g.fetch(t, cds)
	b.becomes(t, "gateway-0", clusters[0].Hostname, adminv3.ClientResourceStatus_ACKED)
	for _, bare := range []bool{true, false} {
		began := time.Now()
		response, err := b.Status().
			FetchClientStatus(t.Context(), &statusv3.ClientStatusRequest{ExcludeResourceContents: bare})
		took := time.Since(began)
		if err != nil || len(response.GetConfig()[0].GetGenericXdsConfigs()) < many || took > patience {
			t.Fatalf("after %s: %v", took, err)
		}
		t.Logf("without contents %t: %d ms, %d KB", bare, took.Milliseconds(), proto.Size(response)>>10)
	}
}
