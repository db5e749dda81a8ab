package hub

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// TestOneTunnelUsesNoCapacityOfAnother has one tunnel report ever more edges: absent ones make room for its own, not
// for others.
func TestOneTunnelUsesNoCapacityOfAnother(t *testing.T) {
	h := New("tunnels.example.com", nil, slog.New(slog.DiscardHandler))
	victim := pair{"edge", idB}
	h.addEdge(victim).since = time.Now().Add(-time.Hour) // away for longest of all
	for i := range 3 * maxTunnelEdges {
		e := h.addEdge(pair{fmt.Sprint("edge-", i), idA})
		if e == nil {
			t.Fatalf("number %d has no place", i)
		}
		e.since = time.Now()
	}
	if len(h.edges) != maxTunnelEdges+1 || h.ofTunnel[idA] != maxTunnelEdges || h.edges[victim] == nil {
		t.Errorf("%d edges are remembered, %d of one tunnel", len(h.edges), h.ofTunnel[idA])
	}
	for _, e := range h.edges {
		e.connected = true
	}
	if h.addEdge(pair{"one-more", idA}) != nil {
		t.Error("a tunnel all of whose edges are connected has one more than it may have")
	}
	if h.addEdge(pair{"one-more", idB}) == nil {
		t.Error("another tunnel has no place")
	}
	for key := range h.edges {
		h.dropEdge(key)
	}
	if len(h.ofTunnel) > 0 {
		t.Errorf("tunnels without edges are remembered: %v", h.ofTunnel)
	}
}

// TestAGatewayWithAllTunnelsReportsChanges: at the maximum, one tunnel begins when another one has ended, and an edge
// gets other connections. Only one more tunnel is rejected.
func TestAGatewayWithAllTunnelsReportsChanges(t *testing.T) {
	h := New(domain, newRules(), newWorld(t).Log)
	s := &session{subject: gatewayOf("gateway-0"), end: func(error) {}}
	h.begin(s)
	all := snapshot(report.MaxTunnels, 1)
	if err := h.gatewayReport(s, all); err != nil {
		t.Fatal(err)
	}
	first := all.GetTunnels()[0]
	opened := func(key string) []*reportv1.Tunnel {
		return []*reportv1.Tunnel{{Key: key, Node: first.GetNode(), TunnelId: first.GetTunnelId()}}
	}
	for _, step := range []struct {
		what   string
		report *reportv1.GatewayReport
		want   codes.Code
	}{
		{"one instead of another", &reportv1.GatewayReport{
			Tunnels: opened("new"), Closed: []string{first.GetKey()},
		}, codes.OK},
		{"some again", &reportv1.GatewayReport{Tunnels: all.GetTunnels()[1:100]}, codes.OK},
		{"connections", &reportv1.GatewayReport{Connections: []*reportv1.Connections{
			{Node: first.GetNode(), TunnelId: first.GetTunnelId(), Count: 1},
		}}, codes.OK},
		{"one more", &reportv1.GatewayReport{Tunnels: opened("more")}, codes.ResourceExhausted},
		{"one more that does not replace", &reportv1.GatewayReport{
			Tunnels: opened("more"), Closed: []string{"unknown"},
		}, codes.ResourceExhausted},
	} {
		if err := h.gatewayReport(s, step.report); status.Code(err) != step.want {
			t.Errorf("%s: %v", step.what, err)
		}
	}
	if n := len(h.gateways["gateway-0"].tunnels); n != report.MaxTunnels {
		t.Errorf("it has %d tunnels", n)
	}
}

func TestTheLinesOfOneTunnelAreBounded(t *testing.T) {
	text := &lines{}
	h := New("tunnels.example.com", nil, slog.New(slog.NewTextHandler(text, nil)))
	for i := range 10_000 {
		h.note(
			"reporter disconnected",
			&session{subject: model.Subject{Role: model.RoleEdge, Node: fmt.Sprint("edge-", i), ID: idA}},
		)
	}
	if text.n < linesRate.Burst || text.n > linesRate.Burst+100 {
		t.Errorf("%d lines", text.n)
	}
}

// lines counts what is logged.
type lines struct{ n int }

func (l *lines) Write(p []byte) (int, error) { l.n++; return len(p), nil }
