package source_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

func TestExistingObjectsAreDeliveredTogetherAtTheStart(t *testing.T) {
	b := newBed(t)
	b.pair(t, "c1", "a", "api.example.com")
	b.pair(t, "c2", "b", "api.example.com") // not older, and sorted after c1
	cluster, _ := b.pair(t, "c3", "c")
	if err := b.Delete(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	b.run(t)
	b.first(t, map[string][]string{"c1": {"api.example.com"}, "c2": none})
}

func TestAWorkloadClusterIsServedUntilItIsRemoved(t *testing.T) {
	b := newBed(t)
	b.run(t)
	b.first(t, map[string][]string{})
	cluster := b.cluster(t, "c1", "test.fairlead.dev/hold")
	tunnel := b.tunnel(t, cluster, "a")
	b.await(t, map[string][]string{"c1": none})
	b.update(t, tunnel, func() {
		tunnel.Spec.ExtraNames = []string{"api.example.com"}
		tunnel.Spec.APIServer.Others = []v1alpha1.APIServerAddress{
			{Address: "10.0.0.2"},
			{Address: "API.Example.com.", Port: 443},
			{Address: "no..address"},
		}
		tunnel.Spec.RevokedEdges = []string{"edge-stolen"}
	})
	b.record(t, tunnel)
	b.await(t, map[string][]string{"c1": {"api.example.com"}})
	if diff := cmp.Diff("[10.0.0.1:6443 10.0.0.2:6443 api.example.com:443]", b.addresses["c1"]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"edge-stolen"}, b.revoked["c1"]); diff != "" {
		t.Error(diff)
	}

	paused := true
	b.update(t, cluster, func() { cluster.Spec.Paused = &paused })
	if err := b.Delete(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	// It is paused and being deleted. A later change shows that it is still served.
	b.update(t, tunnel, func() { tunnel.Spec.ExtraNames = []string{"api2.example.com"} })
	b.record(t, tunnel)
	b.await(t, map[string][]string{"c1": {"api2.example.com"}})

	b.update(t, cluster, func() { cluster.Finalizers = nil })
	b.await(t, map[string][]string{})
}

func TestATunnelOfAnEarlierClusterIsNotServed(t *testing.T) {
	b := newBed(t)
	b.run(t)
	b.first(t, map[string][]string{})
	earlier, tunnel := b.pair(t, "c1", "a")
	b.await(t, map[string][]string{"c1": none})
	if err := b.Delete(t.Context(), earlier); err != nil {
		t.Fatal(err)
	}
	again := b.cluster(t, "c1")
	b.pair(t, "c2", "b") // processed after it
	b.await(t, map[string][]string{"c2": none})

	b.update(t, tunnel, func() { tunnel.OwnerReferences[0].UID = again.UID })
	b.pair(t, "c3", "c") // processed after it
	b.await(t, map[string][]string{"c2": none, "c3": none})
	b.record(t, tunnel) // for this Cluster
	b.await(t, map[string][]string{"c1": none, "c2": none, "c3": none})
	if err := b.Delete(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	b.await(t, map[string][]string{"c2": none, "c3": none})
}

func TestAnUnservedTunnelStillRevokesEdges(t *testing.T) {
	b := newBed(t)
	cluster, tunnel := b.pair(t, "c1", "a")
	_, broken := b.pair(t, "c2", "b")
	for _, o := range []*v1alpha1.Tunnel{tunnel, broken} {
		b.update(t, o, func() { o.Spec.RevokedEdges = []string{"edge-stolen"} })
	}
	b.update(t, broken, func() { broken.Spec.APIServer.Address = "no..address" })
	b.record(t, broken)
	b.run(t)
	b.first(t, map[string][]string{"c1": none})
	want := map[string][]string{"c1": {"edge-stolen"}, "c2": {"edge-stolen"}}
	if diff := cmp.Diff(want, b.revoked); diff != "" {
		t.Errorf("at the start:\n%s", diff)
	}
	b.update(t, tunnel, func() { tunnel.Spec.APIServer.Address = "no..address" })
	b.record(t, tunnel)
	b.await(t, map[string][]string{})
	if diff := cmp.Diff(want, b.revoked); diff != "" {
		t.Errorf("since its apiserver is no address:\n%s", diff)
	}
	b.update(t, tunnel, func() { tunnel.Spec.APIServer.Address = "" })
	b.record(t, tunnel)
	b.await(t, map[string][]string{"c1": none})
	if err := b.Delete(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	b.await(t, map[string][]string{})
	if diff := cmp.Diff(want, b.revoked); diff != "" {
		t.Errorf("without its Cluster:\n%s", diff)
	}
}

// TestARecordOfTwoTunnelsIsNotServed is the result of a restored backup or a forged status. The controller never
// records a name or an id twice, so a name or id on record twice is not served until that is corrected.
func TestARecordOfTwoTunnelsIsNotServed(t *testing.T) {
	b := newBed(t)
	_, first := b.pair(t, "c1", "a", "api.example.com", "api1.example.com")
	_, second := b.pair(t, "c2", "b", "api.example.com")
	record := second.Status.DeepCopy()
	forged := append(slices.Clone(record.Names), "api.example.com")
	second.Status.Names = forged
	b.writeStatus(t, second)
	b.run(t)
	b.first(t, map[string][]string{"c1": {"api1.example.com"}, "c2": none})
	second.Status.Names = record.Names
	b.writeStatus(t, second)
	b.await(t, map[string][]string{"c1": {"api.example.com", "api1.example.com"}, "c2": none})
	second.Status.Names = forged
	b.writeStatus(t, second)
	b.await(t, map[string][]string{"c1": {"api1.example.com"}, "c2": none})
	b.update(t, first, func() { first.Spec.ExtraNames = nil })
	b.await(t, map[string][]string{"c1": none, "c2": {"api.example.com"}})

	_, third := b.pair(t, "c3", "a") // its id is c1's
	b.await(t, map[string][]string{"c1": none, "c2": {"api.example.com"}})
	third.Status = *first.Status.DeepCopy()
	third.Status.Hostname = "c3." + b.namespace + "." + string(domain)
	third.Status.Names, third.Status.Served.ClusterUID = []string{third.Status.Hostname}, metav1.GetControllerOf(third).UID
	b.writeStatus(t, third)
	b.await(t, map[string][]string{"c2": {"api.example.com"}})
	if err := b.Delete(t.Context(), third); err != nil {
		t.Fatal(err)
	}
	b.await(t, map[string][]string{"c1": none, "c2": {"api.example.com"}})
}

func TestATunnelWithoutAnIDWaits(t *testing.T) {
	b := newBed(t)
	b.run(t)
	b.first(t, map[string][]string{})
	b.pair(t, "c1", "a")
	other := b.cluster(t, "c2")
	tunnel := newTunnel("c2", "", other.UID)
	tunnel.Namespace = b.namespace
	if err := b.Create(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	b.await(t, map[string][]string{"c1": none})
	b.update(t, tunnel, func() { tunnel.Spec.ID = id("b") })
	b.pair(t, "c3", "c") // processed after it
	b.await(t, map[string][]string{"c1": none, "c3": none})
	b.record(t, tunnel) // the id is granted now
	b.await(t, map[string][]string{"c1": none, "c2": none, "c3": none})
}
