package observed_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
)

func TestStateOfARecordedEdge(t *testing.T) {
	now := time.Date(2026, time.May, 1, 12, 0, 0, 0, time.UTC)
	at := func(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(d)) }
	gateways := []v1alpha1.EdgeGatewayStatus{{Name: "gateway-0", Tunnels: 2, WorkersWithout: 1}}
	for sentence, tc := range map[string]struct {
		change func(*v1alpha1.Tunnel, *v1alpha1.EdgeStatus)
		want   observed.State
	}{
		"it has a tunnel": {func(_ *v1alpha1.Tunnel, e *v1alpha1.EdgeStatus) { e.Gateways = gateways }, observed.Connected},
		"it has a tunnel though its certificate has ended": {func(_ *v1alpha1.Tunnel, e *v1alpha1.EdgeStatus) {
			e.Gateways, e.CertificateNotAfter = gateways, at(-time.Minute)
		}, observed.Connected},
		"it has none": {func(*v1alpha1.Tunnel, *v1alpha1.EdgeStatus) {}, observed.Away},
		"its certificate ends now": {func(_ *v1alpha1.Tunnel, e *v1alpha1.EdgeStatus) {
			e.CertificateNotAfter = at(0)
		}, observed.Expired},
		"the Tunnel revokes it, and the controller has not seen that": {func(t *v1alpha1.Tunnel, e *v1alpha1.EdgeStatus) {
			t.Spec.RevokedEdges, e.Gateways = []string{"edge-a"}, gateways
		}, observed.Revoked},
		"the controller has recorded its revocation": {func(_ *v1alpha1.Tunnel, e *v1alpha1.EdgeStatus) {
			revoked := at(-time.Hour)
			e.RevokedAt, e.CertificateNotAfter = &revoked, at(-time.Minute)
		}, observed.Revoked},
		"the Tunnel revokes another edge": {func(t *v1alpha1.Tunnel, _ *v1alpha1.EdgeStatus) {
			t.Spec.RevokedEdges = []string{"edge-b"}
		}, observed.Away},
		"the controller has no report of the tunnels": {func(t *v1alpha1.Tunnel, _ *v1alpha1.EdgeStatus) {
			t.Status.Conditions[0].Status = metav1.ConditionUnknown
		}, observed.Unknown},
		"the controller has not written anything about tunnels": {func(t *v1alpha1.Tunnel, _ *v1alpha1.EdgeStatus) {
			t.Status.Conditions = nil
		}, observed.Unknown},
	} {
		t.Run(sentence, func(t *testing.T) {
			tunnel := &v1alpha1.Tunnel{Status: v1alpha1.TunnelStatus{
				Conditions: []metav1.Condition{{Type: v1alpha1.ConditionTunnelReady, Status: metav1.ConditionTrue}},
				Edges:      []v1alpha1.EdgeStatus{{NodeID: model.NodeID("edge-a"), CertificateNotAfter: at(time.Hour)}},
			}}
			tc.change(tunnel, &tunnel.Status.Edges[0])
			all := observed.Recorded(tunnel, now)
			if len(all) != 1 || all[0].State != tc.want || all[0].Connected != (len(tunnel.Status.Edges[0].Gateways) > 0) {
				t.Errorf("got %+v, want %s", all, tc.want)
			}
		})
	}
}

func TestARecordKeepsTheFieldsOfTheController(t *testing.T) {
	now := time.Date(2026, time.May, 1, 12, 0, 0, 0, time.UTC)
	end, seen := metav1.NewTime(now.Add(time.Hour)), metav1.NewTime(now.Add(-time.Minute))
	tunnel := &v1alpha1.Tunnel{}
	tunnel.Spec.ID, tunnel.Status.ID = "c1", "c1"
	tunnel.Status.Edges = []v1alpha1.EdgeStatus{
		{
			NodeID: model.NodeID("edge-a"), Host: "host-a", EnrolledAt: seen, CertificateNotAfter: end, LastSeen: &seen,
			LastError: "disk: full", Version: "v1", Form: "Process",
			Gateways: []v1alpha1.EdgeGatewayStatus{{Name: "gateway-0", Tunnels: 2, WorkersWithout: 1}},
			APIServer: &v1alpha1.EdgeAPIServerStatus{
				Address: "a:6443", Message: "refused", CertificateNames: []string{"a"}, CertificateNotAfter: &end,
			},
		},
		{NodeID: "not a node id"},
	}
	want := []observed.Edge{
		{
			Node: "edge-a", ID: "c1", Connected: true, LastError: "disk: full", State: observed.Connected, Host: "host-a",
			Version: "v1", Form: "Process", Enrolled: seen.Time, NotAfter: end.Time, LastSeen: seen.Time,
			Gateways: []observed.Gateway{{Name: "gateway-0", Tunnels: 2, WorkersWithout: 1}},
			APIServer: &observed.APIServer{
				Address: "a:6443", Message: "refused", CertificateNames: []string{"a"}, CertificateEnd: end.Time,
			},
		},
		{Node: "not a node id", ID: "c1", State: observed.Expired},
	}
	if diff := cmp.Diff(want, observed.Recorded(tunnel, now)); diff != "" {
		t.Error(diff)
	}
}

// TestARecordIsUTC has a certificate without an end (RFC 5280), whose time metav1.Time decodes into the local time
// zone. In one east of UTC that is a time in the year 10000, which JSON cannot encode.
func TestARecordIsUTC(t *testing.T) {
	end := metav1.NewTime(time.Date(9999, time.December, 31, 23, 59, 59, 0, time.UTC).In(time.FixedZone("east", 3600)))
	tunnel := &v1alpha1.Tunnel{}
	tunnel.Status.Edges = []v1alpha1.EdgeStatus{{
		NodeID: model.NodeID("edge-a"), EnrolledAt: end, CertificateNotAfter: end, LastSeen: &end, RevokedAt: &end,
		CutAt: &end, APIServer: &v1alpha1.EdgeAPIServerStatus{CertificateNotAfter: &end},
	}}
	if _, err := json.Marshal(observed.Recorded(tunnel, time.Now())); err != nil {
		t.Error(err)
	}
}
