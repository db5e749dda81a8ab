package hub

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
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
