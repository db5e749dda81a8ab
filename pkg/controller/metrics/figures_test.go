package metrics

import (
	"maps"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
)

// TestEachReplicaHasTheLifetimeOfLeaves: alerts depend on it, also while no replica leads.
func TestEachReplicaHasTheLifetimeOfLeaves(t *testing.T) {
	f := &Collector{config: config.Config{LeafLifetime: time.Hour}, elected: make(chan struct{})}
	got := map[string]float64{}
	f.collectAll(func(name string, value float64, _ ...string) { got[name] = value })
	want := map[string]float64{"fairlead_controller_leader": 0, "fairlead_controller_leaf_lifetime_seconds": 3600}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestTheNextLeafOfEachTunnel covers a Tunnel with edges, one without, and an edge that is away, whose leaf may end.
func TestTheNextLeafOfEachTunnel(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	edge := func(node string, hours, tunnels int) v1alpha1.EdgeStatus {
		end := metav1.NewTime(now.Add(time.Duration(hours) * time.Hour))
		return v1alpha1.EdgeStatus{
			NodeID: "CN=" + node, CertificateNotAfter: end,
			Gateways: []v1alpha1.EdgeGatewayStatus{{Name: "gateway-0", Tunnels: int32(tunnels)}},
		}
	}
	_, one := controllertest.Served("one", 1000)
	one.Status.Edges = []v1alpha1.EdgeStatus{edge("a", 5, 2), edge("b", 3, 2), edge("c", 1, 0)}
	_, two := controllertest.Served("two", 1000)
	_, three := controllertest.Served("three", 1000)
	three.Status.Edges = []v1alpha1.EdgeStatus{edge("d", 2, 1)}
	const all, each = "fairlead_controller_leaf_expiry_timestamp_seconds",
		"fairlead_controller_tunnel_leaf_expiry_timestamp_seconds"
	for _, perCluster := range []bool{true, false} {
		got := map[string]float64{}
		f := &Collector{
			config: config.Config{PerCluster: perCluster}, cached: controllertest.FakeAPI(t, one, two, three),
			now: func() time.Time { return now },
		}
		f.collectTunnels(t.Context(), func(name string, value float64, labels ...string) {
			if name == all {
				got["all"] = value
			}
			if name == each {
				got[labels[1]] = value
			}
		})
		want := map[string]int64{"all": now.Add(2 * time.Hour).Unix()}
		if perCluster {
			want["one"], want["three"] = now.Add(3*time.Hour).Unix(), now.Add(2*time.Hour).Unix()
		}
		if len(got) != len(want) {
			t.Errorf("got %v", got)
		}
		for name, value := range want {
			if got[name] != float64(value) {
				t.Errorf("that of %s ends at %v, want %d", name, got[name], value)
			}
		}
	}
}

// TestWhichTunnelsAreDown covers a Tunnel whose edge is away, one of a new Cluster, and one that waits for its Cluster.
// Each has the conditions that the controller writes.
func TestWhichTunnelsAreDown(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	edge := v1alpha1.EdgeStatus{NodeID: "CN=a", CertificateNotAfter: metav1.NewTime(now.Add(time.Hour))}
	conditions := func(tunnel *v1alpha1.Tunnel, accepted, enrolled string) {
		tunnel.Status.Conditions = append(tunnel.Status.Conditions, []metav1.Condition{
			{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: accepted},
			{Type: v1alpha1.ConditionEnrolled, Status: metav1.ConditionFalse, Reason: enrolled},
			{Type: v1alpha1.ConditionTunnelReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoTunnel},
		}...)
	}
	_, away := controllertest.Served("away", 1000)
	away.Status.Edges = []v1alpha1.EdgeStatus{edge}
	conditions(away, v1alpha1.ReasonAccepted, v1alpha1.ReasonEnrolled)
	_, fresh := controllertest.Served("fresh", 1000)
	conditions(fresh, v1alpha1.ReasonAccepted, v1alpha1.ReasonNoEdge)
	_, waits := controllertest.Served("waits", 1000)
	waits.OwnerReferences, waits.Status.ID = nil, waits.Spec.ID
	waits.Annotations = map[string]string{v1alpha1.PreparedAnnotation: now.Add(time.Hour).UTC().Format(time.RFC3339)}
	waits.Status.Edges = []v1alpha1.EdgeStatus{edge}
	conditions(waits, v1alpha1.ReasonWaitingForCluster, v1alpha1.ReasonEnrolled)

	got := map[string]float64{}
	f := &Collector{cached: controllertest.FakeAPI(t, away, fresh, waits), now: func() time.Time { return now }}
	f.collectTunnels(t.Context(), func(name string, value float64, labels ...string) {
		if name == "fairlead_controller_tunnel_conditions" {
			got[labels[1]+" "+labels[3]] = value
		}
	})
	want := map[string]float64{
		"Accepted Accepted": 2, "Accepted WaitingForCluster": 1, "Enrolled Enrolled": 1, "Enrolled NoEdge": 1,
		"TunnelReady NoTunnel": 1, "TunnelReady NoEdge": 1,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
