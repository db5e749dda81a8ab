package report_test

import (
	"fmt"
	"testing"
	"time"

	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// BenchmarkSnapshot sends 10,000 tunnels of 5,000 edges from a gateway that connects to the view of a controller, over
// TLS on this machine.
func BenchmarkSnapshot(b *testing.B) {
	w := newWorld(b)
	p := w.place(b)
	v := w.view(b, p.Address)
	s := gatewayOf("gateway-0")
	client := reportv1.NewReportClient(w.Dial(b, &s, p.Address))
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

// snapshot returns a gateway's report of some edges with some tunnels each.
func snapshot(edges, each int) *reportv1.GatewayReport {
	r := &reportv1.GatewayReport{Snapshot: true}
	for i := range edges {
		for j := range each {
			r.Tunnels = append(r.Tunnels, &reportv1.Tunnel{
				Key: fmt.Sprintf("198.51.100.1:%d>192.0.2.%d:443", i, j), Node: fmt.Sprintf("edge-%d", i),
				TunnelId: fmt.Sprintf("%024d", i%5000),
			})
		}
	}
	return r
}
