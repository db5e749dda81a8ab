package status

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/records"
	reportview "github.com/fairlead/fairlead/pkg/report/view"
)

func (w *liveWorld) revoke(nodes ...string) {
	w.t.Helper()
	controllertest.Edit(
		w.t, w.m, controllertest.TunnelNamed(w.cluster), func(o *v1alpha1.Tunnel) { o.Spec.RevokedEdges = nodes },
	)
}

func TestARevocationIsRecordedAtOnce(t *testing.T) {
	w := newLiveWorld(t)
	w.view.live = reportview.Live{
		Known:    true,
		Gateways: []string{"gateway-0"},
		Edges:    []reportview.Edge{controllertest.Connected("edge-a", "gateway-0")},
	}
	w.reconcileAfter(0)
	w.revoke("edge-a")
	tunnel := w.reconcileAfter(0) // within the interval
	if e := records.EdgeOf(tunnel.Status.Edges, "edge-a"); e == nil || e.RevokedAt == nil {
		t.Fatalf("%+v", e)
	}
	if got := w.reconcileAfter(writeInterval / 4).ResourceVersion; got != tunnel.ResourceVersion {
		t.Error("everything is written at once after a revocation")
	}
}

// TestOnlyAGatewayConfirmsThatItsTunnelsAreClosed: a gateway that is silent for long counts as down, but may still have
// tunnels.
func TestOnlyAGatewayConfirmsThatItsTunnelsAreClosed(t *testing.T) {
	w := newLiveWorld(t)
	both := []string{"gateway-0", "gateway-1"}
	w.view.live = reportview.Live{
		Known:    true,
		Gateways: both,
		Edges:    []reportview.Edge{controllertest.Connected("edge-a", both...)},
	}
	w.reconcileAfter(0)
	w.revoke("edge-a")
	w.reconcileAfter(2 * time.Second)
	w.view.live = reportview.Live{Known: true, Gateways: []string{"gateway-0"}} // and gateway-1 is down
	edge := records.EdgeOf(w.reconcileAfter(2*time.Second).Status.Edges, "edge-a")
	if len(edge.Gateways) != 1 || edge.Gateways[0].Name != "gateway-1" || edge.CutAt != nil {
		t.Fatalf("gateway-1 has not said anything: %+v", edge)
	}
	w.view.live = reportview.Live{Known: true, Gateways: both}
	if edge = records.EdgeOf(w.reconcileAfter(2*time.Second).Status.Edges, "edge-a"); len(edge.Gateways) != 0 ||
		edge.CutAt == nil {
		t.Errorf("all gateways have said that there is none: %+v", edge)
	}
	w.revoke()
	if edge = records.EdgeOf(w.reconcileAfter(2*time.Second).Status.Edges, "edge-a"); edge.CutAt != nil ||
		edge.RevokedAt != nil {
		t.Errorf("a revocation that was taken back: %+v", edge)
	}
}

// TestAGatewayThatWasDownBeforeARevocationIsNamed: its Envoy has not received the revocation and may still have the
// tunnels.
func TestAGatewayThatWasDownBeforeARevocationIsNamed(t *testing.T) {
	w := newLiveWorld(t)
	edge := controllertest.Connected("edge-a", "gateway-0")
	edge.Last = map[string]int{"gateway-1": 2}
	w.view.live = reportview.Live{Known: true, Gateways: []string{"gateway-0"}, Edges: []reportview.Edge{edge}}
	if e := records.EdgeOf(w.reconcileAfter(0).Status.Edges, "edge-a"); len(e.Gateways) != 1 {
		t.Fatalf("a gateway that is down counts: %+v", e)
	}
	w.revoke("edge-a")
	w.reconcileAfter(2 * time.Second)
	w.view.live.Edges = []reportview.Edge{{Node: "edge-a", Last: edge.Last}} // gateway-0 has cut
	for range 2 {
		e := records.EdgeOf(w.reconcileAfter(2*time.Second).Status.Edges, "edge-a")
		if len(e.Gateways) != 1 || e.Gateways[0].Name != "gateway-1" || e.Gateways[0].Tunnels != 2 || e.CutAt != nil {
			t.Fatalf("gateway-1 has not said anything: %+v", e)
		}
	}
	w.view.live = reportview.Live{Known: true, Gateways: []string{"gateway-0", "gateway-1"}}
	if e := records.EdgeOf(w.reconcileAfter(2*time.Second).Status.Edges, "edge-a"); len(e.Gateways) != 0 ||
		e.CutAt == nil {
		t.Errorf("it is back, and has none: %+v", e)
	}
}

func TestTunnelsAreReportedClosedOnlyByCompleteRecords(t *testing.T) {
	w := newLiveWorld(t)
	w.view.live = reportview.Live{
		Known:    true,
		Gateways: []string{"gateway-0"},
		Edges:    []reportview.Edge{controllertest.Connected("edge-a")},
	}
	w.reconcileAfter(0)
	w.revoke("edge-a")
	w.view.live = reportview.Live{} // as after a start of the controller
	for range 2 {
		if e := records.EdgeOf(w.reconcileAfter(2*time.Second).Status.Edges, "edge-a"); e.RevokedAt == nil || e.CutAt != nil {
			t.Fatalf("%+v", e)
		}
	}
	w.view.live = reportview.Live{Known: true, Gateways: []string{"gateway-0"}}
	if e := records.EdgeOf(w.reconcileAfter(2*time.Second).Status.Edges, "edge-a"); e.CutAt == nil {
		t.Errorf("%+v", e)
	}
}

func TestEachConditionBecomesUnknownSeparately(t *testing.T) {
	w := newLiveWorld(t)
	edge := controllertest.Connected("edge-a", "gateway-0")
	w.view.live = reportview.Live{Known: true, Gateways: []string{"gateway-0"}, Edges: []reportview.Edge{edge}}
	w.reconcileAfter(0)
	edge.Report = nil // its agent is away for long, and its tunnels are not
	w.view.live.Edges = []reportview.Edge{edge}
	w.reconcileAfter(2 * time.Second)
	w.check(
		w.reconcileAfter(patience+time.Second), v1alpha1.ConditionAPIServerReachable, metav1.ConditionUnknown,
		v1alpha1.ReasonUnknown,
	)
	w.view.live = reportview.Live{} // only now
	w.check(w.reconcileAfter(2*time.Second), v1alpha1.ConditionTunnelReady, metav1.ConditionTrue, v1alpha1.ReasonConnected)
	w.check(
		w.reconcileAfter(patience+time.Second), v1alpha1.ConditionTunnelReady, metav1.ConditionUnknown,
		v1alpha1.ReasonUnknown,
	)
}
