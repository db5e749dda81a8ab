package report_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/report"
	"github.com/fairlead/fairlead/pkg/report/agent"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// TestAGatewayReceivesTheTunnelsOfOtherGateways has two servers, to each of which one gateway reports, and a third
// gateway that queries both.
func TestAGatewayReceivesTheTunnelsOfOtherGateways(t *testing.T) {
	w := newWorld(t)
	w.Rules.SetGateways("gateway-0", "gateway-1", "gateway-2")
	first, second := w.place(t), w.place(t)
	first.hub.SetTimes(unsettled())
	second.hub.SetTimes(unsettled())
	asking := gatewayOf("gateway-2")
	clients := []reportv1.ReportClient{}
	for _, p := range []*place{first, second} {
		clients = append(clients, reportv1.NewReportClient(w.Dial(t, &asking, p.Address)))
	}
	expectPeers := func(want string) {
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
			if got := told(agent.MergePeers("gateway-2", answers)); got != want {
				return fmt.Errorf("got %s, want %s", got, want)
			}
			return nil
		})
	}
	expectPeers("[] of [], known false")
	g := w.gateway(t, "gateway-0", first.Address)
	g.opens(t, 1, "edge-a", idA)
	other := w.gateway(t, "gateway-1", second.Address)
	other.opens(t, 1, "edge-b", idB)
	expectPeers("[] of [], known true") // both are there, and accept no clients
	g.takes.set(true)
	expectPeers("[edge-a] of [gateway-0], known true")
	other.takes.set(true)
	expectPeers("[edge-a edge-b] of [gateway-0 gateway-1], known true")
	other.closes(t, 1, "edge-b", idB)
	g.opens(t, 2, "edge-b", idA)
	expectPeers("[edge-a edge-b] of [gateway-0 gateway-1], known true")
	g.takes.set(false) // it drains
	expectPeers("[] of [gateway-1], known true")
	setTimes := func(t report.Times) {
		for _, p := range []*place{first, second} {
			p.hub.SetTimes(t)
		}
	}
	lasting := settled()
	lasting.Silent = report.DefaultTimes.Keep
	setTimes(lasting)
	expectPeers("[] of [gateway-1], known true") // gateway-2 asks, and does not report
	other.stop()
	expectPeers("[] of [], known false")
	lasting.Silent = 0
	setTimes(lasting)
	expectPeers("[] of [], known true") // gateway-1 had time to come back
	setTimes(unsettled())
	expectPeers("[] of [], known false")
	g.stop()
}

func told(p agent.Peers) string {
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

func TestAGatewayReceivesNoPeersBeforeAllGatewaysReport(t *testing.T) {
	w := newWorld(t)
	p := w.place(t)
	w.Rules.Set(model.Denied{}, true)
	asking := gatewayOf("gateway-0")
	if answer, err := reportv1.NewReportClient(w.Dial(t, &asking, p.Address)).Peers(t.Context(),
		&reportv1.PeersRequest{}); err == nil {
		t.Errorf("the answer is %v", answer)
	}
}
