package status

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	reportview "github.com/fairlead/fairlead/pkg/report/view"
)

func TestAnAbsentEdgeIsRemovedOnlyByCompleteReports(t *testing.T) {
	at := time.Now()
	g0, g1 := v1alpha1.EdgeGatewayStatus{
		Name:    "gateway-0",
		Tunnels: 2,
	}, v1alpha1.EdgeGatewayStatus{
		Name:    "gateway-1",
		Tunnels: 2,
	}
	tests := map[string]struct {
		live reportview.Live
		want string // remaining gateways
	}{
		"nothing is known":                      {live: reportview.Live{}, want: "gateway-0 gateway-1"},
		"one gateway reports, without the edge": {live: reportview.Live{Gateways: []string{"gateway-0"}}, want: "gateway-1"},
		"one reports one, the other is silent": {
			live: reportview.Live{
				Gateways: []string{"gateway-0"},
				Edges:    []reportview.Edge{controllertest.Connected("edge-a", "gateway-0")},
			},
			want: "gateway-0 gateway-1",
		},
		"all is known, and the edge has one": {
			live: reportview.Live{
				Known:    true,
				Gateways: []string{"gateway-0", "gateway-1"},
				Edges:    []reportview.Edge{controllertest.Connected("edge-a", "gateway-1")},
			},
			want: "gateway-1",
		},
		"all is known, and there is no edge": {live: reportview.Live{Known: true}, want: ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			merged := mergeEdges(
				[]v1alpha1.EdgeStatus{controllertest.Recorded("edge-a", at, g0, g1)}, tc.live, nil, time.Hour, at,
			)
			var names []string
			for _, g := range merged[0].Gateways {
				names = append(names, g.Name)
			}
			if got := strings.Join(names, " "); got != tc.want {
				t.Errorf("left %q, want %q", got, tc.want)
			}
		})
	}
}

func TestAnEdgeOfAMovedClusterIsRecorded(t *testing.T) {
	at := time.Now()
	live := reportview.Live{
		Known: true,
		Edges: []reportview.Edge{
			controllertest.Connected("edge-new", "gateway-0"),
			controllertest.Connected("edge-revoked", "gateway-0"),
			{Node: "edge-away"},
		},
	}
	merged := mergeEdges(nil, live, []string{"edge-revoked"}, time.Hour, at)
	if len(merged) != 1 || merged[0].NodeID != "CN=edge-new" || merged[0].CertificateNotAfter.Sub(at) < 59*time.Minute {
		t.Errorf("%+v", merged)
	}
}

func TestLastSeen(t *testing.T) {
	at := time.Now().Truncate(time.Second)
	edge := controllertest.Recorded("edge-a", at, v1alpha1.EdgeGatewayStatus{Name: "gateway-0", Tunnels: 1})
	lost := mergeEdges([]v1alpha1.EdgeStatus{edge}, reportview.Live{Known: true}, nil, time.Hour, at)[0]
	if lost.LastSeen == nil || !lost.LastSeen.Time.Equal(at) {
		t.Errorf("an edge that has just lost its tunnels was seen at %v", lost.LastSeen)
	}
	later := mergeEdges([]v1alpha1.EdgeStatus{lost}, reportview.Live{Known: true}, nil, time.Hour, at.Add(time.Minute))[0]
	if !later.LastSeen.Time.Equal(at) {
		t.Errorf("an edge that is away was seen at %v", later.LastSeen)
	}
	since := reportview.Live{Known: true, Edges: []reportview.Edge{{Node: "edge-a", Since: at.Add(20 * time.Second)}}}
	if got := mergeEdges([]v1alpha1.EdgeStatus{lost}, since, nil, time.Hour, at.Add(
		time.Minute))[0]; !got.LastSeen.Time.Equal(
		at.Add(20 * time.Second),
	) {
		t.Errorf("an edge that was connected until then was seen at %v", got.LastSeen)
	}
	if got := mergeEdges([]v1alpha1.EdgeStatus{edge}, reportview.Live{}, nil, time.Hour, at)[0]; got.LastSeen != nil {
		t.Error("an edge of which nothing is known was seen")
	}
}

// TestNoEdgeWasSeenInTheFuture: a record from before a correction of the clock does not stay, and a time of another
// clock is not recorded.
func TestNoEdgeWasSeenInTheFuture(t *testing.T) {
	at := time.Now().Truncate(time.Second)
	ahead, earlier := metav1.NewTime(at.Add(time.Hour)), at.Add(-time.Minute)
	for name, tc := range map[string]struct {
		edge reportview.Edge
		want time.Time
	}{
		"it is connected":                      {edge: reportview.Edge{Node: "edge-a", Connected: true}, want: at},
		"it was, by the same clock":            {edge: reportview.Edge{Node: "edge-a", Since: earlier}, want: earlier},
		"it was, by a clock that is far ahead": {edge: reportview.Edge{Node: "edge-a", Since: ahead.Time}, want: at},
	} {
		edge := controllertest.Recorded("edge-a", at.Add(-time.Hour))
		for _, edge.LastSeen = range []*metav1.Time{nil, &ahead} {
			live := reportview.Live{Known: true, Edges: []reportview.Edge{tc.edge}}
			got := mergeEdges([]v1alpha1.EdgeStatus{edge}, live, nil, time.Hour, at)
			if seen := got[0].LastSeen; seen == nil || !seen.Time.Equal(tc.want) {
				t.Errorf("%s, and was seen at %v: is recorded as seen at %v, want %s", name, edge.LastSeen, seen, tc.want)
			}
			if edge.LastSeen != nil && sameButSeen([]v1alpha1.EdgeStatus{edge}, got, equality.Semantic.DeepEqual) {
				t.Errorf("%s: the corrected time is not written", name)
			}
		}
	}
}

// TestAStatusFitsTheLongestReportsOfEdges: edges may send any text.
func TestAStatusFitsTheLongestReportsOfEdges(t *testing.T) {
	at, long := time.Now(), strings.Repeat("ä\x00\xff", 1<<16)
	names := make([]string, 1000)
	for i := range names {
		names[i] = long
	}
	live := reportview.Live{Known: true}
	for range 3 * records.MaxEdges {
		e := controllertest.Connected(model.NewNodeName(), "gateway-0")
		e.Report = &reportv1.EdgeReport{Form: long, Version: long, LastError: long, ApiServer: &reportv1.APIServer{
			Address: long, Message: long, Version: long, CertificateNames: names,
			CertificateNotAfter: &timestamppb.Timestamp{Seconds: 1 << 62},
		}}
		live.Edges = append(live.Edges, e)
	}
	merged := mergeEdges(nil, live, nil, time.Hour, at)
	data, err := json.Marshal(merged)
	if err != nil {
		t.Fatal(err)
	}
	if len(merged) != records.MaxEdges || len(data) > 1<<20 || !utf8.Valid(data) {
		t.Errorf("%d edges, %d bytes", len(merged), len(data))
	}
	if e := merged[0]; strings.ContainsAny(e.LastError, "\x00\n") || e.APIServer.CertificateNotAfter != nil ||
		len(e.LastError) > maxReported {
		t.Errorf("%q, %v", e.LastError[:20], e.APIServer.CertificateNotAfter)
	}
	if c := apiServerReachable(live, nil); len(condition.Shorten(c.Message)) > condition.MaxMessage {
		t.Errorf("a condition of %d bytes", len(c.Message))
	}
}

// TestStatusKeepsTheCertificateWhileItsAPIServerIsDown: the certificate that was observed last stays, with all its
// names.
func TestStatusKeepsTheCertificateWhileItsAPIServerIsDown(t *testing.T) {
	at := time.Now()
	var names []string
	for i := range maxNames - 1 {
		names = append(names, fmt.Sprintf("node-%02d.example.org", i))
	}
	names = append(names, "z.tunnels.example.com")
	edge := controllertest.Connected("edge-a", "gateway-0")
	edge.Report.ApiServer.CertificateNames = names
	seen := mergeEdges(nil, reportview.Live{Known: true, Edges: []reportview.Edge{edge}}, nil, time.Hour, at)
	if got := seen[0].APIServer.CertificateNames; !slices.Equal(got, names) {
		t.Errorf("%d names, want %d", len(got), len(names))
	}
	away := controllertest.Connected("edge-a", "gateway-0")
	away.Report.ApiServer = &reportv1.APIServer{Address: "127.0.0.1:6443", Message: "it does not answer"}
	seen = mergeEdges(seen, reportview.Live{Known: true, Edges: []reportview.Edge{away}}, nil, time.Hour, at)
	if s := seen[0].APIServer; s.Healthy || !slices.Equal(s.CertificateNames, names) {
		t.Errorf("healthy %v, names %v", s.Healthy, s.CertificateNames)
	}
}

func TestRevoke(t *testing.T) {
	at := time.Now().Truncate(time.Second)
	a, b := controllertest.Recorded("edge-a", at), controllertest.Recorded("edge-b", at)
	a.TokenSHA256, b.TokenSHA256, a.Version, a.LastError = "t1", "t2", "v1", "x"
	status := &v1alpha1.TunnelStatus{
		Edges:  []v1alpha1.EdgeStatus{a, b},
		Tokens: []v1alpha1.TokenStatus{{SHA256: "t1"}, {SHA256: "t2"}},
	}
	revoke(status, []string{"edge-a", "edge-nobody"}, at)
	if e := status.Edges[0]; e.RevokedAt == nil || e.Version != "" || e.LastError != "" ||
		status.Edges[1].RevokedAt != nil {
		t.Errorf("%+v", status.Edges)
	}
	if len(status.Tokens) != 1 || status.Tokens[0].SHA256 != "t2" {
		t.Errorf("tokens %+v", status.Tokens)
	}
	revoke(status, []string{"edge-a"}, at.Add(time.Hour))
	if !status.Edges[0].RevokedAt.Time.Equal(at) {
		t.Error("the time of the revocation has changed")
	}
	if revoke(status, nil, at); status.Edges[0].RevokedAt != nil {
		t.Error("a revocation that was taken back is still noted")
	}
}
