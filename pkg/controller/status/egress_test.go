package status

import (
	"testing"
	"time"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/model"
	reportview "github.com/fairlead/fairlead/pkg/report/view"
)

// TestConnectedNodesBesideApiservers have no tunnels. While the live state is incomplete, a node stays as recorded.
func TestConnectedNodesBesideApiservers(t *testing.T) {
	const node = "edge-a"
	reports := reportview.Edge{Node: node, Connected: true}
	for name, tc := range map[string]struct {
		live                    reportview.Live
		before, revoked, expect bool
	}{
		"it reports": {
			live: reportview.Live{Known: true, Edges: []reportview.Edge{reports}}, expect: true,
		},
		"it reports to a known server": {live: reportview.Live{Edges: []reportview.Edge{reports}}, expect: true},
		"it has ceased to report": {
			live: reportview.Live{Known: true, Edges: []reportview.Edge{{Node: node}}}, before: true,
		},
		"no server knows it":             {live: reportview.Live{Known: true}, before: true},
		"a server does not answer":       {before: true, expect: true},
		"nothing is known, and it never": {},
		"it reports and is revoked": {
			live: reportview.Live{Known: true, Edges: []reportview.Edge{reports}}, before: true, revoked: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			edge := controllertest.Recorded(node, time.Now())
			edge.Connected = tc.before
			if tc.revoked {
				edge.RevokedAt = &edge.EnrolledAt
			}
			edges := []v1alpha1.EdgeStatus{edge}
			recordConnected(edges, tc.live)
			if edges[0].Connected != tc.expect || edges[0].NodeID != model.NodeID(node) {
				t.Errorf("got %+v", edges[0])
			}
		})
	}
}

func TestEgressReadyCountsConnectedNodes(t *testing.T) {
	both := []reportview.Edge{{Node: "edge-a", Connected: true}, {Node: "edge-b", Connected: true}}
	for name, tc := range map[string]struct {
		live            reportview.Live
		revoked         []string
		reason, message string
	}{
		"two are connected": {
			reportview.Live{Known: true, Edges: both}, nil, v1alpha1.ReasonConnected, "2 apiservers are connected",
		},
		"one of two is revoked": {
			reportview.Live{Known: true, Edges: both}, []string{"edge-a"}, v1alpha1.ReasonConnected, "1 apiserver is connected",
		},
		"all are revoked": {
			reportview.Live{Known: true, Edges: both}, []string{"edge-a", "edge-b"}, v1alpha1.ReasonNoEgress,
			"no apiserver is connected: run an egress beside each apiserver of the Cluster",
		},
		"none is connected": {
			reportview.Live{Known: true, Edges: []reportview.Edge{{Node: "edge-a"}}}, nil, v1alpha1.ReasonNoEgress,
			"no apiserver is connected: run an egress beside each apiserver of the Cluster",
		},
		"a server does not answer": {
			reportview.Live{}, nil, v1alpha1.ReasonUnknown, "no xds-server has sent the reports of apiservers",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c := egressReady(tc.live, tc.revoked); c.Reason != tc.reason || c.Message != tc.message {
				t.Errorf("got %+v", c)
			}
		})
	}
}
