package decision_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

const domain = model.TunnelDomain("tunnels.example.com")

// id returns a valid id that begins with some characters.
func id(begin string) string { return begin + strings.Repeat("0", 20-len(begin)) }

// newCluster and newTunnel return a pair that is served.
func newCluster(name string, uid types.UID) *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: name, UID: uid}}
}

func newTunnel(name, id string, owner types.UID) *v1alpha1.Tunnel {
	controller := true
	return &v1alpha1.Tunnel{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: name, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: name, UID: owner, Controller: &controller,
		}}},
		Spec: v1alpha1.TunnelSpec{ID: id},
	}
}

func TestCandidate(t *testing.T) {
	tests := map[string]struct {
		in   func(c *clusterv1.Cluster, t *v1alpha1.Tunnel)
		want *model.Endpoint // nil: nothing to serve
	}{
		"without any address": {want: &model.Endpoint{Host: "127.0.0.1", Port: 6443}},
		"with the port of the Cluster's network": {
			in: func(c *clusterv1.Cluster, _ *v1alpha1.Tunnel) {
				c.Spec.ClusterNetwork.APIServerPort = 7443
			},
			want: &model.Endpoint{Host: "127.0.0.1", Port: 7443},
		},
		"with the Cluster's endpoint": {
			in: func(c *clusterv1.Cluster, _ *v1alpha1.Tunnel) {
				c.Spec.ClusterNetwork.APIServerPort = 7443
				c.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "10.0.0.1", Port: 443}
			},
			want: &model.Endpoint{Host: "10.0.0.1", Port: 443},
		},
		"with the Tunnel's own address": {
			in: func(c *clusterv1.Cluster, t *v1alpha1.Tunnel) {
				c.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "10.0.0.1", Port: 443}
				t.Spec.APIServer = v1alpha1.APIServerSpec{Address: "kubernetes.default", Port: 8443}
			},
			want: &model.Endpoint{Host: "kubernetes.default", Port: 8443},
		},
		"with an endpoint as clouds write it": {
			in: func(c *clusterv1.Cluster, _ *v1alpha1.Tunnel) {
				c.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "EBE3.gr7.us-west-2.eks.amazonaws.com.", Port: 443}
			},
			want: &model.Endpoint{Host: "ebe3.gr7.us-west-2.eks.amazonaws.com", Port: 443},
		},
		"with such an address in the Tunnel, and an underscore": {
			in: func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) {
				t.Spec.APIServer = v1alpha1.APIServerSpec{Address: "API.my_cluster.", Port: 443}
			},
			want: &model.Endpoint{Host: "api.my_cluster", Port: 443},
		},
		"with an IPv6 address in upper case": {
			in:   func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) { t.Spec.APIServer.Address = "FD00::1" },
			want: &model.Endpoint{Host: "fd00::1", Port: 6443},
		},
		"paused": {
			in: func(c *clusterv1.Cluster, _ *v1alpha1.Tunnel) {
				paused := true
				c.Spec.Paused = &paused
			},
			want: &model.Endpoint{Host: "127.0.0.1", Port: 6443},
		},
		"both being deleted": {
			in: func(c *clusterv1.Cluster, t *v1alpha1.Tunnel) {
				c.DeletionTimestamp, t.DeletionTimestamp = &metav1.Time{}, &metav1.Time{}
			},
			want: &model.Endpoint{Host: "127.0.0.1", Port: 6443},
		},
		"without an id":         {in: func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) { t.Spec.ID = "" }},
		"of an earlier Cluster": {in: func(c *clusterv1.Cluster, _ *v1alpha1.Tunnel) { c.UID = "another" }},
		"without an owner": {
			in: func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) { t.OwnerReferences = nil },
		},
		"that the Cluster owns, but not runs": {
			in: func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) { t.OwnerReferences[0].Controller = nil },
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, tunnel := newCluster("c1", "u1"), newTunnel("c1", id("a"), "u1")
			tunnel.Spec.ExtraNames = []string{"api.example.com"}
			if tc.in != nil {
				tc.in(c, tunnel)
			}
			got, ok := decision.CandidateOf(c, tunnel)
			if tc.want == nil {
				if ok {
					t.Errorf("got %+v, want nothing", got)
				}
				return
			}
			want := decision.Candidate{
				Key: model.Key{
					Namespace: "prod",
					Name:      "c1",
				}, ClusterUID: "u1", ID: id("a"), ExtraNames: []string{"api.example.com"}, APIServer: *tc.want,
			}
			if err := got.APIServer.Validate(); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(want, got); diff != "" || !ok {
				t.Errorf("served %t:\n%s", ok, diff)
			}
		})
	}
	if _, ok := decision.CandidateOf(nil, newTunnel("c1", id("a"), "u1")); ok {
		t.Error("a Tunnel without a Cluster is served")
	}
	if _, ok := decision.CandidateOf(newCluster("c1", "u1"), nil); ok {
		t.Error("a Cluster without a Tunnel is served")
	}
}

func TestACandidateHoldsItsRecordedNames(t *testing.T) {
	tunnel := newTunnel("c1", id("a"), "u1")
	tunnel.Status.Names = []string{"c1.prod.tunnels.example.com", "api.example.com"}
	tunnel.Status.ID = id("a")
	got, _ := decision.CandidateOf(newCluster("c1", "u1"), tunnel)
	if diff := cmp.Diff([]string{"c1.prod.tunnels.example.com", "api.example.com", id("a")}, got.Held); diff != "" {
		t.Error(diff)
	}
}

func TestACandidateHasAllAPIServersAndRevokedEdges(t *testing.T) {
	tunnel := newTunnel("c1", id("a"), "u1")
	tunnel.Spec.APIServer = v1alpha1.APIServerSpec{
		Address: "10.0.0.1", Port: 7443, Others: []v1alpha1.APIServerAddress{
			{Address: "10.0.0.2"},
			{Address: "API.Example.com.", Port: 443},
		},
	}
	tunnel.Spec.RevokedEdges = []string{"edge-b", "edge-a"}
	got, _ := decision.CandidateOf(newCluster("c1", "u1"), tunnel)
	want := []model.Endpoint{{Host: "10.0.0.2", Port: 7443}, {Host: "api.example.com", Port: 443}}
	if diff := cmp.Diff(want, got.Others); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(tunnel.Spec.RevokedEdges, got.Revoked); diff != "" {
		t.Error(diff)
	}
}

func TestTwoDotsAreNotAnAddress(t *testing.T) {
	tunnel := newTunnel("c1", id("a"), "u1")
	for _, address := range []string{"api.example.com..", ".", "a b"} {
		tunnel.Spec.APIServer.Address = address
		if got, _ := decision.CandidateOf(newCluster("c1", "u1"), tunnel); got.APIServer.Validate() == nil {
			t.Errorf("%q is taken for %q", address, got.APIServer.Host)
		}
	}
}

func TestBuild(t *testing.T) {
	older := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	candidate := func(name, begin string, age int, extra ...string) decision.Candidate {
		return decision.Candidate{
			Key: model.Key{Namespace: "prod", Name: name}, Created: older.Add(time.Duration(-age) * time.Hour), ID: id(begin),
			ExtraNames: extra, APIServer: model.Endpoint{Host: "10.0.0.1", Port: 6443},
		}
	}
	held := func(c decision.Candidate) decision.Candidate {
		c.Held = append([]string{c.ID}, c.ExtraNames...)
		return c
	}
	tests := map[string]struct {
		in   []decision.Candidate
		want map[string][]string // the served names; absent keys are not served
	}{
		"nothing": {want: map[string][]string{}},
		"an extra name that two claim is the older one's": {
			in: []decision.Candidate{candidate("c1", "a", 1, "api.example.com"), candidate("c2", "b", 2, "api.example.com")},
			want: map[string][]string{
				"c1": {"c1.prod.tunnels.example.com"},
				"c2": {"c2.prod.tunnels.example.com", "api.example.com"},
			},
		},
		"an extra name that two claim is that of the holder": {
			in: []decision.Candidate{
				held(candidate("c1", "a", 1, "api.example.com")),
				candidate("c2", "b", 2, "api.example.com"),
			},
			want: map[string][]string{
				"c1": {"c1.prod.tunnels.example.com", "api.example.com"},
				"c2": {"c2.prod.tunnels.example.com"},
			},
		},
		"an id that two claim is that of the holder": {
			in:   []decision.Candidate{held(candidate("c1", "a", 1)), candidate("c2", "a", 2)},
			want: map[string][]string{"c1": {"c1.prod.tunnels.example.com"}},
		},
		"one that is not served keeps no extra name": {
			in: []decision.Candidate{
				candidate("c1", "a", 3),
				candidate("c2", "a", 2, "api.example.com"),
				candidate("c3", "c", 1, "api.example.com"),
			},
			want: map[string][]string{
				"c1": {"c1.prod.tunnels.example.com"},
				"c3": {"c3.prod.tunnels.example.com", "api.example.com"},
			},
		},
		"an id that two claim is the older one's": {
			in:   []decision.Candidate{candidate("c1", "a", 1), candidate("c2", "a", 2)},
			want: map[string][]string{"c2": {"c2.prod.tunnels.example.com"}},
		},
		"a bad one blocks no other": {
			in:   []decision.Candidate{candidate(strings.Repeat("x", 64), "a", 1), candidate("c2", "b", 1, "192.0.2.1")},
			want: map[string][]string{"c2": {"c2.prod.tunnels.example.com"}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for _, order := range []string{"as it is", "reversed"} {
				got := map[string][]string{}
				for i, r := range decision.Build(domain, &decision.Names{}, tc.in) {
					if r.Cluster.Key != tc.in[i].Key {
						t.Errorf("resolution %d is of %s", i, r.Cluster.Key)
					}
					if r.Fatal == nil {
						got[r.Cluster.Key.Name] = r.Cluster.Names()
					}
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("%s:\n%s", order, diff)
				}
				slices.Reverse(tc.in)
			}
		})
	}
}

func TestACandidateIsServedByAModeThroughTheGateways(t *testing.T) {
	for mode, want := range map[v1alpha1.KubeconfigMode]bool{
		"": true, v1alpha1.KubeconfigModeAuto: true, v1alpha1.KubeconfigModeSNI: true, v1alpha1.KubeconfigModeConnect: true,
		v1alpha1.KubeconfigModeHTTPProxy: false, v1alpha1.KubeconfigModeHTTPSProxy: false,
		v1alpha1.KubeconfigModeSOCKS5: false, v1alpha1.KubeconfigModeAddress: false,
	} {
		tunnel := newTunnel("c1", id("a"), "1")
		tunnel.Spec.Kubeconfig.Mode, tunnel.Status.Kubeconfig.EndpointName = mode, "api.example.com"
		c, ok := decision.CandidateOf(newCluster("c1", "1"), tunnel)
		if ok != want || (ok && c.EndpointName != "api.example.com") {
			t.Errorf("mode %q: candidate %+v, %v", mode, c, ok)
		}
	}
}

func TestACandidateHasItsLimits(t *testing.T) {
	tunnel := newTunnel("c1", id("a"), "u1")
	bandwidth := resource.MustParse("10Mi")
	tunnel.Spec.Limits = v1alpha1.LimitsSpec{Connections: 7, PendingConnections: 3, Bandwidth: &bandwidth}
	got, _ := decision.CandidateOf(newCluster("c1", "u1"), tunnel)
	if want := (model.Limits{Connections: 7, Pending: 3, Bandwidth: 10 << 20}); got.Limits != want {
		t.Errorf("got %+v, want %+v", got.Limits, want)
	}
	nothing := resource.MustParse("0")
	tunnel.Spec.Limits.Bandwidth = &nothing
	if got, _ := decision.CandidateOf(newCluster("c1", "u1"), tunnel); got.Limits.Bandwidth == 0 {
		t.Error("a bandwidth of nothing is taken for no limit")
	}
}
