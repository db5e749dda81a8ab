package source_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

func TestWhatIsThereAtTheStartComesAtOnce(t *testing.T) {
	b := newBed(t)
	b.pair(t, "c1", "a", "api.example.com")
	b.pair(t, "c2", "b", "api.example.com") // not older, and behind c1 by name
	cluster, _ := b.pair(t, "c3", "c")
	if err := b.Delete(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	b.run(t)
	b.first(t, map[string][]string{"c1": {"api.example.com"}, "c2": none})
}

func TestAWorkloadClusterIsServedUntilItIsGone(t *testing.T) {
	b := newBed(t)
	b.run(t)
	b.first(t, map[string][]string{})
	cluster := b.cluster(t, "c1", "test.fairlead.dev/hold")
	tunnel := b.tunnel(t, cluster, "a")
	b.await(t, map[string][]string{"c1": none})
	b.update(t, tunnel, func() {
		tunnel.Spec.ExtraNames = []string{"api.example.com"}
		tunnel.Spec.APIServer.Others = []v1alpha1.APIServerAddress{{Address: "10.0.0.2"}, {Address: "API.Example.com.", Port: 443}, {Address: "no..address"}}
		tunnel.Spec.RevokedEdges = []string{"edge-stolen"}
	})
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
	// It is paused and being deleted. That it is served still is seen by a change that comes after.
	b.update(t, tunnel, func() { tunnel.Spec.ExtraNames = []string{"api2.example.com"} })
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
	b.pair(t, "c2", "b") // comes after it
	b.await(t, map[string][]string{"c2": none})

	b.update(t, tunnel, func() { tunnel.OwnerReferences[0].UID = again.UID })
	b.await(t, map[string][]string{"c1": none, "c2": none})
	if err := b.Delete(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	b.await(t, map[string][]string{"c2": none})
}

func TestATunnelThatIsNotServedStillRevokes(t *testing.T) {
	b := newBed(t)
	cluster, tunnel := b.pair(t, "c1", "a")
	_, broken := b.pair(t, "c2", "b")
	for _, o := range []*v1alpha1.Tunnel{tunnel, broken} {
		b.update(t, o, func() { o.Spec.RevokedEdges = []string{"edge-stolen"} })
	}
	b.update(t, broken, func() { broken.Spec.APIServer.Address = "no..address" })
	b.run(t)
	b.first(t, map[string][]string{"c1": none})
	want := map[string][]string{"c1": {"edge-stolen"}, "c2": {"edge-stolen"}}
	if diff := cmp.Diff(want, b.revoked); diff != "" {
		t.Errorf("at the start:\n%s", diff)
	}
	b.update(t, tunnel, func() { tunnel.Spec.APIServer.Address = "no..address" })
	b.await(t, map[string][]string{})
	if diff := cmp.Diff(want, b.revoked); diff != "" {
		t.Errorf("since its apiserver is no address:\n%s", diff)
	}
	b.update(t, tunnel, func() { tunnel.Spec.APIServer.Address = "" })
	b.await(t, map[string][]string{"c1": none})
	if err := b.Delete(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	b.await(t, map[string][]string{})
	if diff := cmp.Diff(want, b.revoked); diff != "" {
		t.Errorf("without its Cluster:\n%s", diff)
	}
}

func TestOthersAreLookedAtAgain(t *testing.T) {
	b := newBed(t)
	first, _ := b.pair(t, "c1", "a", "api.example.com")
	_, second := b.pair(t, "c2", "b", "api.example.com", "api2.example.com")
	_, third := b.pair(t, "c3", "c", "api2.example.com")
	b.run(t)
	b.first(t, map[string][]string{"c1": {"api.example.com"}, "c2": {"api2.example.com"}, "c3": none})

	b.update(t, second, func() { second.Spec.ExtraNames = []string{"api.example.com"} })
	b.await(t, map[string][]string{"c1": {"api.example.com"}, "c2": none, "c3": {"api2.example.com"}})

	if err := b.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	b.await(t, map[string][]string{"c2": {"api.example.com"}, "c3": {"api2.example.com"}})

	// Nobody is on record, so an older one that claims the name later takes it; c2 is the older of the two, by name at least.
	b.update(t, second, func() { second.Spec.ExtraNames = []string{"api.example.com", "api2.example.com"} })
	b.await(t, map[string][]string{"c2": {"api.example.com", "api2.example.com"}, "c3": none})

	b.update(t, third, func() { third.Spec.ExtraNames = []string{"control.tunnels.example.com", "api3.example.com"} })
	b.await(t, map[string][]string{"c2": {"api.example.com", "api2.example.com"}, "c3": {"api3.example.com"}})
}

func TestWhoIsOnRecordKeepsAName(t *testing.T) {
	b := newBed(t)
	_, first := b.pair(t, "c1", "a", "api.example.com")
	_, second := b.pair(t, "c2", "b", "api.example.com")
	b.run(t)
	b.first(t, map[string][]string{"c1": {"api.example.com"}, "c2": none})
	second.Status.Names, second.Status.ID = []string{"c2." + b.namespace + "." + string(domain), "api.example.com"}, id("b")
	if err := b.Status().Update(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	b.await(t, map[string][]string{"c1": none, "c2": {"api.example.com"}})

	b.update(t, first, func() { first.Spec.ExtraNames = []string{"api.example.com", "api2.example.com"} })
	b.await(t, map[string][]string{"c1": {"api2.example.com"}, "c2": {"api.example.com"}})
	b.update(t, second, func() { second.Spec.ExtraNames = nil })
	b.await(t, map[string][]string{"c1": {"api.example.com", "api2.example.com"}, "c2": none})
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
	b.pair(t, "c3", "c") // comes after it
	b.await(t, map[string][]string{"c1": none, "c3": none})
	b.record(t, tunnel) // the id is granted now
	b.await(t, map[string][]string{"c1": none, "c2": none, "c3": none})
}
