package status

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
	reportview "github.com/fairlead/fairlead/pkg/report/view"
)

func TestARevocationIsPendingWhileARecordIsIncomplete(t *testing.T) {
	now := time.Unix(1000, 0)
	at := metav1.NewTime(now.Add(-time.Minute))
	edges := []v1alpha1.EdgeStatus{{NodeID: model.NodeID("edge-a"), RevokedAt: &at}}
	recordCut(
		edges, edges, reportview.Live{Known: true, Gateways: []string{"gateway-0"}, Incomplete: []string{"gateway-0"}}, now,
	)
	if edges[0].CutAt != nil {
		t.Error("it is done, though a gateway may have tunnels that it does not report")
	}
	live := reportview.Live{Known: true, Gateways: []string{"gateway-0"}, Edges: []reportview.Edge{{
		Node: "edge-a", Connections: map[string]int{"gateway-0": 1},
	}}}
	if recordCut(edges, edges, live, now); edges[0].CutAt != nil {
		t.Error("it is done, though a gateway has a connection of an apiserver or of machines")
	}
	recordCut(edges, edges, reportview.Live{Known: true, Gateways: []string{"gateway-0"}}, now)
	if edges[0].CutAt == nil {
		t.Error("it is not done, though every gateway has a complete record")
	}
}
