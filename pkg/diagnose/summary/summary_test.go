package summary_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/diagnose/summary"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
)

var now = time.Date(2026, time.May, 1, 12, 0, 0, 0, time.UTC)

func at(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(d)) }

func condition(kind, reason string, status metav1.ConditionStatus) metav1.Condition {
	return metav1.Condition{
		Type:               kind,
		Status:             status,
		Reason:             reason,
		Message:            "says " + reason,
		LastTransitionTime: at(-time.Hour),
		ObservedGeneration: 1,
	}
}

// pair is a healthy Cluster with two edges and two gateways, changed by change.
func pair(name string, change func(*clusterv1.Cluster, *v1alpha1.Tunnel)) (clusterv1.Cluster, v1alpha1.Tunnel) {
	meta := metav1.ObjectMeta{
		Namespace:         "prod",
		Name:              name,
		CreationTimestamp: at(-48 * time.Hour),
		Generation:        1,
		Labels:            map[string]string{v1alpha1.TunnelLabel: v1alpha1.TunnelEnabled},
	}
	c, t := clusterv1.Cluster{ObjectMeta: meta}, v1alpha1.Tunnel{ObjectMeta: meta}
	t.Spec.ID = name
	t.Status = v1alpha1.TunnelStatus{
		Hostname: name + ".prod.tunnels.example.com", Names: []string{name + ".prod.tunnels.example.com"}, ID: name,
		Kubeconfig: v1alpha1.KubeconfigStatus{Mode: v1alpha1.KubeconfigModeSNI, Server: "https://gw:6443"},
		Conditions: []metav1.Condition{
			condition(
				v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, "True",
			), condition(v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonRewritten, "True"),
			condition(
				v1alpha1.ConditionEnrolled, v1alpha1.ReasonEnrolled, "True",
			), condition(v1alpha1.ConditionTunnelReady, v1alpha1.ReasonConnected, "True"),
			condition(
				v1alpha1.ConditionAPIServerReachable, v1alpha1.ReasonReachable, "True",
			), condition(v1alpha1.ConditionReady, v1alpha1.ReasonReady, "True"),
		},
	}
	for _, node := range []string{"edge-a", "edge-b"} {
		t.Status.Edges = append(t.Status.Edges, v1alpha1.EdgeStatus{
			NodeID: model.NodeID(
				node,
			), Host: "host-" + node, EnrolledAt: at(-47 * time.Hour), CertificateNotAfter: at(20 * time.Hour),
			Gateways: []v1alpha1.EdgeGatewayStatus{{Name: "gateway-10", Tunnels: 2}, {Name: "gateway-2", Tunnels: 1}},
			APIServer: &v1alpha1.EdgeAPIServerStatus{
				Address:             "127.0.0.1:6443",
				Healthy:             true,
				CertificateNotAfter: ptr.To(at(200 * 24 * time.Hour)),
			},
		})
	}
	if change != nil {
		change(&c, &t)
	}
	return c, t
}

func set(t *v1alpha1.Tunnel, kind, reason string, status metav1.ConditionStatus) {
	for i := range t.Status.Conditions {
		if t.Status.Conditions[i].Type == kind {
			t.Status.Conditions[i] = condition(kind, reason, status)
		}
	}
}

func TestHealth(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*clusterv1.Cluster, *v1alpha1.Tunnel)
		want   summary.Health
		says   []string // reasons of notices, the worst first
	}{
		"every part is healthy": {want: summary.OK},
		"no tunnel, and what follows from it": {func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) {
			set(t, v1alpha1.ConditionTunnelReady, v1alpha1.ReasonNoTunnel, "False")
			set(t, v1alpha1.ConditionAPIServerReachable, v1alpha1.ReasonUnknown, "Unknown")
			t.Status.Edges[0].Gateways, t.Status.Edges[1].Gateways = nil, nil
		}, summary.Broken, []string{v1alpha1.ReasonNoTunnel}},
		"nothing is served": {func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) {
			set(t, v1alpha1.ConditionAccepted, v1alpha1.ReasonNameTaken, "False")
		}, summary.Broken, []string{v1alpha1.ReasonNameTaken}},
		"an extra name is bad, all the rest is served": {func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) {
			set(t, v1alpha1.ConditionAccepted, v1alpha1.ReasonInvalidExtraName, "False")
		}, summary.Warning, []string{v1alpha1.ReasonInvalidExtraName}},
		"no edge, of a Cluster that is new": {func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) {
			set(t, v1alpha1.ConditionEnrolled, v1alpha1.ReasonNoEdge, "False")
			set(t, v1alpha1.ConditionTunnelReady, v1alpha1.ReasonNoTunnel, "False")
			t.Status.Edges, t.CreationTimestamp = nil, at(-10*time.Minute)
		}, summary.Waiting, []string{v1alpha1.ReasonNoEdge}},
		"no edge for long": {func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) {
			set(t, v1alpha1.ConditionEnrolled, v1alpha1.ReasonNoEdge, "False")
			t.Status.Edges = nil
		}, summary.Broken, []string{v1alpha1.ReasonNoEdge}},
		"no server can tell": {func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) {
			set(t, v1alpha1.ConditionTunnelReady, v1alpha1.ReasonUnknown, "Unknown")
		}, summary.Unknown, []string{v1alpha1.ReasonUnknown}},
		"one edge is away": {
			func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) { t.Status.Edges[1].Gateways = nil },
			summary.Warning,
			[]string{summary.ReasonEdgeAway},
		},
		"one edge does not reach its apiserver": {func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) {
			t.Status.Edges[1].APIServer = &v1alpha1.EdgeAPIServerStatus{Message: "refused"}
		}, summary.Warning, []string{summary.ReasonAPIServerUnwell}},
		"an edge in trouble": {
			func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) { t.Status.Edges[1].LastError = "disk full" },
			summary.Warning,
			[]string{summary.ReasonEdgeTrouble},
		},
		"a revoked edge is no trouble": {func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) {
			t.Status.Edges[1].RevokedAt, t.Status.Edges[1].CutAt, t.Status.Edges[1].Gateways = ptr.To(at(0)), ptr.To(at(0)), nil
		}, summary.OK, nil},
		"a revoked edge that is not cut": {
			func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) { t.Status.Edges[1].RevokedAt = ptr.To(at(0)) },
			summary.Warning,
			[]string{summary.ReasonEdgeNotCut},
		},
		"a worker without a tunnel": {func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) {
			t.Status.Edges[1].Gateways[0].WorkersWithout = 1
		}, summary.Warning, []string{summary.ReasonWorkersWithout}},
		"the apiserver's certificate ends soon": {func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) {
			t.Status.Edges[1].APIServer.CertificateNotAfter = ptr.To(at(72 * time.Hour))
		}, summary.Warning, []string{summary.ReasonCertificateEnds}},
		"the apiserver's certificate has ended": {func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) {
			t.Status.Edges[1].APIServer.CertificateNotAfter = ptr.To(at(-time.Minute))
		}, summary.Broken, []string{summary.ReasonCertificateEnded}},
		"a leaf that was not renewed": {
			func(_ *clusterv1.Cluster,
				t *v1alpha1.Tunnel,
			) {
				t.Status.Edges[1].CertificateNotAfter = at(time.Hour)
			}, summary.Warning,
			[]string{summary.ReasonCertificateEnds},
		},
		"leaves that live for minutes": {func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) {
			for i := range t.Status.Edges {
				t.Status.Edges[i].EnrolledAt, t.Status.Edges[i].CertificateNotAfter = at(-time.Minute), at(10*time.Minute)
			}
		}, summary.OK, nil},
		"a leaf that has ended, of the only edge": {func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) {
			t.Status.Edges = t.Status.Edges[:1]
			t.Status.Edges[0].Gateways, t.Status.Edges[0].CertificateNotAfter = nil, at(-time.Minute)
		}, summary.Broken, []string{summary.ReasonEdgeExpired}},
		"paused": {
			func(c *clusterv1.Cluster, _ *v1alpha1.Tunnel) { c.Spec.Paused = ptr.To(true) }, summary.Warning,
			[]string{summary.ReasonPaused},
		},
		"deleted": {
			func(c *clusterv1.Cluster, _ *v1alpha1.Tunnel) { c.DeletionTimestamp = ptr.To(at(0)) }, summary.Warning,
			[]string{summary.ReasonDeleting},
		},
		"a spec that no controller has looked at": {
			func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) { t.Generation = 2 }, summary.Warning,
			[]string{summary.ReasonNotLookedAt},
		},
		"a controller that does not run": {
			func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) { t.Status = v1alpha1.TunnelStatus{} }, summary.Unknown,
			[]string{summary.ReasonNotLookedAt},
		},
		"a controller that no longer runs": {
			func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) {
				for i := range t.Status.Edges {
					t.Status.Edges[i].LastSeen = ptr.To(at(-4 * time.Hour))
				}
			}, summary.Unknown, []string{summary.ReasonNotLookedAt},
		},
		"a large fleet, of which each edge is recorded every 45 minutes": {
			func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) {
				for i := range t.Status.Edges {
					t.Status.Edges[i].LastSeen = ptr.To(at(-45 * time.Minute))
				}
			}, summary.OK, nil,
		},
		"edges that were seen a while ago": {
			func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) {
				for i := range t.Status.Edges {
					t.Status.Edges[i].LastSeen = ptr.To(at(-6 * time.Minute))
				}
			}, summary.OK, nil,
		},
		"a network of one's own": {func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) {
			t.Spec.Kubeconfig.Mode, t.Status.Edges = v1alpha1.KubeconfigModeAddress, nil
			t.Status.Conditions = []metav1.Condition{
				condition(v1alpha1.ConditionAccepted, v1alpha1.ReasonNotTunnelled, "True"),
				condition(v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonRewritten, "True"),
			}
		}, summary.OK, nil},
		"a network of one's own, and an edge of an earlier mode": {func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) {
			t.Spec.Kubeconfig.Mode, t.Status.Edges = v1alpha1.KubeconfigModeAddress, t.Status.Edges[:1]
			t.Status.Edges[0].Gateways, t.Status.Edges[0].CertificateNotAfter = nil, at(-time.Minute)
			t.Status.Conditions = []metav1.Condition{
				condition(v1alpha1.ConditionAccepted, v1alpha1.ReasonNotTunnelled, "True"),
				condition(v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonRewritten, "True"),
			}
		}, summary.OK, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c, tunnel := pair("c1", tc.change)
			got := summary.Build(summary.Input{Clusters: []clusterv1.Cluster{c}, Tunnels: []v1alpha1.Tunnel{tunnel}},
				now).Rows[0]
			var reasons []string
			for _, n := range got.Warnings {
				reasons = append(reasons, n.Reason)
			}
			if diff := cmp.Diff(tc.says, reasons); got.Health != tc.want || diff != "" {
				t.Errorf("%s, want %s: %s\n%+v", got.Health, tc.want, diff, got.Warnings)
			}
		})
	}
}

// TestAPreparedTunnelWaits has a Tunnel with an enrolled edge and the conditions that the controller writes before its
// Cluster is moved here.
func TestAPreparedTunnelWaits(t *testing.T) {
	_, tunnel := pair("c1", func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) {
		t.Annotations = map[string]string{v1alpha1.PreparedAnnotation: "2026-05-02T00:00:00Z"}
		t.Status.Kubeconfig, t.Status.Edges = v1alpha1.KubeconfigStatus{}, t.Status.Edges[:1]
		t.Status.Edges[0].Gateways, t.Status.Edges[0].APIServer = nil, nil
		t.Status.Conditions = []metav1.Condition{
			condition(v1alpha1.ConditionAccepted, v1alpha1.ReasonWaitingForCluster, "Unknown"),
			condition(v1alpha1.ConditionEnrolled, v1alpha1.ReasonEnrolled, "True"),
			condition(v1alpha1.ConditionTunnelReady, v1alpha1.ReasonNoTunnel, "False"),
			condition(v1alpha1.ConditionAPIServerReachable, v1alpha1.ReasonUnknown, "Unknown"),
			condition(v1alpha1.ConditionReady, v1alpha1.ReasonNotReady, "False"),
		}
	})
	got := summary.Build(summary.Input{Tunnels: []v1alpha1.Tunnel{tunnel}}, now).Rows[0]
	if got.Health != summary.Waiting || len(got.Warnings) != 1 ||
		got.Warnings[0].Reason != summary.ReasonWaitingForCluster {
		t.Errorf("%s: %+v", got.Health, got.Warnings)
	}
	// Another Tunnel holds its name, so its edges cannot enrol.
	set(&tunnel, v1alpha1.ConditionAccepted, v1alpha1.ReasonNameTaken, "False")
	if got = summary.Build(summary.Input{Tunnels: []v1alpha1.Tunnel{tunnel}}, now).Rows[0]; got.Health != summary.Broken {
		t.Errorf("with a taken name: %s: %+v", got.Health, got.Warnings)
	}
}

func TestWhichClustersHaveARow(t *testing.T) {
	c, tunnel := pair("b", nil)
	late, none := c, c
	late.Name, late.CreationTimestamp = "late", at(-time.Hour)
	none.Name, none.Labels = "none", nil
	left, waits := tunnel, tunnel
	left.Name, waits.Name = "left", "waits"
	waits.Annotations = map[string]string{v1alpha1.PreparedAnnotation: "2026-05-02T00:00:00Z"}
	view := summary.Build(
		summary.Input{Clusters: []clusterv1.Cluster{c, late, none}, Tunnels: []v1alpha1.Tunnel{tunnel, left, waits}}, now,
	)
	var got []string
	for _, r := range view.Rows {
		got = append(got, r.Cluster+" "+string(r.Health))
	}
	if diff := cmp.Diff([]string{"late broken", "left warning", "waits waiting", "b ok"}, got); diff != "" {
		t.Error(diff)
	}
	want := summary.Summary{
		Clusters:       4,
		OK:             1,
		Warning:        1,
		Broken:         1,
		Waiting:        1,
		NotOptedIn:     1,
		Edges:          6,
		EdgesConnected: 6,
		Tunnels:        18,
	}
	if diff := cmp.Diff(want, view.Summary); diff != "" {
		t.Error(diff)
	}
}

func TestRow(t *testing.T) {
	c, tunnel := pair("c1", nil)
	live := &summary.Live{Tunnels: map[string][]collect.Tunnel{"c1": {
		{Node: "edge-a", Gateway: "gateway-2", RTT: 3 * time.Millisecond},
		{Node: "edge-a", Gateway: "gateway-10", RTT: 5 * time.Millisecond},
		{Node: "edge-b", Gateway: "gateway-10", RTT: 9 * time.Millisecond},
		{Node: "edge-b", Gateway: "gateway-10"},
	}}}
	end := now.Add(100 * 24 * time.Hour)
	r := summary.Build(summary.Input{
		Clusters: []clusterv1.Cluster{c}, Tunnels: []v1alpha1.Tunnel{tunnel}, Live: live,
		Kubeconfigs: map[types.NamespacedName]time.Time{{Namespace: "prod", Name: "c1"}: end},
	}, now).Rows[0]
	if diff := cmp.Diff([]observed.Gateway{{Name: "gateway-2", Tunnels: 2, RTT: 3}, {
		Name: "gateway-10", Tunnels: 4,
		RTT: 5,
	}}, r.Gateways); diff != "" {
		t.Error(diff)
	}
	if r.RTT != 5 || r.Tunnels != 6 || r.Connected != 2 || r.LetIn != 2 || r.Mode != "sni" ||
		!r.LastChange.Equal(now.Add(-time.Hour)) {
		t.Errorf("%+v", r)
	}
	var of []string
	for _, e := range r.Expiries {
		of = append(of, e.Of)
	}
	if diff := cmp.Diff([]string{"edge edge-a", "edge edge-b", "kubeconfig", "apiserver"}, of); diff != "" {
		t.Error(diff)
	}
}

// TestCertificateWithoutAnEnd has certificates without an end (RFC 5280), read in a time zone east of UTC: their local
// end is in the year 10000, which JSON cannot encode.
func TestCertificateWithoutAnEnd(t *testing.T) {
	end := metav1.NewTime(time.Date(9999, time.December, 31, 23, 59, 59, 0, time.UTC).In(time.FixedZone("east", 3600)))
	c, tunnel := pair("c1", func(_ *clusterv1.Cluster, t *v1alpha1.Tunnel) {
		t.Status.Edges[0].APIServer.CertificateNotAfter, t.Status.Edges[1].APIServer = &end, nil
		t.Status.Kubeconfig.Copies = []v1alpha1.KubeconfigCopyStatus{
			{Namespace: "argocd", Name: "c1", CertificateNotAfter: &end},
		}
	})
	view := summary.Build(summary.Input{Clusters: []clusterv1.Cluster{c}, Tunnels: []v1alpha1.Tunnel{tunnel}}, now)
	if len(view.Rows[0].Expiries) != 4 {
		t.Errorf("got %+v", view.Rows[0].Expiries)
	}
	if _, err := json.Marshal(view); err != nil {
		t.Error(err)
	}
}

func TestTenThousand(t *testing.T) {
	view := summary.Build(tenThousand(), now)
	if view.Summary.Broken != 1000 || view.Rows[999].Health != summary.Broken || view.Rows[1000].Health != summary.OK ||
		!strings.HasPrefix(view.Rows[0].Cluster, "c") {
		t.Errorf("%+v", view.Summary)
	}
}

// BenchmarkTenThousand measures the rows of the page, which builds them at each change.
func BenchmarkTenThousand(b *testing.B) {
	in := tenThousand()
	b.ReportAllocs()
	for b.Loop() {
		summary.Build(in, now)
	}
}

// tenThousand returns workload clusters, of which each tenth has no tunnel.
func tenThousand() summary.Input {
	var in summary.Input
	for i := range 10000 {
		c, tunnel := pair(fmt.Sprintf("c%d", i), func(_ *clusterv1.Cluster, tunnel *v1alpha1.Tunnel) {
			if i%10 == 0 {
				set(tunnel, v1alpha1.ConditionTunnelReady, v1alpha1.ReasonNoTunnel, "False")
			}
		})
		in.Clusters, in.Tunnels = append(in.Clusters, c), append(in.Tunnels, tunnel)
	}
	return in
}

// TestRoutes has a Tunnel with tunnels to gateway-2 and gateway-10. gateway-3 forwards its clients to these, gateway-4
// knows only others, and gateway-5 is away.
func TestRoutes(t *testing.T) {
	c, tunnel := pair("c1", nil)
	ways := []observed.Way{
		{To: "gateway-10", Zone: "b", RTT: 0.4}, {To: "gateway-4", Zone: "b"}, {To: "gateway-2", Zone: "a", RTT: 12, Rank: 5},
	}
	used := []observed.Way{{To: "192.0.2.1:443", RTT: 3}}
	live := summary.LiveOf(collect.Fleet{
		Gateways: []collect.Gateway{
			{Name: "gateway-10", Connected: true, Zone: "b", Ways: ways},
			{Name: "gateway-2", Connected: true},
			{Name: "gateway-3", Connected: true, Zone: "b", Ways: ways},
			{Name: "gateway-4", Connected: true, Ways: ways[1:2]},
			{Name: "gateway-5", Ways: ways},
		},
		Edges: []observed.Edge{{Node: "edge-a", ID: "c1", Ways: used}, {Node: "edge-b", ID: "other", Ways: used}},
	})
	build := func(tunnels ...v1alpha1.Tunnel) summary.Row {
		in := summary.Input{Clusters: []clusterv1.Cluster{c}, Tunnels: tunnels, Live: live}
		return summary.Build(in, now).Rows[0]
	}
	r := build(tunnel)
	want := []summary.Route{
		{Gateway: "gateway-2"},
		{Gateway: "gateway-3", Zone: "b", To: []observed.Way{ways[0], ways[2]}},
		{Gateway: "gateway-10", Zone: "b"},
	}
	if diff := cmp.Diff(want, r.Routes); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(used, r.Edges[0].Ways); diff != "" || r.Edges[1].Ways != nil {
		t.Errorf("ways of the edges: %s; %v", diff, r.Edges[1].Ways)
	}
	if got := fmt.Sprint(want[1].To); got != "[gateway-10 (zone b, 0.4 ms) gateway-2 (zone a, 12.0 ms)]" {
		t.Error(got)
	}
	if many := build(slices.Repeat([]v1alpha1.Tunnel{tunnel}, 101)...); len(many.Routes) > 0 {
		t.Error("the rows of a large fleet have a route for each gateway")
	}
}
