package report

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// BenchmarkSnapshot is the way of 10,000 tunnels of 5,000 edges from a gateway that connects to the view of a controller, over
// TLS on this machine.
func BenchmarkSnapshot(b *testing.B) {
	w := newWorld(b)
	p := w.place(b)
	v := w.view(b, p.address)
	s := gatewayOf("gateway-0")
	client := reportv1.NewReportClient(w.dial(b, &s, p.address))
	all, none := snapshot(5000, 2), &reportv1.GatewayReport{Snapshot: true}
	stream, err := client.Gateway(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	last := all.GetTunnels()[len(all.GetTunnels())-1].GetTunnelId()
	until := func(edges int) {
		for len(v.Tunnel(last).Edges) != edges {
			time.Sleep(time.Millisecond)
		}
	}
	for b.Loop() {
		for edges, report := range []*reportv1.GatewayReport{none, all} {
			if err := stream.Send(report); err != nil {
				b.Fatal(err)
			}
			until(edges)
		}
	}
}

// BenchmarkView is what one change costs a controller that knows 10,000 tunnels of two gateways.
func BenchmarkView(b *testing.B) {
	f := loaded(b)
	c := &reportv1.Change{What: &reportv1.Change_Tunnels{Tunnels: &reportv1.TunnelCount{Gateway: "gateway-0", Node: "edge-1", TunnelId: idA}}}
	for i := 0; b.Loop(); i++ {
		c.GetTunnels().Count = int32(i % 3)
		f.apply("a", c, start)
		f.take()
		f.tunnel(idA)
	}
}

// BenchmarkTick is what a second costs it.
func BenchmarkTick(b *testing.B) {
	f := loaded(b)
	now := start
	for b.Loop() {
		now = now.Add(time.Second)
		f.tick(now)
	}
}

func loaded(b *testing.B) *fleet {
	b.Helper()
	h := NewHub(domain, newRules(), newWorld(b).log)
	for _, name := range []string{"gateway-0", "gateway-1"} {
		s := &session{subject: gatewayOf(name), end: func(error) {}}
		h.begin(s)
		if err := h.gatewayReport(s, snapshot(5000, 2)); err != nil {
			b.Fatal(err)
		}
	}
	for _, t := range snapshot(5000, 1).GetTunnels() {
		s := &session{subject: model.Subject{Role: model.RoleEdge, Node: t.GetNode(), ID: t.GetTunnelId()}, end: func(error) {}}
		h.begin(s)
		if err := h.edgeReport(s, &reportv1.EdgeReport{}); err != nil {
			b.Fatal(err)
		}
	}
	w, _, err := h.addWatcher()
	if err != nil {
		b.Fatal(err)
	}
	f := newFleet(defaultTimes)
	f.list([]string{"a"}, start)
	f.apply("a", &reportv1.Change{What: &reportv1.Change_Began{Began: timestamppb.New(start)}}, start)
	for _, change := range h.take(w) {
		f.apply("a", change, start)
	}
	f.apply("a", &reportv1.Change{What: &reportv1.Change_Synced{Synced: true}}, start)
	f.take()
	return f
}
