package report_test

import (
	"path/filepath"
	"testing"
)

func TestAWorkerWithoutTunnelIsShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.place(t)
	v := w.view(t, p.Address)
	s := gatewayOf("gateway-0")
	g := &gatewayAgent{
		path: filepath.Join(t.TempDir(), "tunnels.log"), conn: w.Dial(t, &s, p.Address), log: w.Log,
		workers: 2,
	}
	g.eventOf(t, 0, "tunnel_setup", 1, "edge-1", idA)
	g.eventOf(t, 0, "tunnel_setup", 2, "edge-1", idA)
	g.eventOf(t, 0, "tunnel_setup", 3, "edge-1", idA)
	g.start(t)
	v.shows(t, idA, "known gateway-0; edge-1 gateway-0=3-1")
	g.eventOf(t, 1, "tunnel_setup", 4, "edge-1", idA)
	v.shows(t, idA, "known gateway-0; edge-1 gateway-0=4")
	g.eventOf(t, 1, "tunnel_closed", 4, "edge-1", idA)
	v.shows(t, idA, "known gateway-0; edge-1 gateway-0=3-1")

	// Another agent sends its whole state.
	g.stop()
	g.start(t)
	g.eventOf(t, 1, "tunnel_setup", 5, "edge-1", idA)
	v.shows(t, idA, "known gateway-0; edge-1 gateway-0=4")
}
