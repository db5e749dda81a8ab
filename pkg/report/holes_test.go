package report

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/pkg/tunnels"
)

func TestAWorkerWithoutTunnelIsShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.place(t)
	v := w.view(t, p.address)
	s := gatewayOf("gateway-0")
	g := &gatewayAgent{path: filepath.Join(t.TempDir(), "tunnels.log"), conn: w.dial(t, &s, p.address), log: w.log, workers: 2}
	g.eventOf(t, 0, "tunnel_setup", 1, "edge-1", idA)
	g.eventOf(t, 0, "tunnel_setup", 2, "edge-1", idA)
	g.eventOf(t, 0, "tunnel_setup", 3, "edge-1", idA)
	g.start(t)
	v.shows(t, idA, "known gateway-0; edge-1 gateway-0=3-1")
	g.eventOf(t, 1, "tunnel_setup", 4, "edge-1", idA)
	v.shows(t, idA, "known gateway-0; edge-1 gateway-0=4")
	g.eventOf(t, 1, "tunnel_closed", 4, "edge-1", idA)
	v.shows(t, idA, "known gateway-0; edge-1 gateway-0=3-1")

	// Another agent says all anew.
	g.stop()
	g.start(t)
	g.eventOf(t, 1, "tunnel_setup", 5, "edge-1", idA)
	v.shows(t, idA, "known gateway-0; edge-1 gateway-0=4")
}

func TestHolesAreToldOnce(t *testing.T) {
	hole := func(node string, workers int) tunnels.Hole {
		return tunnels.Hole{EdgeRef: model.EdgeRef{Node: node, ID: idA}, Workers: workers}
	}
	told := map[model.EdgeRef]int{}
	for _, step := range []struct{ now, want []tunnels.Hole }{
		{},
		{now: []tunnels.Hole{hole("edge-1", 1)}, want: []tunnels.Hole{hole("edge-1", 1)}},
		{now: []tunnels.Hole{hole("edge-1", 1)}},
		{now: []tunnels.Hole{hole("edge-1", 2)}, want: []tunnels.Hole{hole("edge-1", 2)}},
		{now: []tunnels.Hole{hole("edge-2", 1)}, want: []tunnels.Hole{hole("edge-2", 1), hole("edge-1", 0)}},
		{want: []tunnels.Hole{hole("edge-2", 0)}},
		{},
	} {
		var want []*reportv1.Hole
		for _, h := range step.want {
			want = append(want, &reportv1.Hole{Node: h.Node, TunnelId: h.ID, Workers: int32(h.Workers)})
		}
		if diff := cmp.Diff(want, holes(step.now, told), protocmp.Transform()); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
}
