package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/enrol"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	reportview "github.com/fairlead/fairlead/pkg/report/view"
)

// fixedView says what a test wants it to.
type fixedView struct{ live reportview.Live }

func (v *fixedView) Tunnel(string) reportview.Live { return v.live }

func newLive(cached client.Client, live client.Reader, view liveView, ended *endedTunnels) *liveStatus {
	return &liveStatus{
		config: testConfig(), client: cached, live: live, log: slog.New(slog.DiscardHandler), now: time.Now, recorder: events.NewFakeRecorder(100),
		view: view, ended: ended, clusterStatus: clusterStatus{cached},
	}
}

// connected is an edge with tunnels to gateways and a good report.
func connected(node string, gateways ...string) reportview.Edge {
	e := reportview.Edge{Node: node, Connected: true, Since: time.Now(), Gateways: map[string]int{}, Report: &reportv1.EdgeReport{
		Form: "Process", Version: "v1", ApiServer: &reportv1.APIServer{Address: "127.0.0.1:6443", Healthy: true, Version: "v1.36.1"},
	}}
	for _, g := range gateways {
		e.Gateways[g] = 2
	}
	return e
}

// liveWorld is one Tunnel to which nobody else writes, with a clock and a view of the test's. Its Cluster is on the real apiserver.
type liveWorld struct {
	t       *testing.T
	m       *management
	r       *liveStatus
	view    *fixedView
	clock   time.Time
	cluster *clusterv1.Cluster
}

func newLiveWorld(t *testing.T) *liveWorld {
	t.Helper()
	m := apiserver(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	create(t, m, cluster)
	tunnel := tunnelNamed(cluster)
	fillTunnel(tunnel, cluster)
	tunnel.Status.ID = tunnel.Spec.ID
	copied := cluster.DeepCopy()
	copied.SetResourceVersion("")
	api := fakeAPI(t, copied, tunnel)
	w := &liveWorld{t: t, m: &management{WithWatch: api}, view: &fixedView{}, clock: time.Now().Truncate(time.Second), cluster: cluster}
	w.r = newLive(api, api, w.view, &endedTunnels{client: api, live: api, namespace: "fairlead-system", now: time.Now})
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

	w.view.live = reportview.Live{Known: true, Gateways: []string{"gateway-0", "gateway-1"}, Edges: []reportview.Edge{connected("edge-a", "gateway-0")}}
	tunnel = w.settle(2 * time.Second)
	w.check(tunnel, v1alpha1.ConditionTunnelReady, metav1.ConditionTrue, v1alpha1.ReasonPartlyConnected)
	w.check(tunnel, v1alpha1.ConditionAPIServerReachable, metav1.ConditionTrue, v1alpha1.ReasonReachable)
	if len(tunnel.Status.Edges) != 1 || tunnel.Status.Edges[0].Gateways[0] != (v1alpha1.EdgeGatewayStatus{Name: "gateway-0", Tunnels: 2}) {
		t.Fatalf("edges %+v", tunnel.Status.Edges)
	}
	w.check(tunnel, v1alpha1.ConditionEnrolled, metav1.ConditionTrue, v1alpha1.ReasonEnrolled)
	w.check(tunnel, v1alpha1.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonUnknown) // nobody has accepted this Tunnel

	w.view.live.Edges = []reportview.Edge{connected("edge-a", "gateway-0", "gateway-1")}
	w.check(w.settle(2*time.Second), v1alpha1.ConditionTunnelReady, metav1.ConditionTrue, v1alpha1.ReasonConnected)

	// Everything that could tell is away: nothing is concluded from that, for a while.
	w.view.live = reportview.Live{}
	tunnel = w.settle(2 * time.Second)
	w.check(tunnel, v1alpha1.ConditionTunnelReady, metav1.ConditionTrue, v1alpha1.ReasonConnected)
	if len(tunnel.Status.Edges[0].Gateways) != 2 || tunnel.Status.Edges[0].Version == "" {
		t.Errorf("what was known is lost: %+v", tunnel.Status.Edges[0])
	}
	w.check(w.settle(patience+time.Second), v1alpha1.ConditionTunnelReady, metav1.ConditionUnknown, v1alpha1.ReasonUnknown)

	w.view.live = reportview.Live{Known: true, Gateways: []string{"gateway-0"}}
	tunnel = w.settle(2 * time.Second)
	w.check(tunnel, v1alpha1.ConditionTunnelReady, metav1.ConditionFalse, v1alpha1.ReasonNoTunnel)
	if e := tunnel.Status.Edges[0]; len(e.Gateways) != 0 || e.Version != "" || e.NodeID != "CN=edge-a" || e.LastSeen == nil {
		t.Errorf("an edge of which nothing is known any more: %+v", e)
	}
}

func TestTheEdgesOfAnotherWithTheSameIDAreNotShown(t *testing.T) {
	w := newLiveWorld(t)
	w.view.live = reportview.Live{Known: true, Gateways: []string{"gateway-0"}, Edges: []reportview.Edge{connected("edge-a", "gateway-0")}}
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
	w.view.live = reportview.Live{Known: true, Gateways: []string{"gateway-0"}, Edges: []reportview.Edge{connected("edge-a", "gateway-0")}}
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

func TestTheClusterHasTheConditionToo(t *testing.T) {
	m := apiserver(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	create(t, m, cluster)
	waitCluster := func(check func(*metav1.Condition) error) {
		t.Helper()
		eventually(t, func() error {
			if err := m.Get(t.Context(), client.ObjectKeyFromObject(cluster), cluster); err != nil {
				return err
			}
			return check(apimeta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.ClusterConditionTunnelReady))
		})
	}
	there := func(c *metav1.Condition) error {
		if c == nil || c.Status != metav1.ConditionUnknown {
			return fmt.Errorf("the condition is %+v", c)
		}
		return nil
	}
	waitCluster(there)
	// As Cluster API's patch helper does: a merge patch of all conditions as it last read them.
	if err := patchConditions(t, m, cluster, metav1.Condition{Type: "Available", Status: metav1.ConditionTrue, Reason: "Available", LastTransitionTime: metav1.Now()}); err != nil {
		t.Fatal(err)
	}
	if len(cluster.Status.Conditions) != 2 {
		t.Errorf("conditions %+v", cluster.Status.Conditions)
	}
	// Somebody removes it, as an overzealous controller might.
	cluster.Status.Conditions = []metav1.Condition{cluster.Status.Conditions[1]}
	edit(t, m, cluster, func(*clusterv1.Cluster) {})
	before := cluster.DeepCopy()
	apimeta.RemoveStatusCondition(&cluster.Status.Conditions, v1alpha1.ClusterConditionTunnelReady)
	if err := m.Status().Patch(t.Context(), cluster, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	waitCluster(there)
	if apimeta.FindStatusCondition(cluster.Status.Conditions, "Available") == nil {
		t.Error("another's condition is lost")
	}
	edit(t, m, cluster, func(c *clusterv1.Cluster) { c.Labels = nil })
	waitCluster(func(c *metav1.Condition) error {
		if c != nil {
			return errors.New("it is still there after opting out")
		}
		return nil
	})
	if apimeta.FindStatusCondition(cluster.Status.Conditions, "Available") == nil {
		t.Error("another's condition went with it")
	}
}

func patchConditions(t *testing.T, m *management, cluster *clusterv1.Cluster, add metav1.Condition) error {
	t.Helper()
	conditions := append(append([]metav1.Condition{}, cluster.Status.Conditions...), add)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": cluster.ResourceVersion}, "status": map[string]any{"conditions": conditions}})
	if err != nil {
		return err
	}
	return m.Status().Patch(t.Context(), cluster, client.RawPatch("application/merge-patch+json", patch))
}

// TestRevokingAnEdgeEndsItsToken does it while the Cluster is paused too.
func TestRevokingAnEdgeEndsItsToken(t *testing.T) {
	m := apiserver(t)
	for name, pause := range map[string]bool{"served": false, "paused": true} {
		t.Run(name, func(t *testing.T) {
			cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
			create(t, m, cluster)
			secret := bootstrapOf(cluster)
			eventually(t, func() error { return m.Get(t.Context(), client.ObjectKeyFromObject(secret), secret) })
			token := string(secret.Data[v1alpha1.BootstrapTokenKey])
			tunnel := read(t, m, tunnelNamed(cluster))
			csr := edgeRequest(t, cluster.Namespace+"/c1")
			csr.Annotations[v1alpha1.RequestTunnelIDAnnotation] = tunnel.Spec.ID
			csr.Annotations[v1alpha1.RequestTokenAnnotation] = enrol.HashToken(token)
			if csr = answered(t, m, csr); len(csr.Status.Certificate) == 0 {
				t.Fatalf("not enrolled: %s", denialOf(csr))
			}
			if pause {
				edit(t, m, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
			}
			edit(t, m, tunnel, func(o *v1alpha1.Tunnel) { o.Spec.RevokedEdges = []string{testNode} })
			eventually(t, func() error {
				status := read(t, m, tunnel).Status
				if e := ofNode(status.Edges, testNode); e == nil || e.RevokedAt == nil || e.TokenSHA256 != enrol.HashToken(token) {
					return fmt.Errorf("edge %+v", e)
				}
				if indexToken(status.Tokens, enrol.HashToken(token)) >= 0 {
					return errors.New("the token by which it came is still good")
				}
				return nil
			})
			if !pause {
				waitToken(t, m, cluster, token)
			}
			renewal := edgeRequest(t, cluster.Namespace+"/c1")
			renewal.Annotations[v1alpha1.RequestTunnelIDAnnotation] = tunnel.Spec.ID
			delete(renewal.Annotations, v1alpha1.RequestTokenAnnotation)
			if got := denialOf(answered(t, m, renewal)); got != reasonRevoked {
				t.Errorf("a renewal got %q", got)
			}
		})
	}
}
