package decision_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/decision"
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

func TestPreparedTunnels(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	later := now.Add(time.Minute).Format(time.RFC3339)
	cluster := newCluster("c1", "u1")
	tests := map[string]struct {
		in   func(tunnel *v1alpha1.Tunnel)
		want bool
	}{
		"one that waits for its Cluster": {in: func(*v1alpha1.Tunnel) {}, want: true},
		"one that has waited for long enough": {
			in: func(t *v1alpha1.Tunnel) { t.Annotations[v1alpha1.PreparedAnnotation] = now.Format(time.RFC3339) },
		},
		"one without a deadline": {
			in: func(t *v1alpha1.Tunnel) { t.Annotations[v1alpha1.PreparedAnnotation] = "tomorrow" },
		},
		"one without the annotation":          {in: func(t *v1alpha1.Tunnel) { t.Annotations = nil }},
		"one without an id":                   {in: func(t *v1alpha1.Tunnel) { t.Spec.ID = "" }},
		"one whose id is not recorded as its": {in: func(t *v1alpha1.Tunnel) { t.Status.ID = "" }},
		"one that is being deleted": {
			in: func(t *v1alpha1.Tunnel) { at := metav1.NewTime(now); t.DeletionTimestamp = &at },
		},
		"one that needs no edge": {
			in: func(t *v1alpha1.Tunnel) { t.Spec.Kubeconfig.Mode = v1alpha1.KubeconfigModeSOCKS5 },
		},
		"one that is controlled by an earlier": {
			in: func(t *v1alpha1.Tunnel) { t.OwnerReferences = newTunnel("c1", id("a"), "u0").OwnerReferences },
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tunnel := prepared(later)
			tc.in(tunnel)
			c, ok := decision.Claimant(cluster, tunnel, now)
			if ok != tc.want || c.Prepared != tc.want || tunnel.Prepared(now) != tc.want {
				t.Errorf("got %+v, %v", c, ok)
			}
			if len(c.ExtraNames) > 0 {
				t.Errorf("it claims %v", c.ExtraNames)
			}
		})
	}
	for name, change := range map[string]func(*v1alpha1.Tunnel){
		"site1.network": func(t *v1alpha1.Tunnel) { t.Spec.Network = "site1" },
		"c1.egress":     func(t *v1alpha1.Tunnel) { t.Spec.EgressOf = "c1" },
	} {
		tunnel := prepared(later)
		tunnel.Name = name
		change(tunnel)
		c, ok := decision.Claimant(nil, tunnel, now)
		var names decision.Names
		r := names.Decide(domain, c)
		status := v1alpha1.TunnelStatus{}
		decision.Record(&status, r)
		if !ok || r.Fatal != nil || status.ID != id("a") || status.Served == nil || !status.Served.EnrolmentOnly ||
			status.Served.Network != nil || status.Hostname != "" || len(status.Names) > 0 {
			t.Errorf("%s: %v, decided %+v, recorded %+v", name, ok, r, status)
		}
		tunnel.Annotations = nil
		if c, ok := decision.Claimant(nil, tunnel, now); ok {
			t.Errorf("%s claims %+v without waiting", name, c)
		}
	}
	served := prepared(later)
	served.OwnerReferences = newTunnel("c1", id("a"), "u1").OwnerReferences
	if c, ok := decision.Claimant(cluster, served, now); !ok || c.Prepared || len(c.ExtraNames) != 1 {
		t.Errorf("one whose Cluster is there: got %+v, %v", c, ok)
	}
}
