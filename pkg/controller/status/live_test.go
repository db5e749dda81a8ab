package status

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
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/decision"
	reportview "github.com/fairlead/fairlead/pkg/report/view"
)

// fixedView is a View with fixed contents.
type fixedView struct{ live reportview.Live }

func (v *fixedView) Tunnel(string) reportview.Live { return v.live }

func newLive(cached client.Client, live client.Reader, view View, ended *records.EndedTunnels) *Reconciler {
	return &Reconciler{
		Deps: reconciler.Deps{
			Config:   controllertest.Config(),
			Client:   cached,
			Live:     live,
			Log:      slog.New(slog.DiscardHandler),
			Now:      time.Now,
			Recorder: events.NewFakeRecorder(100),
		},
		view:          view,
		ended:         ended,
		clusterStatus: condition.ClusterWriter{Client: cached},
	}
}

// liveWorld is one Tunnel without other writers, with a fake clock and a fake view. Its Cluster is on the real
// apiserver.
type liveWorld struct {
	t       *testing.T
	m       client.WithWatch
	r       *Reconciler
	view    *fixedView
	clock   time.Time
	cluster *clusterv1.Cluster
}

func newLiveWorld(t *testing.T) *liveWorld {
	t.Helper()
	m := controllertest.APIServer(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	controllertest.Create(t, m, cluster)
	tunnel := controllertest.TunnelNamed(cluster)
	objects.CompleteTunnel(tunnel, cluster)
	tunnel.Status.ID = tunnel.Spec.ID
	copied := cluster.DeepCopy()
	copied.SetResourceVersion("")
	api := controllertest.FakeAPI(t, copied, tunnel)
	w := &liveWorld{t: t, m: api, view: &fixedView{}, clock: time.Now().Truncate(time.Second), cluster: cluster}
	w.r = newLive(api, api, w.view, records.NewEndedTunnels(api, api, "fairlead-system", time.Now))
	w.r.clusterStatus = condition.ClusterWriter{Client: m}
	w.r.Now = func() time.Time { return w.clock }
	return w
}

// reconcileAfter advances the clock, reconciles once, and returns the Tunnel.
func (w *liveWorld) reconcileAfter(after time.Duration) *v1alpha1.Tunnel {
	w.t.Helper()
	w.clock = w.clock.Add(after)
	if _, err := w.r.Reconcile(w.t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(
		w.cluster)}); err != nil {
		w.t.Fatal(err)
	}
	return controllertest.Read(w.t, w.m, controllertest.TunnelNamed(w.cluster))
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
	tunnel := w.reconcileAfter(0)
	w.check(tunnel, v1alpha1.ConditionEnrolled, metav1.ConditionFalse, v1alpha1.ReasonNoEdge)
	w.check(tunnel, v1alpha1.ConditionTunnelReady, metav1.ConditionUnknown, v1alpha1.ReasonUnknown)

	w.view.live = reportview.Live{
		Known:    true,
		Gateways: []string{"gateway-0", "gateway-1"},
		Edges:    []reportview.Edge{controllertest.Connected("edge-a", "gateway-0")},
	}
	tunnel = w.reconcileAfter(2 * time.Second)
	w.check(tunnel, v1alpha1.ConditionTunnelReady, metav1.ConditionTrue, v1alpha1.ReasonPartlyConnected)
	w.check(tunnel, v1alpha1.ConditionAPIServerReachable, metav1.ConditionTrue, v1alpha1.ReasonReachable)
	if len(tunnel.Status.Edges) != 1 ||
		tunnel.Status.Edges[0].Gateways[0] != (v1alpha1.EdgeGatewayStatus{Name: "gateway-0", Tunnels: 2}) {
		t.Fatalf("edges %+v", tunnel.Status.Edges)
	}
	w.check(tunnel, v1alpha1.ConditionEnrolled, metav1.ConditionTrue, v1alpha1.ReasonEnrolled)
	w.check(
		tunnel, v1alpha1.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonUnknown,
	) // this Tunnel was never accepted

	w.view.live.Edges = []reportview.Edge{controllertest.Connected("edge-a", "gateway-0", "gateway-1")}
	w.check(w.reconcileAfter(2*time.Second), v1alpha1.ConditionTunnelReady, metav1.ConditionTrue, v1alpha1.ReasonConnected)

	// All sources are away: for a while nothing is concluded from that.
	w.view.live = reportview.Live{}
	tunnel = w.reconcileAfter(2 * time.Second)
	w.check(tunnel, v1alpha1.ConditionTunnelReady, metav1.ConditionTrue, v1alpha1.ReasonConnected)
	if len(tunnel.Status.Edges[0].Gateways) != 2 || tunnel.Status.Edges[0].Version == "" {
		t.Errorf("what was known is lost: %+v", tunnel.Status.Edges[0])
	}
	w.check(
		w.reconcileAfter(patience+time.Second), v1alpha1.ConditionTunnelReady, metav1.ConditionUnknown,
		v1alpha1.ReasonUnknown,
	)

	w.view.live = reportview.Live{Known: true, Gateways: []string{"gateway-0"}}
	tunnel = w.reconcileAfter(2 * time.Second)
	w.check(tunnel, v1alpha1.ConditionTunnelReady, metav1.ConditionFalse, v1alpha1.ReasonNoTunnel)
	if e := tunnel.Status.Edges[0]; len(e.Gateways) != 0 || e.Version != "" || e.NodeID != "CN=edge-a" ||
		e.LastSeen == nil {
		t.Errorf("an edge of which nothing is known any more: %+v", e)
	}
}

func TestTheEdgesOfAnotherWithTheSameIDAreNotShown(t *testing.T) {
	w := newLiveWorld(t)
	w.view.live = reportview.Live{
		Known:    true,
		Gateways: []string{"gateway-0"},
		Edges:    []reportview.Edge{controllertest.Connected("edge-a", "gateway-0")},
	}
	tunnel := controllertest.Read(t, w.m, controllertest.TunnelNamed(w.cluster))
	decision.RecordNothing(&tunnel.Status) // the controller has found that another Tunnel holds the id
	if err := w.m.Status().Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	tunnel = w.reconcileAfter(0)
	w.check(tunnel, v1alpha1.ConditionTunnelReady, metav1.ConditionUnknown, v1alpha1.ReasonUnknown)
	if len(tunnel.Status.Edges) != 0 {
		t.Errorf("edges %+v", tunnel.Status.Edges)
	}
}

// newConnectedWorld returns a Tunnel without conditions of its Cluster, whose edge has a tunnel to the only gateway.
func newConnectedWorld(t *testing.T) *liveWorld {
	t.Helper()
	cluster, tunnel := controllertest.Served("c1", 1000)
	cluster.UID = "" // no condition of the Cluster is written
	tunnel.OwnerReferences[0].UID = ""
	tunnel.Status.ID = tunnel.Spec.ID
	api := controllertest.FakeAPI(t, cluster, tunnel)
	w := &liveWorld{t: t, m: api, view: &fixedView{}, clock: time.Now().Truncate(time.Second), cluster: cluster}
	w.r = newLive(api, api, w.view, records.NewEndedTunnels(api, api, "fairlead-system", time.Now))
	w.r.Now = func() time.Time { return w.clock }
	w.view.live = reportview.Live{
		Known: true, Gateways: []string{"gateway-0"},
		Edges: []reportview.Edge{controllertest.Connected("edge-a", "gateway-0")},
	}
	return w
}

// TestAModeWithoutATunnelEndsConnections changes the mode of a Tunnel whose edge has tunnels. The gateways close them,
// and report none.
func TestAModeWithoutATunnelEndsConnections(t *testing.T) {
	w := newConnectedWorld(t)
	tunnel := w.reconcileAfter(0)
	if tunnel.Status.ConnectedEdges != 1 || len(tunnel.Status.Edges[0].Gateways) != 1 {
		t.Fatalf("before the change: %+v", tunnel.Status)
	}
	tunnel.Spec.Kubeconfig = controllertest.SpecOf(v1alpha1.KubeconfigModeAddress, "")
	if err := w.m.Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	w.view.live.Edges = nil
	tunnel = w.reconcileAfter(decisionTime + time.Second)
	if s := tunnel.Status; s.ConnectedEdges != 0 || s.Tunnels != 0 || len(s.Edges[0].Gateways) != 0 ||
		s.Edges[0].LastSeen == nil {
		t.Errorf("the edge still has tunnels: %+v", s)
	}
	for _, kind := range condition.Live {
		if c := apimeta.FindStatusCondition(tunnel.Status.Conditions, kind); c != nil {
			t.Errorf("condition %+v", c)
		}
	}
}

func TestUnchangedStatusIsNotWritten(t *testing.T) {
	w := newLiveWorld(t)
	w.view.live = reportview.Live{
		Known:    true,
		Gateways: []string{"gateway-0"},
		Edges:    []reportview.Edge{controllertest.Connected("edge-a", "gateway-0")},
	}
	version := w.reconcileAfter(0).ResourceVersion
	for range 25 { // a connected edge is always seen
		if got := w.reconcileAfter(10 * time.Second).ResourceVersion; got != version {
			t.Fatal("something is written although nothing has changed")
		}
	}
	seen := w.reconcileAfter(0).Status.Edges[0].LastSeen
	if after := w.reconcileAfter(seenInterval).Status.Edges[0].LastSeen; !seen.Before(after) {
		t.Error("lastSeen is never renewed")
	}
	// A change in the second after a write waits until that second is over.
	w.view.live.Edges[0] = controllertest.Connected("edge-a")
	before := w.reconcileAfter(writeInterval / 4).ResourceVersion
	w.view.live.Edges[0] = controllertest.Connected("edge-a", "gateway-0")
	if got := w.reconcileAfter(writeInterval / 4).ResourceVersion; got != before {
		t.Error("a second write within the interval")
	}
	if got := w.reconcileAfter(writeInterval).ResourceVersion; got != before {
		t.Error("a change that was taken back is written")
	}
}

// TestAClockThatGoesBackStopsNoWrites sets the apiserver's clock back after a write.
func TestAClockThatGoesBackStopsNoWrites(t *testing.T) {
	w := newConnectedWorld(t)
	w.check(w.reconcileAfter(0), v1alpha1.ConditionTunnelReady, metav1.ConditionTrue, v1alpha1.ReasonConnected)

	// The edge is gone.
	w.view.live = reportview.Live{Known: true, Gateways: []string{"gateway-0"}}
	w.reconcileAfter(-time.Hour)
	tunnel := w.reconcileAfter(writeInterval)
	w.check(tunnel, v1alpha1.ConditionTunnelReady, metav1.ConditionFalse, v1alpha1.ReasonNoTunnel)

	// Nothing is known, the clock is set back once more, and the condition stays for as long as usual.
	w.view.live = reportview.Live{}
	w.reconcileAfter(2 * time.Second)
	w.check(w.reconcileAfter(-time.Hour), v1alpha1.ConditionTunnelReady, metav1.ConditionFalse, v1alpha1.ReasonNoTunnel)
	tunnel = w.reconcileAfter(patience + time.Second)
	w.check(tunnel, v1alpha1.ConditionTunnelReady, metav1.ConditionUnknown, v1alpha1.ReasonUnknown)
}

func TestALateResultDoesNotRestoreARemovedTunnel(t *testing.T) {
	cluster, tunnel := controllertest.Served("c1", 1000)
	going := tunnel.DeepCopy()
	going.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	cached, live := controllertest.FakeAPI(t, cluster, tunnel), controllertest.FakeAPI(t, cluster, going)
	ended := records.NewEndedTunnels(live, live, "fairlead-system", time.Now)
	if err := ended.Add(t.Context(), tunnel.Spec.ID, time.Now()); err != nil {
		t.Fatal(err)
	}
	r := newLive(cached, live, nil, ended)
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(
		tunnel)}); err != nil {
		t.Fatal(err)
	}
	if !ended.Has(tunnel.Spec.ID) {
		t.Error("a tunnel that is ending is off the record")
	}
}
