package xds_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/pkg/model"
)

func expect(t *testing.T, what string, got, want []string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("%s:\n%s", what, diff)
	}
}

func TestGatewayGetsAllTunnels(t *testing.T) {
	b := newBed(t, workload("c1", "api.example.com"), workload("c2"))
	a := b.envoy(t, gateway)
	a.subscribe(t, cds, nil)
	expect(
		t, "Envoy clusters", names(a.next(t)),
		sorted("c1.prod.tunnels.example.com", "api.example.com", "c2.prod.tunnels.example.com"),
	)
	a.subscribe(t, lds, nil)
	expect(t, "listeners", names(a.next(t)), []string{"apiserver", "clients/connect", "connect", "public"})
}

// sorted adds the Envoy clusters that every gateway has.
func sorted(more ...string) []string { return slices.Sorted(slices.Values(append(more, common...))) }

func TestOneChangePushesOneResource(t *testing.T) {
	b := newBed(t, workload("c1"), workload("c2"))
	a := b.envoy(t, gateway)
	a.fetch(t, cds)
	a.fetch(t, lds)

	b.publish(workload("c3"))
	r := a.next(t)
	expect(t, "sent for a new one", names(r), []string{"c3.prod.tunnels.example.com"})
	expect(t, "removed for a new one", r.GetRemovedResources(), nil)

	b.publish(workload("c1", "api.example.com"))
	expect(t, "sent for an extra name", names(a.next(t)), []string{"api.example.com"})
}

func (b *bed) publish(wc model.WorkloadCluster) { b.Publish(wc.Key, &wc) }

func TestAnEqualRebuildPushesNothing(t *testing.T) {
	b := newBed(t, workload("c1"), workload("c2"))
	a := b.envoy(t, gateway)
	a.fetch(t, cds)
	a.fetch(t, lds)

	b.publish(workload("c1"))
	b.Replace([]model.WorkloadCluster{workload("c2"), workload("c1")})
	same := workload("c1")
	same.APIServer.Port = 7443 // no resource of gateways contains it
	b.publish(same)
	b.publish(workload("c3"))
	expect(t, "sent first", names(a.next(t)), []string{"c3.prod.tunnels.example.com"})
}

func TestRemoval(t *testing.T) {
	b := newBed(t, workload("c1", "api.example.com"), workload("c2"))
	a := b.envoy(t, gateway)
	a.fetch(t, cds)
	b.Publish(workload("c1").Key, nil)
	r := a.next(t)
	slices.Sort(r.GetRemovedResources())
	expect(t, "removed", r.GetRemovedResources(), []string{"api.example.com", "c1.prod.tunnels.example.com"})
	expect(t, "sent", names(r), nil)

	b.Replace(nil)
	expect(t, "removed by Replace", a.next(t).GetRemovedResources(), []string{"c2.prod.tunnels.example.com"})
}

func TestANameThatMovesIsNeverRemoved(t *testing.T) {
	tests := map[string][]model.WorkloadCluster{
		"its new holder is published first": {workload("c2", "api.example.com"), workload("c1")},
		"its old holder is published first": {workload("c1"), workload("c2", "api.example.com")},
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, workload("c1", "api.example.com"), workload("c2"))
			before := b.envoy(t, gateway).fetch(t, cds)
			for _, wc := range steps {
				b.publish(wc)
			}
			after := b.envoy(t, gateway).fetch(t, cds)
			if after["api.example.com"] == "" || after["api.example.com"] == before["api.example.com"] {
				t.Errorf("the name has version %q, before %q", after["api.example.com"], before["api.example.com"])
			}
		})
	}
}

func TestReconnect(t *testing.T) {
	b := newBed(t, workload("c1"), workload("c2"))
	have := b.envoy(t, gateway).fetch(t, cds)

	a := b.envoy(t, gateway)
	a.subscribe(t, cds, have)
	r := a.next(t) // Envoy waits for a response, even an empty one
	expect(t, "sent to one that has everything", names(r), nil)
	expect(t, "removed from one that has everything", r.GetRemovedResources(), nil)

	b.Publish(workload("c1").Key, nil)
	b.publish(workload("c3"))
	a = b.envoy(t, gateway)
	a.subscribe(t, cds, have)
	r = a.next(t)
	expect(t, "sent after changes", names(r), []string{"c3.prod.tunnels.example.com"})
	expect(t, "removed after changes", r.GetRemovedResources(), []string{"c1.prod.tunnels.example.com"})
}

func TestAnotherServerHasTheSameVersions(t *testing.T) {
	have := newBed(t, workload("c1")).envoy(t, gateway).fetch(t, cds)
	if diff := cmp.Diff(have, newBed(t, workload("c1")).envoy(t, gateway).fetch(t, cds)); diff != "" {
		t.Error(diff)
	}
}

func TestEdgeSeesOnlyItsOwn(t *testing.T) {
	c1, c2 := workload("c1"), workload("c2")
	b := newBed(t, c1, c2)
	a := b.envoy(t, edgeOf(c1))
	a.subscribe(t, cds, nil)
	expect(t, "Envoy clusters", names(a.next(t)), edgeClusters)
	a.subscribe(t, lds, nil)
	r := a.next(t)
	expect(t, "listeners", names(r), edgeListeners)
	other := b.envoy(t, edgeOf(c2)).fetch(t, lds)
	if versions(r)[edgeListeners[0]] == other[edgeListeners[0]] {
		t.Error("edges of two tunnels have the same listener")
	}

	c2.APIServer.Port = 7443
	b.publish(c2)
	b.publish(workload("c3"))
	c1.APIServer.Port = 8443
	b.publish(c1)
	r = a.next(t)
	expect(t, "sent for its own change", names(r), []string{"apiserver_edge-a"})
	if r.GetTypeUrl() != cds {
		t.Errorf("sent %s", r.GetTypeUrl())
	}
}

func TestTheStreamsOfARemovedTunnelAreClosed(t *testing.T) {
	c1 := workload("c1")
	again := workload("c1") // the Cluster was deleted and created again
	again.ID = "another0000000000000"
	tests := map[string]func(b *bed){
		"removed":          func(b *bed) { b.Publish(c1.Key, nil) },
		"another id":       func(b *bed) { b.publish(again) },
		"gone by a reload": func(b *bed) { b.Replace([]model.WorkloadCluster{workload("c2")}) },
	}
	for name, end := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, c1, workload("c2"))
			a, other := b.envoy(t, edgeOf(c1)), b.envoy(t, edgeOf(workload("c2")))
			a.fetch(t, cds)
			other.fetch(t, cds)
			end(b)
			if code := a.refusal(t); code != codes.Unavailable {
				t.Errorf("the stream ended with %s", code)
			}
			a = b.envoy(t, edgeOf(c1))
			a.subscribe(t, cds, nil)
			if code := a.refusal(t); code != codes.Unavailable {
				t.Errorf("a new stream ended with %s", code)
			}
			other.fetch(t, lds) // still open
			if _, ok := b.Tunnel(c1.ID); ok {
				t.Error("the tunnel is still known")
			}
		})
	}
}

func TestNothingIsServedBeforeTheFirstReplace(t *testing.T) {
	b := newEmptyBed(t)
	a := b.envoy(t, gateway)
	a.subscribe(t, cds, nil)
	b.publish(workload("c1"))
	select {
	case r := <-a.got:
		t.Fatalf("sent %v", names(r))
	case err := <-a.end:
		t.Fatalf("the stream has ended: %v", err)
	case <-time.After(pause):
	}
	if b.Published() {
		t.Error("it says that everything is published")
	}
	b.Replace([]model.WorkloadCluster{workload("c2")})
	expect(t, "Envoy clusters", names(a.next(t)), sorted("c2.prod.tunnels.example.com"))
}

func TestInvalidResourcesAreOmitted(t *testing.T) {
	b := newBed(t)
	b.publish(workload("c1", "control_channel", "agent", "api.example.com", "api.example.com"))
	expect(
		t, "Envoy clusters", names(firstOf(t, b.envoy(t, gateway))), sorted("c1.prod.tunnels.example.com", "api.example.com"),
	)
	for _, name := range []string{"control_channel", "agent", "api.example.com"} {
		if b.log.Count("level=ERROR", "cluster=prod/c1", name, "type_url="+cds) == 0 {
			t.Errorf("nothing was logged about %s", name)
		}
	}
	b.Publish(workload("c1").Key, nil)
	expect(t, "Envoy clusters without it", names(firstOf(t, b.envoy(t, gateway))), sorted())
}

func firstOf(t *testing.T, a *ads) *discoveryv3.DeltaDiscoveryResponse {
	t.Helper()
	a.subscribe(t, cds, nil)
	return a.next(t)
}

func TestRejectedResourcesAreLogged(t *testing.T) {
	b := newBed(t, workload("c1"))
	a := b.envoy(t, gateway)
	a.subscribe(t, cds, nil)
	r := <-a.got
	a.send(t, &discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: cds, ResponseNonce: r.GetNonce(),
		ErrorDetail: &statusv1.Status{Code: int32(codes.InvalidArgument), Message: "no such transport socket"},
	})
	a.fetch(t, lds) // requests are processed in order
	if b.log.Count("level=ERROR", "node=gateway-0", "type_url="+cds, `error="no such transport socket"`) == 0 {
		t.Error("it was not logged")
	}
}

func TestShutdownEndsStreams(t *testing.T) {
	b := newBed(t, workload("c1"))
	a := b.envoy(t, gateway)
	a.fetch(t, cds)
	begin := time.Now()
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > patience {
		t.Errorf("shutdown took %s", took)
	}
	if code := a.refusal(t); code != codes.Unavailable {
		t.Errorf("the stream ended with %s", code)
	}
}

// TestAGatewayWithManyEnvoyClustersReconnects: the server takes the names and versions of 100,000 Envoy clusters, and
// sends those that do not fit into a response after the answer, before the listeners, which refer to them.
func TestAGatewayWithManyEnvoyClustersReconnects(t *testing.T) {
	const had, most = 100_000, 8 << 10
	all := make([]model.WorkloadCluster, 50)
	for i := range all {
		all[i] = workload(fmt.Sprintf("c%dx", i))
	}
	b := newBed(t, all...)
	want := b.envoy(t, gateway).fetch(t, cds)
	b.SetMaxResponse(most)
	for name, have := range map[string]int{"it has other ones": had, "it has none": 0} {
		t.Run(name, func(t *testing.T) {
			old := make(map[string]string, have)
			for i := range have {
				old[fmt.Sprintf("cluster-%d.of-a-namespace.tunnels.example.com", i)] = strings.Repeat("a", 64)
			}
			a := b.envoy(t, gateway)
			a.subscribe(t, cds, old)
			a.subscribe(t, lds, nil)
			got, parts := map[string]string{}, 0
			for listeners := false; len(got) < len(want) || len(old) > 0 || !listeners; {
				r := a.next(t)
				if r.GetTypeUrl() == lds {
					if listeners = true; len(got) < len(want) {
						t.Errorf("listeners are sent after %d of %d Envoy clusters", len(got), len(want))
					}
					continue
				}
				parts++
				all := &discoveryv3.DeltaDiscoveryResponse{Resources: r.GetResources()}
				if n := len(r.GetResources()); n > 1 && proto.Size(all) > most+4*n { // 4 bytes are around each
					t.Errorf("part %d has %d resources of %d bytes", parts, n, proto.Size(all))
				}
				maps.Copy(got, versions(r))
				for _, name := range r.GetRemovedResources() {
					delete(old, name)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" || parts < 2 {
				t.Errorf("in %d parts:\n%s", parts, diff)
			}
		})
	}
}
