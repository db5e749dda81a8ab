package rollout

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"
)

// TestANewLeaderInTheRestWaitsUntilItKnowsTheFleet starts a leader in the second phase while an xds-server is not
// known. All that it has is an edge that rejects the next profile, which is too few to stop a rollout of 1,000 edges.
func TestANewLeaderInTheRestWaitsUntilItKnowsTheFleet(t *testing.T) {
	for edges, want := range map[int]Phase{1000: PhaseRest, 1: PhaseStopped} {
		w := newWorld(edges, 1, 1)
		w.record = &Record{Initial: old, Current: old, Next: newer, Phase: PhaseRest, Since: start}
		rejecting := Node{Name: "edge-0000", ID: "tunnel-0000"}
		w.breaks = func(n Node, w *world) {
			if n == rejecting {
				refuses(n, w)
			}
		}
		w.target(newer)
		all := w.in.Edges
		w.in.Known, w.in.Edges, w.in.Nodes = false, nil, map[Node]State{rejecting: {Profile: newer.ID(), Refusal: "x"}}
		w.frozen = true
		w.step()
		if w.record.Phase != PhaseRest {
			t.Fatalf("%d edges: before they are known it is %+v", edges, w.record)
		}
		w.in.Known, w.in.Edges, w.frozen = true, all, false
		w.run(time.Minute)
		if w.record.Phase != want {
			t.Errorf("%d edges: it is %+v, want %s", edges, w.record, want)
		}
	}
}

// TestEdgesThatDropTheirTunnelsInTurn has faults that are each too short to count, but of which there is always one.
func TestEdgesThatDropTheirTunnelsInTurn(t *testing.T) {
	t.Run("stop a first wave", func(t *testing.T) {
		w := newWorld(200, 1, 1)
		w.step()
		w.target(newer)
		w.breaks = func(n Node, w *world) {
			i := slices.IndexFunc(w.record.Nodes, func(m Member) bool { return m.Node == n })
			if i >= 0 && int(w.now.Sub(start)/(10*time.Second))%2 == i%2 {
				loses(n, w)
			}
		}
		w.run(13 * time.Minute)
		if w.record.Phase != PhaseStopped || !strings.Contains(w.record.Reason, "has 0 of 4 tunnels") {
			t.Errorf("it is %+v", w.record)
		}
	})
	t.Run("do not delay the rest of a large fleet", func(t *testing.T) {
		w := newWorld(300, 1, 1)
		w.record = &Record{Initial: old, Current: old, Next: newer, Phase: PhaseRest, Since: start}
		w.target(newer)
		w.breaks = func(n Node, w *world) {
			if n.Name == fmt.Sprintf("edge-%04d", int(w.now.Sub(start)/(10*time.Second))) {
				loses(n, w)
			}
		}
		w.run(3 * time.Minute)
		if w.record.Current != newer {
			t.Errorf("it is %+v", w.record)
		}
	})
}

// TestAChangedClockDoesNotEndAPhase sets the wall clock an hour forward, and back, in the middle of the first wave.
func TestAChangedClockDoesNotEndAPhase(t *testing.T) {
	for _, hours := range []int64{1, -1} {
		w, now := newWorld(3, 1, 1), time.Now()
		decide := func(now time.Time) {
			w.in.Record = w.record
			w.record = w.decider.Decide(w.in, now)
			w.in.Nodes = map[Node]State{}
			for _, m := range w.record.Nodes {
				w.in.Nodes[m.Node] = State{Profile: newer.ID(), Applied: true}
			}
		}
		decide(now)
		w.target(newer)
		decide(now.Add(time.Second))
		decide(jumped(now.Add(time.Minute), hours))
		if w.record.Phase != PhaseFirst {
			t.Errorf("after a minute and a jump of %d h it is %+v", hours, w.record)
		}
		decide(jumped(now.Add(2*time.Minute+time.Second), hours))
		if w.record.Phase != PhaseRest {
			t.Errorf("after two minutes and a jump of %d h it is %+v", hours, w.record)
		}
	}
}

// jumped returns a time whose wall clock was changed. Its monotonic clock reading is that of at.
func jumped(at time.Time, hours int64) time.Time {
	const secondsAt = 30 // in the first word of a time with a monotonic clock reading
	*(*uint64)(unsafe.Pointer(&at)) += uint64(hours*3600) << secondsAt
	return at
}
