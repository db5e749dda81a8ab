package report

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// TestAGatewayHearsWhatOthersHave has two servers, to each of which one gateway reports, and a third gateway that asks both.
func TestAGatewayHearsWhatOthersHave(t *testing.T) {
	w := newWorld(t)
	w.rules.gateways = []string{"gateway-0", "gateway-1", "gateway-2"}
	first, second := w.place(t), w.place(t)
	first.hub.settle, second.hub.settle = time.Hour, time.Hour
	asking := gatewayOf("gateway-2")
	clients := []reportv1.ReportClient{}
	for _, p := range []*place{first, second} {
		clients = append(clients, reportv1.NewReportClient(w.dial(t, &asking, p.address)))
	}
	says := func(want string) {
		t.Helper()
		eventually.True(t, patience, "the answer is right", func() error {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var answers []*reportv1.PeersAnswer
			for _, c := range clients {
				answer, err := c.Peers(ctx, &reportv1.PeersRequest{})
				if err != nil {
					return err
				}
				answers = append(answers, answer)
			}
			if got := told(MergePeers("gateway-2", answers)); got != want {
				return fmt.Errorf("got %s, want %s", got, want)
			}
			return nil
		})
	}
	says("[] of [], known false")
	g := w.gateway(t, "gateway-0", first.address)
	g.opens(t, 1, "edge-a", idA)
	other := w.gateway(t, "gateway-1", second.address)
	other.opens(t, 1, "edge-b", idB)
	says("[] of [], known true") // both are there, and serve nobody
	g.takes.set(true)
	says("[edge-a] of [gateway-0], known true")
	other.takes.set(true)
	says("[edge-a edge-b] of [gateway-0 gateway-1], known true")
	other.closes(t, 1, "edge-b", idB)
	g.opens(t, 2, "edge-b", idA)
	says("[edge-a edge-b] of [gateway-0 gateway-1], known true")
	g.takes.set(false) // it drains
	says("[] of [gateway-1], known true")
	other.stop()
	says("[] of [], known false")
	for _, p := range []*place{first, second} {
		p.hub.mu.Lock()
		p.hub.settle = 0
		p.hub.mu.Unlock()
	}
	says("[] of [], known true") // gateway-1 had time to come back
	g.stop()
}

func told(p Peers) string {
	var nodes []string
	for _, e := range p.Edges {
		nodes = append(nodes, e.Node)
	}
	return fmt.Sprintf("%v of %v, known %t", nodes, p.Ready, p.Known)
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
		"nobody was asked":                      {want: "[] of [], known false"},
		"alone":                                 {answers: []*reportv1.PeersAnswer{{Gateways: []string{"gateway-1"}}}, want: "[] of [], known true"},
		"the installation is not known":         {answers: []*reportv1.PeersAnswer{{}}, want: "[] of [], known false"},
		"one server did not answer":             {answers: []*reportv1.PeersAnswer{{Gateways: both, Settled: true}, nil}, want: "[] of [], known false"},
		"one did not, but the other has all":    {answers: []*reportv1.PeersAnswer{{Gateways: both, Peers: []*reportv1.Peer{ready("a")}}, nil}, want: "[a] of [gateway-0], known true"},
		"a gateway that changed servers":        {answers: []*reportv1.PeersAnswer{{Gateways: both, Peers: []*reportv1.Peer{ready("a", "b")}}, {Gateways: both, Peers: []*reportv1.Peer{ready("b", "c")}}}, want: "[a b c] of [gateway-0], known true"},
		"one server is older than the scale-up": {answers: []*reportv1.PeersAnswer{{Gateways: both, Peers: []*reportv1.Peer{ready()}}, {Gateways: append(slices.Clone(both), "gateway-2")}}, want: "[] of [gateway-0], known false"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := told(MergePeers("gateway-1", tc.answers)); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestAGatewayIsToldNothingBeforeAllIsKnown(t *testing.T) {
	w := newWorld(t)
	p := w.place(t)
	w.rules.set(model.Denied{}, true)
	asking := gatewayOf("gateway-0")
	if answer, err := reportv1.NewReportClient(w.dial(t, &asking, p.address)).Peers(t.Context(), &reportv1.PeersRequest{}); err == nil {
		t.Errorf("the answer is %v", answer)
	}
}
