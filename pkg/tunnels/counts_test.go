package tunnels

import (
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
)

func TestCountsFollowTunnels(t *testing.T) {
	b := newBed(t, t.TempDir())
	edge := model.EdgeRef{Node: "edge-1", ID: idA}
	check := func(wantEdge, wantID int) {
		t.Helper()
		b.poll(time.Now())
		if byEdge, byID, all := b.Counts(edge); byEdge != wantEdge || byID != wantID || all != wantID {
			t.Errorf("Counts: %d, %d and %d, want %d and %d", byEdge, byID, all, wantEdge, wantID)
		}
	}
	check(0, 0)
	b.write(t, setup(1, "edge-1"), setup(2, "edge-1"), setup(3, "edge-2"))
	check(2, 3)
	b.write(t, setup(1, "edge-1"), setup(2, "edge-2")) // a repeated event, and a key that now belongs to another edge
	check(1, 3)
	b.write(t, closed(1, "edge-1"), closed(2, "edge-2"), closed(3, "edge-2"))
	check(0, 0)
	if len(b.counts.edges)+len(b.counts.ids) != 0 {
		t.Errorf("counts of edges without tunnels are left: %+v", b.counts)
	}
}

// TestARepairCountsATunnelOnce: the repair removes a tunnel from its edge before its closing event arrives.
func TestARepairCountsATunnelOnce(t *testing.T) {
	b := newBed(t, t.TempDir())
	b.repairs = newRepairs(rules{workers: 2})
	b.write(t, setup(1, "edge-1"), setup(2, "edge-1"))
	b.poll(time.Now())
	for _, e := range b.live {
		b.part(e, time.Now())
		break
	}
	for i, closing := range []string{closed(1, "edge-1"), closed(2, "edge-1")} {
		b.write(t, closing)
		b.poll(time.Now())
		if byEdge, byID, _ := b.Counts(model.EdgeRef{Node: "edge-1", ID: idA}); byEdge != 1-i || byID != 1-i {
			t.Errorf("after %d closings: %d and %d tunnels", i+1, byEdge, byID)
		}
	}
}
