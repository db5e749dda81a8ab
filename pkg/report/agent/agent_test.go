package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/pkg/tunnels"
)

var idA = strings.Repeat("a", 24)

// edgeWorkers is the number of workers without a tunnel of one edge.
type edgeWorkers = tunnels.UnservedWorkers

func TestWorkersWithoutATunnelAreReportedOnce(t *testing.T) {
	hole := func(node string, workers int) edgeWorkers {
		return edgeWorkers{EdgeRef: model.EdgeRef{Node: node, ID: idA}, Workers: workers}
	}
	reported := map[model.EdgeRef]int{}
	for _, step := range []struct{ now, want []edgeWorkers }{
		{},
		{now: []edgeWorkers{hole("edge-1", 1)}, want: []edgeWorkers{hole("edge-1", 1)}},
		{now: []edgeWorkers{hole("edge-1", 1)}},
		{now: []edgeWorkers{hole("edge-1", 2)}, want: []edgeWorkers{hole("edge-1", 2)}},
		{now: []edgeWorkers{hole("edge-2", 1)}, want: []edgeWorkers{hole("edge-2", 1), hole("edge-1", 0)}},
		{want: []edgeWorkers{hole("edge-2", 0)}},
		{},
	} {
		var want []*reportv1.Hole
		for _, h := range step.want {
			want = append(want, &reportv1.Hole{Node: h.Node, TunnelId: h.ID, Workers: int32(h.Workers)})
		}
		if diff := cmp.Diff(want, unserved(step.now, reported), protocmp.Transform()); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
}

// TestTheOldestTunnelsAreReported if there are more than fit: the newest ones are closed.
func TestTheOldestTunnelsAreReported(t *testing.T) {
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	all := make([]tunnels.Tunnel, report.MaxTunnels+2)
	for i := range all {
		age := time.Duration((i+7)%len(all)) * time.Second // in no order
		all[i] = tunnels.Tunnel{Key: fmt.Sprint(i), Since: start.Add(-age)}
	}
	newest := []string{all[len(all)-7].Key, all[len(all)-6].Key}
	reported := oldest(all)
	if len(reported) != report.MaxTunnels {
		t.Fatalf("%d are reported", len(reported))
	}
	for _, of := range reported {
		if slices.Contains(newest, of.Key) {
			t.Errorf("%s is reported", of.Key)
		}
	}
	if few := oldest(all[:2]); len(few) != 2 {
		t.Errorf("of two, %d are reported", len(few))
	}
}

func TestMergePeers(t *testing.T) {
	both := []string{"gateway-0", "gateway-1"}
	ready := func(edges ...string) *reportv1.Peer {
		p := &reportv1.Peer{Gateway: "gateway-0", Ready: true}
		for _, node := range edges {
			p.Edges = append(p.Edges, &reportv1.Edge{Node: node, TunnelId: idA})
		}
		return p
	}
	tests := map[string]struct {
		answers []*reportv1.PeersAnswer
		want    string
	}{
		"no probe ran": {want: "[] of [], known false"},
		"alone": {
			answers: []*reportv1.PeersAnswer{{Gateways: []string{"gateway-1"}}},
			want:    "[] of [], known true",
		},
		"the installation is not known": {answers: []*reportv1.PeersAnswer{{}}, want: "[] of [], known false"},
		"one server did not answer": {
			answers: []*reportv1.PeersAnswer{{Gateways: both, Settled: true}, nil},
			want:    "[] of [], known false",
		},
		"one did not, but the other has all": {answers: []*reportv1.PeersAnswer{{
			Gateways: both,
			Peers:    []*reportv1.Peer{ready("a")},
		}, nil}, want: "[a] of [gateway-0], known true"},
		"a gateway that changed servers": {
			answers: []*reportv1.PeersAnswer{{
				Gateways: both,
				Peers:    []*reportv1.Peer{ready("a", "b")},
			}, {Gateways: both, Peers: []*reportv1.Peer{ready("b", "c")}}},
			want: "[a b c] of [gateway-0], known true",
		},
		"a gateway may have more tunnels": {
			answers: []*reportv1.PeersAnswer{{
				Gateways: both,
				Peers:    []*reportv1.Peer{ready("a"), {Gateway: "gateway-0", Ready: true, Incomplete: true}},
			}}, want: "[a] of [gateway-0], known false",
		},
		"a gateway that ends": {
			answers: []*reportv1.PeersAnswer{{
				Gateways: both,
				Peers:    []*reportv1.Peer{{Gateway: "gateway-0", Edges: []*reportv1.Edge{{Node: "a", TunnelId: idA}}}},
			}}, want: "[] of [], known true",
		},
		"one server is older than the scale-up": {
			answers: []*reportv1.PeersAnswer{{
				Gateways: both,
				Peers:    []*reportv1.Peer{ready()},
			}, {Gateways: append(slices.Clone(both), "gateway-2")}},
			want: "[] of [gateway-0], known false",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := reported(MergePeers("gateway-1", tc.answers)); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func reported(p Peers) string {
	var nodes, gateways []string
	for _, e := range p.ReadyEdges() {
		nodes = append(nodes, e.Node)
	}
	for name, g := range p.Gateways {
		if g.Ready {
			gateways = append(gateways, name)
		}
	}
	slices.Sort(gateways)
	return fmt.Sprintf("%v of %v, known %t", nodes, gateways, p.Known)
}
