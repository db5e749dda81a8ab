package rollout

import (
	"testing"
	"time"
)

// TestTheSizeFollowsTheFleet: it grows at once, shrinks late and in steps, and does not depend on nodes that no
// xds-server reports for a while.
func TestTheSizeFollowsTheFleet(t *testing.T) {
	var d Decider
	record := &Record{Current: old, Since: start}
	now := start
	for _, step := range []struct {
		what    string
		nodes   int
		unknown bool // an xds-server has not reported
		after   time.Duration
		want    int
	}{
		{what: "nothing is known", unknown: true, nodes: 5, want: 0},
		{what: "no node is connected", want: 0},
		{what: "a few", nodes: 5, want: 100},
		{what: "exactly as many", nodes: 100, want: 100},
		{what: "one more", nodes: 101, want: 200},
		{what: "many more", nodes: 1_500, want: 1_600},
		{what: "half of them", nodes: 750, after: time.Hour, want: 1_600},
		{what: "far fewer", nodes: 300, want: 1_600},
		{what: "soon", nodes: 300, after: shrinkAfter - time.Second, want: 1_600},
		{what: "more in between", nodes: 700, after: time.Second, want: 1_600},
		{what: "fewer again", nodes: 300, after: time.Second, want: 1_600},
		{what: "for long enough", nodes: 300, after: shrinkAfter, want: 800},
		{what: "all xds-servers restart", unknown: true, after: time.Second, want: 800},
		{what: "and again for long enough", nodes: 150, after: time.Second, want: 800},
		{what: "a step", nodes: 150, after: shrinkAfter, want: 400},
		{what: "another step", nodes: 150, after: time.Second, want: 200},
		{what: "small enough", nodes: 150, after: time.Hour, want: 200},
	} {
		now = now.Add(step.after)
		in := Input{Record: record, Observation: Observation{
			Known: !step.unknown, Targets: []Profile{old}, Total: step.nodes,
		}}
		idle := d.Idle(in, now)
		next := d.Decide(in, now)
		if next.Size != step.want {
			t.Errorf("%s: the size is %d, want %d", step.what, next.Size, step.want)
		}
		if idle != (next == record) {
			t.Errorf("%s: idle is %t", step.what, idle)
		}
		record = next
	}
}

// TestARolloutKeepsTheSize: the records of all phases have it, and lanes that go with a growing fleet are no fault.
func TestARolloutKeepsTheSize(t *testing.T) {
	lanes := func(version string) Profile {
		return Settings{
			Version: version, Public: "gw.example.com:443", Control: "xds.example.com:18000", Workers: 2, Lanes: 3,
		}.Profile()
	}
	for _, tc := range []struct {
		has   int // tunnels of each edge after the fleet has grown, of 36
		stops bool
	}{{has: 6}, {has: 4}, {has: 3, stops: true}} {
		w := newWorld(3, 1, 1)
		for n := range w.healthy {
			w.healthy[n] = Edge{Connected: true, Tunnels: map[string]int{"gateway-0": 36}}
			w.in.Edges[n] = w.healthy[n]
		}
		w.target(lanes("0.1"))
		w.run(3 * time.Second)
		w.target(lanes("0.2"))
		w.run(3 * time.Second)
		if w.record.Phase != PhaseFirst || w.record.Size != smallest {
			t.Fatalf("it is %+v", w.record)
		}
		for n := range w.healthy {
			w.healthy[n] = Edge{Connected: true, Tunnels: map[string]int{"gateway-0": tc.has}}
		}
		w.run(5 * time.Minute)
		if stopped := w.record.Phase == PhaseStopped; stopped != tc.stops {
			t.Errorf("with %d of 36 tunnels it is %+v", tc.has, w.record)
		}
		for _, r := range w.written[1:] {
			if r.Size != smallest {
				t.Errorf("a record has lost the size: %+v", r)
			}
		}
	}
}
