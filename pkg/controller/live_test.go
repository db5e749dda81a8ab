package controller

import (
	"log/slog"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/report"
)

// fixedView says what a test wants it to.
type fixedView struct{ live report.Live }

func (v *fixedView) Tunnel(string) report.Live { return v.live }

func newLive(cached client.Client, live client.Reader, view liveView, ended *endedTunnels) *liveStatus {
	return &liveStatus{
		deps:          deps{config: testConfig(), client: cached, live: live, log: slog.New(slog.DiscardHandler), now: time.Now, recorder: events.NewFakeRecorder(100)},
		view:          view,
		ended:         ended,
		clusterStatus: clusterStatus{cached},
	}
}

// liveWorld is one Tunnel to which nobody else writes, with a clock and a view of the test's. Its Cluster is on the real apiserver.
type liveWorld struct {
	t       *testing.T
	m       client.WithWatch
	r       *liveStatus
	view    *fixedView
	clock   time.Time
	cluster *clusterv1.Cluster
}

func newLiveWorld(t *testing.T) *liveWorld {
	t.Helper()
	m := bareAPIServer(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	create(t, m, cluster)
	tunnel := tunnelNamed(cluster)
	fillTunnel(tunnel, cluster)
	tunnel.Status.ID = tunnel.Spec.ID
	copied := cluster.DeepCopy()
	copied.SetResourceVersion("")
	api := fakeAPI(t, copied, tunnel)
	w := &liveWorld{t: t, m: api, view: &fixedView{}, clock: time.Now().Truncate(time.Second), cluster: cluster}
	w.r = newLive(api, api, w.view, newEndedTunnels(api, api, "fairlead-system", time.Now))
	w.r.clusterStatus = clusterStatus{m}
	w.r.now = func() time.Time { return w.clock }
	return w
}

// settle lets time go by, reconciles once, and returns the Tunnel.
func (w *liveWorld) settle(after time.Duration) *v1alpha1.Tunnel {
	w.t.Helper()
	w.clock = w.clock.Add(after)
	if _, err := w.r.Reconcile(w.t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(w.cluster)}); err != nil {
		w.t.Fatal(err)
	}
	return read(w.t, w.m, tunnelNamed(w.cluster))
}

func (w *liveWorld) check(tunnel *v1alpha1.Tunnel, kind string, status metav1.ConditionStatus, reason string) {
	w.t.Helper()
	c := apimeta.FindStatusCondition(tunnel.Status.Conditions, kind)
	if c == nil || c.Status != status || c.Reason != reason {
		w.t.Errorf("condition %s is %+v, want %s %s", kind, c, status, reason)
	}
}

func TestLiveStateBecomesStatus(t *testing.T) {
	w := newLiveWorld(t)
	tunnel := w.settle(0)
	w.check(tunnel, v1alpha1.ConditionEnrolled, metav1.ConditionFalse, v1alpha1.ReasonNoEdge)
	w.check(tunnel, v1alpha1.ConditionTunnelReady, metav1.ConditionUnknown, v1alpha1.ReasonUnknown)

	w.view.live = report.Live{Known: true, Gateways: []string{"gateway-0", "gateway-1"}, Edges: []report.Edge{connected("edge-a", "gateway-0")}}
	tunnel = w.settle(2 * time.Second)
	w.check(tunnel, v1alpha1.ConditionTunnelReady, metav1.ConditionTrue, v1alpha1.ReasonPartlyConnected)
	w.check(tunnel, v1alpha1.ConditionAPIServerReachable, metav1.ConditionTrue, v1alpha1.ReasonReachable)
	if len(tunnel.Status.Edges) != 1 || tunnel.Status.Edges[0].Gateways[0] != (v1alpha1.EdgeGatewayStatus{Name: "gateway-0", Tunnels: 2}) {
		t.Fatalf("edges %+v", tunnel.Status.Edges)
	}
	w.check(tunnel, v1alpha1.ConditionEnrolled, metav1.ConditionTrue, v1alpha1.ReasonEnrolled)
	w.check(tunnel, v1alpha1.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonUnknown) // nobody has accepted this Tunnel

	w.view.live.Edges = []report.Edge{connected("edge-a", "gateway-0", "gateway-1")}
	w.check(w.settle(2*time.Second), v1alpha1.ConditionTunnelReady, metav1.ConditionTrue, v1alpha1.ReasonConnected)

	// Everything that could tell is away: nothing is concluded from that, for a while.
	w.view.live = report.Live{}
	tunnel = w.settle(2 * time.Second)
	w.check(tunnel, v1alpha1.ConditionTunnelReady, metav1.ConditionTrue, v1alpha1.ReasonConnected)
	if len(tunnel.Status.Edges[0].Gateways) != 2 || tunnel.Status.Edges[0].Version == "" {
		t.Errorf("what was known is lost: %+v", tunnel.Status.Edges[0])
	}
	w.check(w.settle(patience+time.Second), v1alpha1.ConditionTunnelReady, metav1.ConditionUnknown, v1alpha1.ReasonUnknown)

	w.view.live = report.Live{Known: true, Gateways: []string{"gateway-0"}}
	tunnel = w.settle(2 * time.Second)
	w.check(tunnel, v1alpha1.ConditionTunnelReady, metav1.ConditionFalse, v1alpha1.ReasonNoTunnel)
	if e := tunnel.Status.Edges[0]; len(e.Gateways) != 0 || e.Version != "" || e.NodeID != "CN=edge-a" || e.LastSeen == nil {
		t.Errorf("an edge of which nothing is known any more: %+v", e)
	}
}

func TestTheEdgesOfAnotherWithTheSameIDAreNotShown(t *testing.T) {
	w := newLiveWorld(t)
	w.view.live = report.Live{Known: true, Gateways: []string{"gateway-0"}, Edges: []report.Edge{connected("edge-a", "gateway-0")}}
	tunnel := read(t, w.m, tunnelNamed(w.cluster))
	decision.RecordNothing(&tunnel.Status) // the controller has found that another Tunnel holds the id
	if err := w.m.Status().Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	tunnel = w.settle(0)
	w.check(tunnel, v1alpha1.ConditionTunnelReady, metav1.ConditionUnknown, v1alpha1.ReasonUnknown)
	if len(tunnel.Status.Edges) != 0 {
		t.Errorf("edges %+v", tunnel.Status.Edges)
	}
}

func TestWritesAreFew(t *testing.T) {
	w := newLiveWorld(t)
	w.view.live = report.Live{Known: true, Gateways: []string{"gateway-0"}, Edges: []report.Edge{connected("edge-a", "gateway-0")}}
	version := w.settle(0).ResourceVersion
	for range 25 { // a connected edge is seen all the time
		if got := w.settle(10 * time.Second).ResourceVersion; got != version {
			t.Fatal("something is written although nothing has changed")
		}
	}
	seen := w.settle(0).Status.Edges[0].LastSeen
	if after := w.settle(seenInterval).Status.Edges[0].LastSeen; !seen.Before(after) {
		t.Error("lastSeen is never renewed")
	}
	// What changes in the second after a write waits for its end.
	w.view.live.Edges[0] = connected("edge-a")
	before := w.settle(writeInterval / 4).ResourceVersion
	w.view.live.Edges[0] = connected("edge-a", "gateway-0")
	if got := w.settle(writeInterval / 4).ResourceVersion; got != before {
		t.Error("a second write within the interval")
	}
	if got := w.settle(writeInterval).ResourceVersion; got != before {
		t.Error("a change that was taken back is written")
	}
}

func TestALateLookAtALivingTunnelRevivesNothing(t *testing.T) {
	cluster, tunnel := served("c1", 1000)
	going := tunnel.DeepCopy()
	going.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	cached, live := fakeAPI(t, cluster, tunnel), fakeAPI(t, cluster, going)
	ended := newEndedTunnels(live, live, "fairlead-system", time.Now)
	if err := ended.add(t.Context(), tunnel.Spec.ID, time.Now()); err != nil {
		t.Fatal(err)
	}
	r := newLive(cached, live, nil, ended)
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(tunnel)}); err != nil {
		t.Fatal(err)
	}
	if !ended.has(tunnel.Spec.ID) {
		t.Error("a tunnel that is ending is off the record")
	}
}
