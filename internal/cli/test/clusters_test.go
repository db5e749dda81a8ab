package test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestEdgesWithoutAReport: an edge that reports to no xds-server which answered has a line, too.
func TestEdgesWithoutAReport(t *testing.T) {
	ends := metav1.NewTime(time.Now().Add(time.Hour))
	edge := func(node string, tunnels int32) v1alpha1.EdgeStatus {
		e := v1alpha1.EdgeStatus{NodeID: model.NodeID(node), CertificateNotAfter: ends}
		if tunnels > 0 {
			e.Gateways = []v1alpha1.EdgeGatewayStatus{{Name: "gateway-0", Tunnels: tunnels}}
		}
		return e
	}
	revoked := edge("edge-d", 0)
	revoked.RevokedAt = &ends
	tunnel := &v1alpha1.Tunnel{Status: v1alpha1.TunnelStatus{
		Edges: []v1alpha1.EdgeStatus{edge("edge-a", 2), edge("edge-b", 2), edge("edge-c", 0), revoked},
	}}
	got := map[string]check.Status{}
	for _, r := range unreported(tunnel, []collect.EdgeProbe{{Node: "edge-a"}}) {
		got[r.Title] = r.Status
	}
	if len(got) != 2 || got["edge edge-b"] != check.Unknown || got["edge edge-c"] != check.Warning {
		t.Errorf("got %v", got)
	}
}
