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
	"github.com/fairlead/fairlead/pkg/source"
)

func prepared(until string) *v1alpha1.Tunnel {
	return &v1alpha1.Tunnel{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "c1", Annotations: map[string]string{v1alpha1.PreparedAnnotation: until}},
		Spec:       v1alpha1.TunnelSpec{ID: id("a"), ExtraNames: []string{"somebody.example.com"}}, Status: v1alpha1.TunnelStatus{ID: id("a")},
	}
}

func TestWhoIsPrepared(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	later := now.Add(time.Minute).Format(time.RFC3339)
	cluster := newCluster("c1", "u1")
	tests := map[string]struct {
		in   func(tunnel *v1alpha1.Tunnel)
		want bool
	}{
		"one that waits for its Cluster":       {in: func(*v1alpha1.Tunnel) {}, want: true},
		"one that has waited for long enough":  {in: func(t *v1alpha1.Tunnel) { t.Annotations[v1alpha1.PreparedAnnotation] = now.Format(time.RFC3339) }},
		"one that says no time":                {in: func(t *v1alpha1.Tunnel) { t.Annotations[v1alpha1.PreparedAnnotation] = "tomorrow" }},
		"one without the annotation":           {in: func(t *v1alpha1.Tunnel) { t.Annotations = nil }},
		"one without an id":                    {in: func(t *v1alpha1.Tunnel) { t.Spec.ID = "" }},
		"one whose id is not recorded as its":  {in: func(t *v1alpha1.Tunnel) { t.Status.ID = "" }},
		"one that is being deleted":            {in: func(t *v1alpha1.Tunnel) { at := metav1.NewTime(now); t.DeletionTimestamp = &at }},
		"one that needs no edge":               {in: func(t *v1alpha1.Tunnel) { t.Spec.Kubeconfig.Mode = v1alpha1.KubeconfigModeSOCKS5 }},
		"one that is controlled by an earlier": {in: func(t *v1alpha1.Tunnel) { t.OwnerReferences = newTunnel("c1", id("a"), "u0").OwnerReferences }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tunnel := prepared(later)
			tc.in(tunnel)
			c, ok := source.Claimant(cluster, tunnel, now)
			if ok != tc.want || c.Prepared != tc.want || source.Prepared(tunnel, now) != tc.want {
				t.Errorf("got %+v, %v", c, ok)
			}
			if len(c.ExtraNames) > 0 {
				t.Errorf("it claims %v", c.ExtraNames)
			}
		})
	}
	served := prepared(later)
	served.OwnerReferences = newTunnel("c1", id("a"), "u1").OwnerReferences
	if c, ok := source.Claimant(cluster, served, now); !ok || c.Prepared || len(c.ExtraNames) != 1 {
		t.Errorf("one whose Cluster is there: got %+v, %v", c, ok)
	}
}

func TestATunnelThatWaitsForItsCluster(t *testing.T) {
	b := newBed(t)
	tunnel := prepared(time.Now().Add(time.Hour).Format(time.RFC3339))
	tunnel.Namespace, tunnel.Spec.ExtraNames = b.namespace, nil
	if err := b.Create(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	tunnel.Status = v1alpha1.TunnelStatus{ID: id("a"), Tokens: []v1alpha1.TokenStatus{{
		SHA256: enrol.HashToken("good"), MaxUses: 2, ExpiresAt: metav1.NewTime(time.Now().Add(time.Hour)),
	}}}
	if err := b.Status().Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	b.run(t)
	b.first(t, map[string][]string{"c1": none})
	grant, err := b.EdgeToken(enrol.HashToken("good"))
	if want := (enrol.Grant{Tunnel: model.Key{Namespace: b.namespace, Name: "c1"}, ID: id("a")}); err != nil || grant != want {
		t.Fatalf("got %v and %v, want %v", grant, err, want)
	}
	if key := (model.Key{Namespace: b.namespace, Name: "c1"}); !b.prepared[key] {
		t.Error("it is published as served")
	}

	// As clusterctl moves it: the Cluster first, then the Tunnel in place of what there is.
	cluster := b.cluster(t, "c1")
	b.update(t, tunnel, func() {
		tunnel.Annotations, tunnel.OwnerReferences = nil, newTunnel("c1", id("a"), cluster.UID).OwnerReferences
	})
	eventually(t, "it is served", func() bool {
		for len(b.updates) > 0 {
			b.take(t, <-b.updates)
		}
		return maps.Equal(b.prepared, map[model.Key]bool{})
	})
	if _, err := b.EdgeToken(enrol.HashToken("good")); err != nil {
		t.Errorf("its token: %v", err)
	}

	b.update(t, tunnel, func() {
		tunnel.OwnerReferences, tunnel.Annotations = nil, map[string]string{v1alpha1.PreparedAnnotation: time.Now().Format(time.RFC3339)}
	})
	eventually(t, "nobody waits for it any more", func() bool {
		_, err := b.EdgeToken(enrol.HashToken("good"))
		return errors.Is(err, enrol.ErrUnknownToken)
	})
}
