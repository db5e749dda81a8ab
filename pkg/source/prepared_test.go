package source_test

import (
	"errors"
	"maps"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/model"
)

func prepared(until string) *v1alpha1.Tunnel {
	return &v1alpha1.Tunnel{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   "prod",
			Name:        "c1",
			Annotations: map[string]string{v1alpha1.PreparedAnnotation: until},
		},
		Spec: v1alpha1.TunnelSpec{
			ID:         id("a"),
			ExtraNames: []string{"somebody.example.com"},
		}, Status: v1alpha1.TunnelStatus{ID: id("a")},
	}
}

func TestATunnelThatWaitsForItsCluster(t *testing.T) {
	b := newBed(t)
	tunnel := prepared(time.Now().Add(time.Hour).Format(time.RFC3339))
	tunnel.Namespace, tunnel.Spec.ExtraNames = b.namespace, nil
	if err := b.Create(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	tunnel.Status = v1alpha1.TunnelStatus{
		ID:       id("a"),
		Hostname: "c1." + b.namespace + "." + string(domain),
		Served:   &v1alpha1.ServedStatus{EnrolmentOnly: true},
		Tokens: []v1alpha1.TokenStatus{{
			SHA256: enrol.HashToken("good"), MaxUses: 2, ExpiresAt: metav1.NewTime(time.Now().Add(time.Hour)),
		}},
	}
	if err := b.Status().Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	b.run(t)
	b.first(t, map[string][]string{"c1": none})
	grant, err := b.EdgeToken(enrol.HashToken("good"), "")
	if want := (enrol.Grant{Tunnel: model.Key{Namespace: b.namespace, Name: "c1"}, ID: id("a")}); err != nil ||
		grant != want {
		t.Fatalf("got %v and %v, want %v", grant, err, want)
	}
	if key := (model.Key{Namespace: b.namespace, Name: "c1"}); !b.prepared[key] {
		t.Error("it is published as served")
	}

	// As clusterctl moves it: the Cluster first, then the Tunnel replaces the existing one.
	cluster := b.cluster(t, "c1")
	b.update(t, tunnel, func() {
		tunnel.Annotations, tunnel.OwnerReferences = nil, newTunnel("c1", id("a"), cluster.UID).OwnerReferences
	})
	b.pair(t, "marker", "b")
	b.await(t, map[string][]string{"c1": none, "marker": none})
	if !b.prepared[model.Key{Namespace: b.namespace, Name: "c1"}] {
		t.Error("clients are served before the controller has granted that")
	}
	b.record(t, tunnel)
	eventually(t, "it is served", func() bool {
		for len(b.updates) > 0 {
			b.take(t, <-b.updates)
		}
		return maps.Equal(b.prepared, map[model.Key]bool{})
	})
	eventually(t, "its token is good", func() bool {
		_, err := b.EdgeToken(enrol.HashToken("good"), "")
		return err == nil
	})

	b.update(t, tunnel, func() {
		tunnel.OwnerReferences, tunnel.Annotations = nil, map[string]string{
			v1alpha1.PreparedAnnotation: time.Now().Format(time.RFC3339),
		}
	})
	eventually(t, "no caller waits for it", func() bool {
		_, err := b.EdgeToken(enrol.HashToken("good"), "")
		return errors.Is(err, enrol.ErrUnknownToken)
	})
}

// TestTunnelsOfNetworksThatWaitForTheirCluster: edges of networks and Envoys beside apiservers enrol at the
// installation that their Cluster will be moved to.
func TestTunnelsOfNetworksThatWaitForTheirCluster(t *testing.T) {
	b := newBed(t)
	until := time.Now().Add(time.Hour).Format(time.RFC3339)
	site, other, egress := prepared(until), prepared(until), prepared(until)
	site.Name, site.Spec = "site1.network", v1alpha1.TunnelSpec{ID: id("b"), Network: "site1"}
	other.Name, other.Spec = "site2.network", v1alpha1.TunnelSpec{ID: id("d"), Network: "site2"}
	egress.Name, egress.Spec = "c1.egress", v1alpha1.TunnelSpec{ID: id("c"), EgressOf: "c1"}
	for _, tunnel := range []*v1alpha1.Tunnel{site, other, egress} {
		tunnel.Namespace = b.namespace
		if err := b.Create(t.Context(), tunnel); err != nil {
			t.Fatal(err)
		}
		tunnel.Status = v1alpha1.TunnelStatus{
			ID: tunnel.Spec.ID, Served: &v1alpha1.ServedStatus{EnrolmentOnly: true},
			Tokens: []v1alpha1.TokenStatus{{
				SHA256: enrol.HashToken(tunnel.Name), MaxUses: 2, ExpiresAt: metav1.NewTime(time.Now().Add(time.Hour)),
			}},
		}
		if err := b.Status().Update(t.Context(), tunnel); err != nil {
			t.Fatal(err)
		}
	}
	b.run(t)
	for b.prepared == nil {
		b.take(t, <-b.updates)
	}
	for _, tunnel := range []*v1alpha1.Tunnel{site, other, egress} {
		if !b.prepared[model.Key{Namespace: b.namespace, Name: tunnel.Name}] {
			t.Errorf("%s does not wait: %v", tunnel.Name, b.prepared)
		}
		if _, err := b.EdgeToken(enrol.HashToken(tunnel.Name), ""); err != nil {
			t.Errorf("the token of %s: %v", tunnel.Name, err)
		}
	}
	if w := b.networks["c1.egress"]; !w.Egress || !w.Prepared {
		t.Errorf("the Tunnel of apiservers is published as %+v", w)
	}
	if w := b.networks["site1.network"]; w.Egress || !w.Prepared || len(w.Names()) > 0 {
		t.Errorf("the Tunnel of a network is published as %+v with the names %q", w, w.Names())
	}
	b.update(t, site, func() { site.Annotations[v1alpha1.PreparedAnnotation] = time.Now().Format(time.RFC3339) })
	eventually(t, "no caller waits for it", func() bool {
		_, err := b.EdgeToken(enrol.HashToken(site.Name), "")
		return errors.Is(err, enrol.ErrUnknownToken)
	})
}
