package records

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestWhichCertificatesAreEvidence(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) *metav1.Time { at := metav1.NewTime(now.Add(-d)); return &at }
	tests := map[string]struct {
		change func(*v1alpha1.EdgeStatus)
		want   int
	}{
		"of an apiserver that does not answer": {func(e *v1alpha1.EdgeStatus) { e.APIServer.Healthy = false }, 1},
		"of an edge with a tunnel": {func(e *v1alpha1.EdgeStatus) {
			e.LastSeen, e.Gateways = ago(time.Hour), []v1alpha1.EdgeGatewayStatus{{Name: "gateway-0", Tunnels: 1}}
		}, 1},
		"of one that starts again":  {func(e *v1alpha1.EdgeStatus) { e.LastSeen = ago(evidenceTime - time.Second) }, 1},
		"of one that is away":       {func(e *v1alpha1.EdgeStatus) { e.LastSeen = ago(evidenceTime) }, 0},
		"of one that was not seen":  {func(e *v1alpha1.EdgeStatus) { e.EnrolledAt = *ago(time.Hour) }, 0},
		"of one that is revoked":    {func(e *v1alpha1.EdgeStatus) { e.RevokedAt = ago(0) }, 0},
		"of one that shows nothing": {func(e *v1alpha1.EdgeStatus) { e.APIServer.CertificateNames = nil }, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			edge := controllertest.Recorded("edge-a", now)
			edge.APIServer = &v1alpha1.EdgeAPIServerStatus{Healthy: true, CertificateNames: []string{"kubernetes"}}
			tc.change(&edge)
			if got := len(CertificateNames([]v1alpha1.EdgeStatus{edge}, now)); got != tc.want {
				t.Errorf("%d certificates, want %d", got, tc.want)
			}
		})
	}
}

func TestALeafThatLivesLongerKeepsTheRecordLonger(t *testing.T) {
	at := time.Now()
	tunnel := &v1alpha1.Tunnel{}
	tunnel.Status.Edges = []v1alpha1.EdgeStatus{{
		NodeID: "CN=a", CertificateNotAfter: metav1.NewTime(at.Add(100 * time.Hour)),
	}}
	if got := ValidUntil(controllertest.Config(), tunnel, at).Sub(at); got != 100*time.Hour+certs.ClockSkew {
		t.Errorf("%s", got)
	}
}

func TestEdgesThatCannotReconnectAreRemovedFromTheRecord(t *testing.T) {
	at := time.Now()
	edge := func(node string, notAfter time.Time) v1alpha1.EdgeStatus {
		return v1alpha1.EdgeStatus{NodeID: node, CertificateNotAfter: metav1.NewTime(notAfter)}
	}
	edges := []v1alpha1.EdgeStatus{
		edge("CN=gone", at.Add(-91*24*time.Hour)), edge("CN=away", at.Add(-89*24*time.Hour)),
		edge("CN=here", at.Add(time.Hour)),
	}
	if got := CurrentEdges(edges, at); len(got) != 2 || got[0].NodeID != "CN=away" {
		t.Errorf("left: %v", got)
	}
	for range 2 * MaxEdges {
		edges = append(edges, edge(model.NodeID(model.NewNodeName()), at.Add(time.Minute)))
	}
	if got := CurrentEdges(edges, at); len(got) != MaxEdges || got[0].NodeID != "CN=here" {
		t.Errorf("%d left, the first is %s", len(got), got[0].NodeID)
	}
}

func TestTheOldestEntriesOfAFullRecordAreRemoved(t *testing.T) {
	at := time.Now()
	ids := map[string]string{"unreadable": ""}
	for i := range MaxEnded + 5 {
		ids[fmt.Sprintf("%032d", i)] = at.Add(time.Duration(i) * time.Minute).UTC().Format(time.RFC3339)
	}
	dropOldest(ids, MaxEnded)
	if _, old := ids[fmt.Sprintf("%032d", 4)]; old || len(ids) != MaxEnded || !has(ids, "unreadable") {
		t.Errorf("%d are left, or the oldest is, or the one without a time is not", len(ids))
	}
}

func has(ids map[string]string, id string) bool {
	_, ok := ids[id]
	return ok
}
