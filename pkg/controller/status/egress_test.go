package status

import (
	"testing"
	"time"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
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
	const none = "no apiserver is connected: run an egress beside each apiserver of the Cluster"
	const lost = "no apiserver is connected, but one has enrolled: see the log of the container beside each apiserver"
	known := reportview.Live{Known: true}
	for name, tc := range map[string]struct {
		live              reportview.Live
		recorded, revoked []string // nodes
		reason, message   string
	}{
		"two are connected": {
			live:   reportview.Live{Known: true, Edges: both},
			reason: v1alpha1.ReasonConnected, message: "2 apiservers are connected",
		},
		"one of two is revoked": {
			live: reportview.Live{Known: true, Edges: both}, revoked: []string{"edge-a"},
			reason: v1alpha1.ReasonConnected, message: "1 apiserver is connected",
		},
		"all are revoked": {
			live: reportview.Live{Known: true, Edges: both}, recorded: []string{"edge-a", "edge-b"},
			revoked: []string{"edge-a", "edge-b"},
			reason:  v1alpha1.ReasonNoEgress, message: none,
		},
		"none has enrolled": {live: known, reason: v1alpha1.ReasonNoEgress, message: none},
		"the only one is away": {
			live: reportview.Live{Known: true, Edges: []reportview.Edge{{Node: "edge-a"}}}, recorded: []string{"edge-a"},
			reason: v1alpha1.ReasonEgressLost, message: lost,
		},
		"one is revoked, the other one is away": {
			live: known, recorded: []string{"edge-a", "edge-b"}, revoked: []string{"edge-a"},
			reason: v1alpha1.ReasonEgressLost, message: lost,
		},
		"a server does not answer": {
			recorded: []string{"edge-a"}, reason: v1alpha1.ReasonUnknown,
			message: "no xds-server has sent the reports of apiservers",
		},
	} {
		t.Run(name, func(t *testing.T) {
			tunnel := &v1alpha1.Tunnel{Spec: v1alpha1.TunnelSpec{EgressOf: "c1", RevokedEdges: tc.revoked}}
			for _, node := range tc.recorded {
				tunnel.Status.Edges = append(tunnel.Status.Edges, controllertest.Recorded(node, time.Now()))
			}
			c := egressReady(tunnel, observed.Recorded(tunnel, time.Now()), tc.live)
			if c.Reason != tc.reason || c.Message != tc.message {
				t.Errorf("got %+v", c)
			}
		})
	}
}
