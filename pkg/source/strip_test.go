package source

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestResolutionUsesNoStrippedFields proves that a stripped Tunnel and Cluster are translated like the originals.
func TestResolutionUsesNoStrippedFields(t *testing.T) {
	now := time.Now()
	token := func(hash string) v1alpha1.TokenStatus {
		return v1alpha1.TokenStatus{SHA256: hash, ExpiresAt: metav1.NewTime(now.Add(time.Hour)), MaxUses: 3, Uses: 1}
	}
	cluster := clusterMetadata()
	cluster.Namespace, cluster.Name, cluster.UID = "prod", "shop", "1"
	cluster.Labels = map[string]string{"team": "blue"}
	tunnel := &v1alpha1.Tunnel{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         "prod",
			Name:              "shop",
			UID:               "2",
			ResourceVersion:   "3",
			CreationTimestamp: metav1.NewTime(now),
		},
	}
	tunnel.Labels = map[string]string{"team": "blue"}
	tunnel.Annotations = map[string]string{
		v1alpha1.PreparedAnnotation: now.Add(time.Hour).Format(time.RFC3339),
		"note":                      "long",
	}
	tunnel.Spec = v1alpha1.TunnelSpec{
		ID: "shop00000000000000000", ExtraNames: []string{"api.example.org"}, RevokedEdges: []string{"e3", "e1", "e9"},
		Kubeconfig: v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeConnect},
		Limits:     v1alpha1.LimitsSpec{Connections: 7},
		APIServer:  v1alpha1.APIServerSpec{Others: []v1alpha1.APIServerAddress{{Address: "10.0.0.2"}}},
	}
	tunnel.Status = v1alpha1.TunnelStatus{
		ID: tunnel.Spec.ID, Hostname: "shop.prod.tunnels.example.com", Names: []string{
			"shop.prod.tunnels.example.com",
			"api.example.org", "eks.example.org",
		}, Served: &v1alpha1.ServedStatus{EnrolmentOnly: true},
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Message: "all is well"}},
		Tokens:     []v1alpha1.TokenStatus{token("a"), token("b")}, BootReportTokens: []v1alpha1.TokenStatus{token("c")},
		Edges: []v1alpha1.EdgeStatus{
			{NodeID: "e1/" + tunnel.Spec.ID, TokenSHA256: "a", Host: "machine"},
			{NodeID: "e2/" + tunnel.Spec.ID},
			{NodeID: "CN=e1", Pod: &v1alpha1.EdgePodStatus{Name: "p", UID: "u"}},
			{NodeID: "CN=e3", RevokedAt: ptr.To(metav1.NewTime(now))},
		},
	}
	tunnel.Status.Kubeconfig.EndpointName = "eks.example.org"
	kept := stripped(t, stripTunnel, tunnel)
	if kept.Status.Conditions != nil || len(kept.Status.Edges) != 3 || kept.Labels != nil || len(kept.Annotations) != 1 {
		t.Errorf("too much is kept: %+v", kept)
	}
	same := func(what string, of func(*metav1.PartialObjectMetadata, *v1alpha1.Tunnel) any) {
		t.Helper()
		if diff := cmp.Diff(of(cluster, tunnel), of(stripped(t, stripCluster, cluster), stripped(t, stripTunnel,
			tunnel))); diff != "" {
			t.Errorf("%s (-all +stripped):\n%s", what, diff)
		}
	}
	translated := func(c *metav1.PartialObjectMetadata, t *v1alpha1.Tunnel) []any {
		out := translate("tunnels.example.com", c, t, neighbours{}, now)
		return []any{out.cluster, out.admitted, out.expires, fmt.Sprint(out.problem)}
	}
	prepared := func(_ *metav1.PartialObjectMetadata, t *v1alpha1.Tunnel) any {
		until, ok := t.PreparedUntil()
		return []any{until, ok, translated(nil, t)}
	}
	same("what waits for its Cluster", prepared)
	tunnel.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "shop", UID: "1", Controller: ptr.To(true)},
	}
	tunnel.Status.Served = &v1alpha1.ServedStatus{
		ClusterUID: "1",
		APIServers: []string{"10.0.0.1:443", "10.0.0.2:443"},
		Limits:     v1alpha1.ServedLimits{Connections: 7},
	}
	if w := translated(cluster, tunnel)[0].(model.WorkloadCluster); w.Withheld || len(w.ExtraNames) != 2 ||
		len(w.Others) != 1 ||
		!slices.Equal(w.Revoked, []string{"e9", "e3", "e1"}) || w.Recorded != 2 { // those that have enrolled come last
		t.Errorf("not all of it is served: %+v", w)
	}
	same("what is served", func(c *metav1.PartialObjectMetadata, t *v1alpha1.Tunnel) any { return translated(c, t) })
	same("tokens", func(_ *metav1.PartialObjectMetadata, t *v1alpha1.Tunnel) any {
		return []any{
			t.Status.Tokens,
			t.Status.BootReportTokens,
			tokenHashes(t),
			reportTokenHashes(t),
			decision.TokenRevoked(t, "a"),
			decision.TokenRevoked(t, "b"),
		}
	})
	tunnel.DeletionTimestamp = ptr.To(metav1.NewTime(now))
	same("one that is being deleted", prepared)
}

// stripped returns a stripped copy of an object.
func stripped[T interface{ DeepCopy() T }](t *testing.T, strip func(any) (any, error), object T) T {
	t.Helper()
	out, err := strip(object.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	return out.(T)
}

// TestAStrippedNetworkIsServedInTheSameWay compares the translations of whole and of stripped objects.
func TestAStrippedNetworkIsServedInTheSameWay(t *testing.T) {
	network := &v1alpha1.RemoteNetwork{ObjectMeta: metav1.ObjectMeta{
		Namespace: "prod", Name: "site1", UID: "n", Annotations: map[string]string{"a": "b"},
	}, Spec: v1alpha1.RemoteNetworkSpec{ClusterName: "shop", CIDRs: []string{"10.1.0.0/16"}}}
	network.Status.ConnectedEdges = 3
	tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "site1.network"}}
	tunnel.Spec = v1alpha1.TunnelSpec{ID: strings.Repeat("n", 20), Network: "site1"}
	tunnel.OwnerReferences = []metav1.OwnerReference{
		*metav1.NewControllerRef(network, v1alpha1.GroupVersion.WithKind("RemoteNetwork")),
	}
	tunnel.Status = v1alpha1.TunnelStatus{ID: tunnel.Spec.ID, Served: &v1alpha1.ServedStatus{
		ClusterUID: "1", Network: &v1alpha1.ServedNetwork{ClusterName: "shop", CIDRs: []string{"10.1.0.0/16"}},
	}}
	cluster := clusterMetadata()
	cluster.Namespace, cluster.Name, cluster.UID = "prod", "shop", "1"
	of := func(t *v1alpha1.Tunnel, n *v1alpha1.RemoteNetwork) model.WorkloadCluster {
		return translate("tunnels.example.com", cluster, t, neighbours{network: n}, time.Now()).cluster
	}
	want := of(tunnel, network)
	if want.Network == nil || len(want.Network.CIDRs) != 1 {
		t.Fatalf("the network is not served: %+v", want)
	}
	network.DeletionTimestamp = ptr.To(metav1.Now())
	kept := stripped(t, stripNetwork, network)
	if kept.DeletionTimestamp.IsZero() || kept.Annotations != nil || kept.Status.ConnectedEdges != 0 ||
		!metav1.IsControlledBy(tunnel, kept) {
		t.Errorf("kept: %+v", kept)
	}
	same := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	if diff := cmp.Diff(want, of(stripped(t, stripTunnel, tunnel), kept), same); diff != "" {
		t.Error(diff)
	}
}
