package collect

import (
	"errors"
	"strings"
	"testing"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	inspectv1 "github.com/fairlead/fairlead/pkg/diagnose/collect/v1"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

var (
	noon    = time.Date(2026, time.May, 1, 12, 0, 0, 0, time.UTC)
	earlier = noon.Add(-time.Hour)
)

// partOf returns the answer of one xds-server, with its clock at noon.
func partOf(gateways []*inspectv1.Gateway, edges ...*reportv1.EdgeState) *fleetAnswer {
	return &fleetAnswer{inspectv1.FleetPart{
		Server: &inspectv1.Server{
			Now: timestamppb.New(noon), Version: "v1", Settled: true,
			TunnelDomain: "tunnels.example.com",
		},
		Gateways: gateways, Edges: edges,
	}}
}

func gatewayAt(since time.Time, connected bool, change ...func(*inspectv1.Gateway)) []*inspectv1.Gateway {
	g := &inspectv1.Gateway{Name: "gateway-0", Connected: connected, Ready: true, Since: timestamppb.New(since)}
	for _, do := range change {
		do(g)
	}
	return []*inspectv1.Gateway{g}
}

func edgeAt(since time.Time, connected bool, trouble string) *reportv1.EdgeState {
	return &reportv1.EdgeState{
		Node: "e1", TunnelId: "t", Connected: connected, Since: timestamppb.New(since),
		Report: &reportv1.EdgeReport{LastError: trouble},
	}
}

// merged returns what the servers a, b, … together observe; nil stands for one that did not answer.
func merged(answers ...*fleetAnswer) Fleet {
	s := &Servers{}
	var errs []error
	for i, answer := range answers {
		var err error
		if answer == nil {
			err = errRefused
		}
		s.all, errs = append(s.all, &connection{name: string(rune('a' + i))}), append(errs, err)
	}
	return s.merge(answers, errs)
}

var errRefused = errors.New("refused")

// TestWhichServerCounts has a gateway and an edge that two servers report: the one to which it is connected counts,
// otherwise the one that it left last.
func TestWhichServerCounts(t *testing.T) {
	installed := func(g *inspectv1.Gateway) { g.Installed = true }
	for sentence, tc := range map[string]struct {
		a, b             *fleetAnswer
		gateway, edge    string // the servers that count
		connected, ready bool
		installed        bool
	}{
		"one has it connected": {
			a:       partOf(gatewayAt(noon, false, installed), edgeAt(noon, false, "a")),
			b:       partOf(gatewayAt(earlier, true), edgeAt(earlier, true, "b")),
			gateway: "b", edge: "b", connected: true, ready: true, installed: true,
		},
		"both have it connected, one since later": {
			a:       partOf(gatewayAt(noon, true), edgeAt(noon, true, "a")),
			b:       partOf(gatewayAt(earlier, true), edgeAt(earlier, true, "b")),
			gateway: "a", edge: "a", connected: true, ready: true,
		},
		"neither has it connected": {
			a:       partOf(gatewayAt(earlier, false), edgeAt(earlier, false, "a")),
			b:       partOf(gatewayAt(noon, false), edgeAt(noon, false, "b")),
			gateway: "b", edge: "b",
		},
		"one did not answer": {
			a: partOf(gatewayAt(earlier, true), edgeAt(earlier, true, "a")), gateway: "a", edge: "a", connected: true,
			ready: true,
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := merged(tc.a, tc.b)
			if len(f.Gateways) != 1 || len(f.Edges) != 1 || len(f.Servers) != 2 {
				t.Fatalf("got %+v", f)
			}
			g, e := f.Gateways[0], f.Edges[0]
			if g.Server != tc.gateway || g.Connected != tc.connected || g.Ready != tc.ready || g.Installed != tc.installed {
				t.Errorf("gateway: %+v", g)
			}
			if e.Server != tc.edge || e.LastError != tc.edge || e.Connected != tc.connected {
				t.Errorf("edge: %+v", e)
			}
			if f.Servers[0].Version != "v1" || !f.Servers[0].Settled || (f.Servers[1].Err != nil) != (tc.b == nil) {
				t.Errorf("servers: %+v", f.Servers)
			}
		})
	}
}

// TestTunnelsAreOfTheServerThatCounts proves that a gateway's previous server adds none of its tunnels.
func TestTunnelsAreOfTheServerThatCounts(t *testing.T) {
	with := func(a *fleetAnswer, key string) *fleetAnswer {
		tunnel := &reportv1.Tunnel{Key: key, Node: "e1", TunnelId: "t", Worker: "worker_1", Since: timestamppb.New(earlier)}
		a.Tunnels = []*inspectv1.Tunnel{{Gateway: "gateway-0", Tunnel: tunnel, RoundTripMicros: 1500}}
		a.Holes = []*inspectv1.Hole{{Gateway: "gateway-0", Hole: &reportv1.Hole{Node: key, TunnelId: "t", Workers: 1}}}
		return a
	}
	f := merged(with(partOf(gatewayAt(noon, false)), "old"), with(partOf(gatewayAt(noon, true)), "new"))
	want := []Tunnel{{
		Gateway: "gateway-0", Key: "new", Node: "e1", ID: "t", Worker: "worker_1", Since: earlier,
		RTT: 1500 * time.Microsecond,
	}}
	if diff := cmp.Diff(want, f.Tunnels); diff != "" {
		t.Error(diff)
	}
	if len(f.Unserved) != 1 || f.Unserved[0] != (UnservedWorkers{Gateway: "gateway-0", Node: "new", ID: "t", Workers: 1}) {
		t.Errorf("holes: %+v", f.Unserved)
	}
}

func TestTimesOfOthers(t *testing.T) {
	state := edgeAt(noon, true, "")
	state.Reported = timestamppb.New(noon.Add(-90 * time.Second))
	never := &inspectv1.Gateway{Name: "gateway-1", Installed: true}
	a := partOf([]*inspectv1.Gateway{never}, state)
	a.Refusals = []*inspectv1.Refusal{
		{Address: "192.0.2.1", About: AboutHandshake, Last: timestamppb.New(earlier), Times: 2},
		{Address: "192.0.2.2", Last: timestamppb.New(noon)},
	}
	f := merged(a)
	if f.Edges[0].Age != 90*time.Second {
		t.Errorf("by the server's clock the report is %s old", f.Edges[0].Age)
	}
	if g := f.Gateways[0]; g.Server != "" || !g.Since.IsZero() || g.Connected {
		t.Errorf("a gateway that has never reported: %+v", g)
	}
	if len(f.Refusals) != 2 || f.Refusals[0].Address != "192.0.2.2" || f.Refusals[1].Times != 2 ||
		f.Refusals[1].Server != "a" {
		t.Errorf("refusals: %+v", f.Refusals)
	}
	bad := &timestamppb.Timestamp{Nanos: -1}
	if !timeOf(bad).IsZero() || !timeOf(nil).IsZero() {
		t.Error("a time that is none is a time")
	}
}

func TestProbesAndProofsOfSeveralServers(t *testing.T) {
	healthy := &reportv1.APIServer{Healthy: true}
	looks := mergeProbes([]*inspectv1.LookAnswer{
		{Edges: []*inspectv1.EdgeLook{{Node: "e2", Error: "gone"}, {Node: "e1", ApiServer: healthy}}},
		nil,
		{Edges: []*inspectv1.EdgeLook{
			{Node: "e1", Error: "gone"},
			{Node: "e2", ApiServer: healthy},
			{Node: "e3", Error: "too slow"},
		}},
	})
	want := []EdgeProbe{
		{Node: "e1", APIServer: &observed.APIServer{Healthy: true}},
		{Node: "e2", APIServer: &observed.APIServer{Healthy: true}},
		{Node: "e3", Problem: "too slow"},
	}
	if diff := cmp.Diff(want, looks); diff != "" {
		t.Error(diff)
	}
	proof := &reportv1.Proof{Denied: true}
	proofs := mergeProofs([]*inspectv1.ProveAnswer{
		{Gateways: []*inspectv1.GatewayProof{{Name: "gateway-1", Error: "away"}, {Name: "gateway-0", Proof: proof}}},
		nil,
		{Gateways: []*inspectv1.GatewayProof{{Name: "gateway-0", Error: "away"}, {Name: "gateway-1", Error: ""}}},
	})
	if len(proofs) != 2 || proofs[0].Proof != proof || proofs[0].Problem != "" || proofs[1].Proof != nil ||
		proofs[1].Problem != "away" {
		t.Errorf("got %+v", proofs)
	}
}

func TestStatusOfAResource(t *testing.T) {
	updated := timestamppb.New(earlier)
	for sentence, tc := range map[string]struct {
		in   *statusv3.ClientConfig_GenericXdsConfig
		want Resource
	}{
		"accepted": {
			&statusv3.ClientConfig_GenericXdsConfig{
				Name: "c", VersionInfo: "1",
				ClientStatus: adminv3.ClientResourceStatus_ACKED, LastUpdated: updated,
			},
			Resource{Name: "c", Version: "1", Status: Synced, Updated: earlier},
		},
		"sent, and not answered": {
			&statusv3.ClientConfig_GenericXdsConfig{
				Name: "c", ClientStatus: adminv3.ClientResourceStatus_REQUESTED,
				LastUpdated: updated,
			},
			Resource{Name: "c", Status: Stale, Updated: earlier, Since: earlier},
		},
		"refused": {
			&statusv3.ClientConfig_GenericXdsConfig{
				Name: "c", ClientStatus: adminv3.ClientResourceStatus_NACKED,
				LastUpdated: updated, ErrorState: &adminv3.UpdateFailureState{
					Details: "unknown field", VersionInfo: "2", LastUpdateAttempt: timestamppb.New(noon),
				},
			},
			Resource{Name: "c", Status: Rejected, Updated: earlier, Since: noon, Refusal: "unknown field", Refused: "2"},
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, resourceOf(tc.in), cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNodeOfAnAnswer(t *testing.T) {
	metadata, err := structpb.NewStruct(map[string]any{
		inspectv1.MetadataRole: string(model.RoleEdge), inspectv1.MetadataTunnelID: "t", inspectv1.MetadataVersion: "v1",
		inspectv1.MetadataConnected: noon.Format(time.RFC3339),
	})
	if err != nil {
		t.Fatal(err)
	}
	node, err := nodeOf(&statusv3.ClientConfig{Node: &corev3.Node{Id: model.NodeID("e1"), Metadata: metadata}})
	want := Node{Name: "e1", Role: model.RoleEdge, ID: "t", Version: "v1", Connected: noon}
	if diff := cmp.Diff(want, node); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	if _, err := nodeOf(&statusv3.ClientConfig{Node: &corev3.Node{Id: "e1"}}); err == nil ||
		!strings.Contains(err.Error(), "is not a node id") {
		t.Errorf("got %v", err)
	}
	if !parseTime("yesterday").IsZero() {
		t.Error("a time that is none is a time")
	}
}
