package view

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// BenchmarkView is the cost of one change for a controller with 10,000 tunnels of two gateways.
func BenchmarkView(b *testing.B) {
	f := loaded(b)
	c := &reportv1.Change{What: &reportv1.Change_Tunnels{Tunnels: &reportv1.TunnelCount{
		Gateway: "gateway-0",
		Node:    "edge-1", TunnelId: fmt.Sprintf("%024d", 1),
	}}}
	for i := 0; b.Loop(); i++ {
		c.GetTunnels().Count = int32(i % 3)
		f.apply("a", c, start)
		f.take()
		f.tunnel(fmt.Sprintf("%024d", 1))
	}
}

// BenchmarkTick is the cost of one second for it.
func BenchmarkTick(b *testing.B) {
	f := loaded(b)
	now := start
	for b.Loop() {
		now = now.Add(time.Second)
		f.tick(now)
	}
}

// BenchmarkFleet is the cost, for a controller with 10,000 tunnels of two gateways, of one decision about a rollout.
// Without nodes it is that of a second without a rollout. The view is locked meanwhile.
func BenchmarkFleet(b *testing.B) {
	v := &View{fleet: loaded(b)}
	for _, nodes := range []bool{true, false} {
		b.Run(fmt.Sprintf("nodes=%v", nodes), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				v.Fleet(nodes)
			}
		})
	}
}

func loaded(b *testing.B) *fleet {
	b.Helper()
	const edges = 5000
	f := newFleet(report.DefaultTimes)
	f.list([]string{"a"}, start)
	f.apply("a", &reportv1.Change{What: &reportv1.Change_Began{Began: timestamppb.New(start)}}, start)
	for i := range edges {
		node, id := fmt.Sprintf("edge-%d", i), fmt.Sprintf("%024d", i)
		for _, gateway := range []string{"gateway-0", "gateway-1"} {
			count := &reportv1.TunnelCount{Gateway: gateway, Node: node, TunnelId: id, Count: 2}
			f.apply("a", &reportv1.Change{What: &reportv1.Change_Tunnels{Tunnels: count}}, start)
		}
		edge := &reportv1.EdgeState{
			Node: node, TunnelId: id, Connected: true, Since: timestamppb.New(start), Report: &reportv1.EdgeReport{},
		}
		f.apply("a", &reportv1.Change{What: &reportv1.Change_Edge{Edge: edge}}, start)
	}
	for _, gateway := range []string{"gateway-0", "gateway-1"} {
		state := &reportv1.GatewayState{Name: gateway, Connected: true, Since: timestamppb.New(start)}
		f.apply("a", &reportv1.Change{What: &reportv1.Change_Gateway{Gateway: state}}, start)
	}
	f.apply("a", &reportv1.Change{What: &reportv1.Change_Synced{Synced: true}}, start)
	f.take()
	return f
}
