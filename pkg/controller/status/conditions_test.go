package status

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/observed"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	reportview "github.com/fairlead/fairlead/pkg/report/view"
)

func sick(node, message string) reportview.Edge {
	e := controllertest.Connected(node, "gateway-0")
	e.Report = &reportv1.EdgeReport{ApiServer: &reportv1.APIServer{Address: "127.0.0.1:6443", Message: message}}
	return e
}

// withoutOnWorker is an edge without a tunnel on one worker of its first gateway.
func withoutOnWorker(node string, gateways ...string) reportview.Edge {
	e := controllertest.Connected(node, gateways...)
	e.Without = map[string]int{gateways[0]: 1}
	return e
}

func TestConditionsOfLiveEdges(t *testing.T) {
	both := []string{"gateway-0", "gateway-1"}
	away := reportview.Edge{Node: "edge-a"}
	tests := map[string]struct {
		live                       reportview.Live
		revoked                    []string
		perTunnel                  int
		tunnel, server             metav1.ConditionStatus
		tunnelReason, serverReason string
		message                    string // part of either
	}{
		"nothing is known": {
			tunnel:       "Unknown",
			tunnelReason: "Unknown",
			server:       "Unknown",
			serverReason: "Unknown",
		},
		"no gateway is up": {
			live:         reportview.Live{Known: true},
			tunnel:       "False",
			tunnelReason: "NoTunnel",
			server:       "Unknown",
			serverReason: "Unknown",
			message:      "no gateway is up",
		},
		"no edge": {
			live:         reportview.Live{Known: true, Gateways: both},
			tunnel:       "False",
			tunnelReason: "NoTunnel",
			server:       "Unknown",
			serverReason: "Unknown",
			message:      "gateway-0, gateway-1",
		},
		"an edge that is away": {
			live:         reportview.Live{Known: true, Gateways: both, Edges: []reportview.Edge{away}},
			tunnel:       "False",
			tunnelReason: "NoTunnel",
			server:       "Unknown",
			serverReason: "Unknown",
		},
		"tunnels to all gateways": {
			live: reportview.Live{
				Known:    true,
				Gateways: both,
				Edges:    []reportview.Edge{controllertest.Connected("edge-a", both...)},
			},
			tunnel:       "True",
			tunnelReason: "Connected",
			server:       "True",
			serverReason: "Reachable",
		},
		"tunnels to one of two gateways": {
			live: reportview.Live{
				Known:    true,
				Gateways: both,
				Edges:    []reportview.Edge{controllertest.Connected("edge-a", "gateway-1")},
			},
			tunnel:       "True",
			tunnelReason: "PartlyConnected",
			server:       "True",
			serverReason: "Reachable",
		},
		"each edge has one of two gateways": {
			live: reportview.Live{
				Known:    true,
				Gateways: both,
				Edges: []reportview.Edge{
					controllertest.Connected("edge-a", "gateway-1"),
					controllertest.Connected("edge-b", "gateway-0"),
				},
			},
			tunnel:       "True",
			tunnelReason: "PartlyConnected",
			server:       "True",
			serverReason: "Reachable",
			message:      "2 edges are",
		},
		"a worker without a tunnel": {
			live: reportview.Live{
				Known:    true,
				Gateways: both,
				Edges:    []reportview.Edge{withoutOnWorker("edge-a", both...)},
			},
			tunnel:       "True",
			tunnelReason: "PartlyConnected",
			server:       "True",
			serverReason: "Reachable",
			message:      "edge-a has no tunnel on 1 worker of gateway-0",
		},
		"another edge has one there": {
			live: reportview.Live{
				Known:    true,
				Gateways: both,
				Edges:    []reportview.Edge{withoutOnWorker("edge-a", both...), controllertest.Connected("edge-b", both...)},
			},
			tunnel:       "True",
			tunnelReason: "Connected",
			server:       "True",
			serverReason: "Reachable",
			message:      "2 edges are",
		},
		"tunnels, but not all is known": {
			live: reportview.Live{
				Gateways: []string{"gateway-0"},
				Edges:    []reportview.Edge{controllertest.Connected("edge-a", "gateway-0")},
			},
			tunnel:       "True",
			tunnelReason: "Connected",
			server:       "True",
			serverReason: "Reachable",
		},
		"only a revoked edge has tunnels": {
			live: reportview.Live{
				Known:    true,
				Gateways: both,
				Edges:    []reportview.Edge{controllertest.Connected("edge-a", both...)},
			},
			revoked:      []string{"edge-a"},
			tunnel:       "False",
			tunnelReason: "NoTunnel",
			server:       "Unknown",
			serverReason: "Unknown",
		},
		"as many gateways as a tunnel has": {
			live: reportview.Live{
				Known: true, Gateways: append(both, "gateway-2"),
				Edges: []reportview.Edge{controllertest.Connected("edge-a", both...)},
			},
			perTunnel:    2,
			tunnel:       "True",
			tunnelReason: "Connected",
			server:       "True",
			serverReason: "Reachable",
			message:      "1 edge is connected to 2 gateways",
		},
		"fewer gateways than a tunnel has": {
			live: reportview.Live{
				Known: true, Gateways: append(both, "gateway-2"),
				Edges: []reportview.Edge{controllertest.Connected("edge-a", both[:1]...)},
			},
			perTunnel:    2,
			tunnel:       "True",
			tunnelReason: "PartlyConnected",
			server:       "True",
			serverReason: "Reachable",
			message:      "1 edge is connected, but none to 2 gateways",
		},
		"no edge reaches the apiserver": {
			live: reportview.Live{
				Known:    true,
				Gateways: both[:1],
				Edges:    []reportview.Edge{sick("edge-a", "connection refused")},
			},
			tunnel:       "True",
			tunnelReason: "Connected",
			server:       "False",
			serverReason: "Unreachable",
			message:      "edge-a: 127.0.0.1:6443: connection refused",
		},
		"one of two edges reaches it": {
			live: reportview.Live{
				Known:    true,
				Gateways: both[:1],
				Edges:    []reportview.Edge{sick("edge-a", "x"), controllertest.Connected("edge-b", "gateway-0")},
			},
			tunnel:       "True",
			tunnelReason: "Connected",
			server:       "True",
			serverReason: "Reachable",
		},
		"none reaches it, not all is known": {
			live:         reportview.Live{Gateways: both[:1], Edges: []reportview.Edge{sick("edge-a", "x")}},
			tunnel:       "True",
			tunnelReason: "Connected",
			server:       "Unknown",
			serverReason: "Unknown",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tunnel, server := tunnelReady(tc.live, tc.revoked, tc.perTunnel), apiServerReachable(tc.live, tc.revoked)
			if tunnel.Status != tc.tunnel || tunnel.Reason != tc.tunnelReason {
				t.Errorf("%+v", tunnel)
			}
			if server.Status != tc.server || server.Reason != tc.serverReason {
				t.Errorf("%+v", server)
			}
			if !strings.Contains(tunnel.Message+server.Message, tc.message) {
				t.Errorf("messages %q, %q", tunnel.Message, server.Message)
			}
		})
	}
}

func TestReadySumsUp(t *testing.T) {
	all := func(changes ...metav1.Condition) []metav1.Condition {
		var out []metav1.Condition
		for _, kind := range summary {
			c := metav1.Condition{Type: kind, Status: metav1.ConditionTrue}
			for _, change := range changes {
				if change.Type == kind {
					c = change
				}
			}
			if c.Status != "" {
				out = append(out, c)
			}
		}
		return out
	}
	tests := map[string]struct {
		in      []metav1.Condition
		want    metav1.ConditionStatus
		message string
	}{
		"every part is healthy": {in: all(), want: "True", message: "clients reach"},
		"a condition is not there yet": {
			in:      all(metav1.Condition{Type: "KubeconfigReady"}),
			want:    "Unknown",
			message: "KubeconfigReady",
		},
		"one is unknown": {
			in:      all(metav1.Condition{Type: "TunnelReady", Status: "Unknown", Message: "who knows"}),
			want:    "Unknown",
			message: "TunnelReady: who knows",
		},
		"one is false": {
			in:      all(metav1.Condition{Type: "Enrolled", Status: "False", Message: "no edge"}),
			want:    "False",
			message: "Enrolled: no edge",
		},
		"one is unknown and a later false": {
			in: all(
				metav1.Condition{Type: "Enrolled", Status: "Unknown"},
				metav1.Condition{Type: "TunnelReady", Status: "False", Message: "gone"},
			),
			want:    "False",
			message: "TunnelReady: gone",
		},
		"two are false, the first is named": {
			in: all(
				metav1.Condition{Type: "Accepted", Status: "False", Message: "taken"},
				metav1.Condition{Type: "TunnelReady", Status: "False"},
			),
			want:    "False",
			message: "Accepted: taken",
		},
		"a paused one has no condition": {
			in:   append(all(), metav1.Condition{Type: "Paused", Status: "True"}),
			want: "True",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := ready(&v1alpha1.Tunnel{}, tc.in); got.Status != tc.want || !strings.Contains(got.Message, tc.message) {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestEnrolledCountsEdgesWithAValidLeaf(t *testing.T) {
	at := time.Now()
	valid := v1alpha1.EdgeStatus{NodeID: "CN=a", CertificateNotAfter: metav1.NewTime(at.Add(time.Minute))}
	ended, revoked := valid, valid
	ended.CertificateNotAfter = metav1.NewTime(at.Add(-time.Minute))
	revoked.RevokedAt = &metav1.Time{Time: at}
	recorded := func(edges ...v1alpha1.EdgeStatus) []observed.Edge {
		return observed.Recorded(&v1alpha1.Tunnel{Status: v1alpha1.TunnelStatus{Edges: edges}}, at)
	}
	if got := enrolled(&v1alpha1.Tunnel{}, recorded(ended, revoked), at); got.Status != metav1.ConditionFalse {
		t.Errorf("%+v", got)
	}
	if got := enrolled(&v1alpha1.Tunnel{}, recorded(ended, valid), at); got.Status != metav1.ConditionTrue ||
		!strings.HasPrefix(got.Message, "1 edge has") {
		t.Errorf("%+v", got)
	}
	if got := firstEnd([]v1alpha1.EdgeStatus{ended, valid}, at); !got.Equal(valid.CertificateNotAfter.Time) {
		t.Errorf("the next end is %s", got)
	}
}

func TestLiveStateWaitsForDecisions(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	made := func(ago time.Duration, change func(*v1alpha1.Tunnel)) *v1alpha1.Tunnel {
		tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-ago))}}
		tunnel.Spec.ID = "one"
		change(tunnel)
		return tunnel
	}
	same := func(*v1alpha1.Tunnel) {}
	tests := map[string]struct {
		tunnel *v1alpha1.Tunnel
		want   time.Duration
	}{
		"new":                        {made(time.Second, same), decisionTime - time.Second},
		"without a decision":         {made(decisionTime, same), 0},
		"the apiserver's clock fast": {made(-time.Second, same), 0},
		"decided":                    {made(time.Second, func(t *v1alpha1.Tunnel) { t.Status.ID = "one" }), 0},
		"rejected": {made(time.Second, func(t *v1alpha1.Tunnel) {
			t.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse}}
		}), 0},
		"restored, with a revoked edge": {made(time.Second, func(t *v1alpha1.Tunnel) {
			t.Status.Edges = []v1alpha1.EdgeStatus{{NodeID: "edge-a"}}
			t.Spec.RevokedEdges = []string{"edge-a"}
		}), 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := new(Reconciler).postponed(tc.tunnel, now); got != tc.want {
				t.Errorf("waits %s, want %s", got, tc.want)
			}
		})
	}
	r, tunnel := new(Reconciler), made(time.Hour, func(t *v1alpha1.Tunnel) { t.Status.ID = "one" })
	for i, step := range []struct {
		spec, decided int64
		at, want      time.Duration
	}{
		{spec: 1, decided: 1},
		{spec: 2, decided: 1, at: 1 * time.Second, want: decisionTime},
		{spec: 2, decided: 1, at: 2 * time.Second, want: decisionTime - time.Second},
		{spec: 2, decided: 2, at: 2 * time.Second},
		{spec: 3, decided: 2, at: 3 * time.Second, want: decisionTime},
		{spec: 3, decided: 2, at: 3*time.Second + decisionTime}, // its Cluster is paused
		{spec: 3, decided: 2, at: time.Hour},
		{spec: 4, decided: 2, at: time.Hour},
		{spec: 4, decided: 4, at: time.Hour},
		{spec: 5, decided: 4, at: time.Hour, want: decisionTime},
		{spec: 6, decided: 4, at: time.Hour + 2*time.Second, want: decisionTime - 2*time.Second},
	} {
		tunnel.Generation = step.spec
		tunnel.Status.Conditions = []metav1.Condition{
			{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, ObservedGeneration: step.decided},
		}
		if got := r.postponed(tunnel, now.Add(step.at)); got != step.want {
			t.Errorf("step %d waits %s, want %s", i+1, got, step.want)
		}
	}
}

// TestTheWayToAFirstCertificateIsThatOfTheTunnel: each kind has a bootstrap Secret and a command of its own.
func TestTheWayToAFirstCertificateIsThatOfTheTunnel(t *testing.T) {
	for name, tc := range map[string]struct {
		spec v1alpha1.TunnelSpec
		want []string
	}{
		"c1": {want: []string{"edge-agent", "Secret c1-edge-bootstrap"}},
		"site1.network": {
			v1alpha1.TunnelSpec{Network: "site1"},
			[]string{"Secret site1.network-edge-bootstrap", "fairlead network join -n prod site1"},
		},
		"c1.egress": {
			v1alpha1.TunnelSpec{EgressOf: "c1"},
			[]string{"Secret c1.egress-edge-bootstrap", "fairlead network egress -n prod c1"},
		},
	} {
		tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: name}, Spec: tc.spec}
		conditions := liveConditions(tunnel, nil, reportview.Live{Known: true}, 0, time.Now())
		for _, c := range []metav1.Condition{conditions[0], ready(tunnel, append(conditions, metav1.Condition{
			Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue,
		}))} {
			for _, want := range tc.want {
				if !strings.Contains(c.Message, want) {
					t.Errorf("%s of %s does not name %s: %s", c.Type, name, want, c.Message)
				}
			}
		}
	}
}
