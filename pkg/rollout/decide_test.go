package rollout

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
)

var (
	start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	old   = Settings{Version: "0.1", Public: "gw.example.com:443", Control: "xds.example.com:18000", Workers: 2}.Profile()
	newer = Settings{Version: "0.2", Public: "gw.example.com:443", Control: "xds.example.com:18000", Workers: 2}.Profile()
)

// world is a fleet whose nodes behave according to their profile.
type world struct {
	decider Decider
	now     time.Time
	record  *Record
	in      Input
	breaks  func(Node, *world) // changes a node that is served newer; nil: it has no fault
	reached map[Node]bool      // nodes that have ever been served newer
	gone    map[Node]bool
	frozen  bool          // the xds-servers do not read the record
	mute    int           // nodes that do not answer
	healthy map[Node]Edge // the edges with the previous profile
	written []Record      // every record that differs from the previous one
}

func newWorld(edges, perTunnel, gateways int) *world {
	w := &world{now: start, decider: Decider{Soak: 2 * time.Minute}, reached: map[Node]bool{}, gone: map[Node]bool{}}
	w.in = Input{Gone: func(n Node) bool { return w.gone[n] }}
	w.in.Observation = Observation{
		Known:    true,
		Targets:  []Profile{old, old},
		Gateways: map[string]Gateway{},
		Edges:    map[Node]Edge{},
		Nodes:    map[Node]State{},
	}
	tunnels := map[string]int{}
	for i := range gateways {
		name := fmt.Sprintf("gateway-%d", i)
		w.in.Gateways[name], tunnels[name] = Gateway{Connected: true, Ready: true}, 4
	}
	for i := range edges {
		n := Node{Name: fmt.Sprintf("edge-%04d", i), ID: fmt.Sprintf("tunnel-%04d", i/perTunnel)}
		w.in.Edges[n] = Edge{Connected: true, Tunnels: maps.Clone(tunnels)}
	}
	w.healthy = maps.Clone(w.in.Edges)
	return w
}

// step decides once, and applies the decision to the fleet.
func (w *world) step() {
	w.now = w.now.Add(time.Second)
	w.in.Record = w.record
	idle := w.decider.Idle(Input{
		Record: w.in.Record, Retry: w.in.Retry,
		Observation: Observation{Known: w.in.Known, Targets: w.in.Targets, Total: w.in.Total},
	}, w.now)
	next := w.decider.Decide(w.in, w.now)
	if idle && next != w.record {
		panic(fmt.Sprintf("it was idle at %+v, and decided %+v", w.record, next))
	}
	if next != w.record && (w.record == nil || !next.Equal(*w.record)) {
		w.written = append(w.written, *next)
	}
	if w.record = next; next == nil || w.frozen {
		return
	}
	w.in.Answered, w.in.Total = -w.mute, 0
	nodes := slices.Collect(maps.Keys(w.healthy))
	for name := range w.in.Gateways {
		nodes = append(nodes, Node{Name: name})
	}
	for _, n := range nodes {
		w.in.Total++
		w.in.Answered++
		profile := next.Of(n)
		if n.ID != "" {
			w.in.Edges[n] = Edge{Connected: true, Tunnels: maps.Clone(w.healthy[n].Tunnels)}
		}
		if delete(w.in.Nodes, n); next.IsMember(n) {
			w.in.Nodes[n] = State{Profile: profile.ID(), Applied: true}
		}
		if profile == newer {
			w.reached[n] = true
			if w.breaks != nil {
				w.breaks(n, w)
			}
		}
	}
}

func (w *world) run(d time.Duration) {
	for range int(d / time.Second) {
		w.step()
	}
}

// target configures the xds-servers for a profile.
func (w *world) target(p Profile) { w.in.Targets = []Profile{p, p} }

// The faults that a profile causes in nodes.
func loses(n Node, w *world) {
	if n.ID != "" {
		w.in.Edges[n] = Edge{Connected: true, Tunnels: map[string]int{}}
	}
}

func refuses(n Node, w *world) {
	w.in.Nodes[n] = State{Profile: newer.ID(), Refusal: "no such field"}
}

func troubled(n Node, w *world) {
	if n.ID != "" {
		w.in.Edges[n] = Edge{Connected: true, Tunnels: w.in.Edges[n].Tunnels, Trouble: "Envoy: exit status 1"}
	}
}

func disconnects(n Node, w *world) {
	if n.ID != "" {
		w.in.Edges[n] = Edge{Tunnels: w.in.Edges[n].Tunnels}
	}
}

func silent(n Node, w *world) { w.in.Nodes[n] = State{Profile: newer.ID()} }

func hangs(n Node, w *world) {
	if n.ID == "" {
		w.in.Gateways[n.Name] = Gateway{Connected: true, Ready: true, Hang: "worker_0"}
	}
}

func TestANewInstallationHasNoRollout(t *testing.T) {
	w := newWorld(10, 1, 2)
	w.in.Known = false
	w.run(time.Minute)
	if w.record != nil {
		t.Fatalf("decided %+v though nothing is known", w.record)
	}
	w.in.Known = true
	w.step()
	if w.record.Current != old || w.record.Phase != PhaseNone {
		t.Errorf("recorded %+v", w.record)
	}
}

func TestAGoodChangeReachesTheFirstWaveAndThenTheRest(t *testing.T) {
	w := newWorld(1000, 2, 3)
	w.step()
	w.target(newer)
	w.run(2 * time.Minute)
	if w.record.Phase != PhaseFirst || len(w.reached) != 11 { // 1 % of 1,000 edges, and one gateway
		t.Fatalf("phase %q, reached %d nodes", w.record.Phase, len(w.reached))
	}
	w.run(time.Minute)
	if w.record.Phase != PhaseRest || len(w.reached) != 1003 {
		t.Fatalf("phase %q, reached %d nodes", w.record.Phase, len(w.reached))
	}
	w.run(2 * time.Minute)
	if w.record.Initial != old || w.record.Current != newer || w.record.Phase != PhaseNone || w.record.Next != "" {
		t.Errorf("after all: %+v", w.record)
	}
	if len(w.written) != 4 {
		t.Errorf("%d records were written: %+v", len(w.written), w.written)
	}
}

// TestABadChangeReachesOnlyTheFirstWave breaks the nodes that receive a change with each kind of fault, in a fleet of
// 1,000 edges and in a small one.
func TestABadChangeReachesOnlyTheFirstWave(t *testing.T) {
	for name, breaks := range map[string]func(Node, *world){
		"has 0 of 4 tunnels": loses, "refuses its configuration: no such field": refuses, "reports trouble: Envoy": troubled,
		"its agent is not connected": disconnects, "does not answer to": silent, "its Envoy does not answer": hangs,
	} {
		for _, edges := range []int{3, 1000} {
			t.Run(fmt.Sprintf("%s, %d edges", name, edges), func(t *testing.T) {
				w := newWorld(edges, 1, 2)
				w.step()
				w.breaks = breaks
				w.target(newer)
				w.run(6 * time.Minute)
				if most := max(1, edges/share) + 1; len(w.reached) > most || len(w.reached) == 0 {
					t.Errorf("it reached %d nodes, the first wave has %d", len(w.reached), most)
				}
				if w.record.Phase != PhaseStopped || !strings.Contains(w.record.Reason, name) {
					t.Fatalf("it has not stopped because of that: %+v", w.record)
				}
				for n := range w.healthy {
					if w.record.Of(n) != old {
						t.Errorf("%s is served the next profile", n)
					}
				}
				if stopped := w.record.Since.Sub(start); stopped > time.Minute {
					t.Errorf("it was stopped after %v", stopped)
				}
			})
		}
	}
}

// TestALateFaultStopsTheRollout breaks 2 % of the edges. None of them is in the first wave.
func TestALateFaultStopsTheRollout(t *testing.T) {
	for faulty, stops := range map[int]bool{5: false, 20: true} {
		t.Run(fmt.Sprintf("%d edges", faulty), func(t *testing.T) {
			w := newWorld(1000, 1, 2)
			w.step()
			w.target(newer)
			w.step()
			broken := map[Node]bool{}
			for _, n := range slices.SortedFunc(maps.Keys(w.healthy), Node.Compare) {
				if len(broken) < faulty && !w.record.IsMember(n) {
					broken[n] = true
				}
			}
			w.breaks = func(n Node, w *world) {
				if broken[n] {
					loses(n, w)
				}
			}
			w.run(10 * time.Minute)
			switch {
			case stops && (w.record.Phase != PhaseStopped || w.record.Of(Node{Name: "gateway-0"}) != old):
				t.Errorf("it has not stopped: %+v", w.record)
			case !stops && w.record.Current != newer && w.record.Phase != PhaseRest:
				t.Errorf("it has stopped: %+v", w.record)
			}
		})
	}
}

func TestTheFirstWave(t *testing.T) {
	t.Run("prefers tunnels with several edges, and takes one of each", func(t *testing.T) {
		w := newWorld(1000, 1, 1)
		for i := range 10 { // ten tunnels get a second edge
			n := Node{Name: fmt.Sprintf("second-%d", i), ID: fmt.Sprintf("tunnel-%04d", i*7)}
			w.in.Edges[n] = Edge{Connected: true, Tunnels: map[string]int{"gateway-0": 4}}
		}
		ids := map[string]bool{}
		for _, m := range choose(w.in.Observation, start) {
			ids[m.ID] = true
			if m.ID == "" {
				t.Error("the only gateway is in it")
			}
		}
		if len(ids) != 10 {
			t.Fatalf("of %d tunnels", len(ids))
		}
		for id := range ids {
			n := 0
			for edge := range w.in.Edges {
				if edge.ID == id {
					n++
				}
			}
			if n != 2 {
				t.Errorf("%s has %d edges", id, n)
			}
		}
	})
	t.Run("takes no node with trouble", func(t *testing.T) {
		w := newWorld(4, 1, 2)
		healthy := Node{Name: "edge-0002", ID: "tunnel-0002"}
		for n := range w.in.Edges {
			switch n.Name {
			case "edge-0000":
				w.in.Edges[n] = Edge{Connected: true, Trouble: "x", Tunnels: w.in.Edges[n].Tunnels}
			case "edge-0001":
				w.in.Edges[n] = Edge{Connected: true}
			case "edge-0003":
				w.in.Nodes[n] = State{Refusal: "x"}
			}
		}
		w.in.Gateways["gateway-1"] = Gateway{Connected: true}
		for i := range 50 {
			got := choose(w.in.Observation, start.Add(time.Duration(i)*time.Second))
			if len(got) != 2 || got[0].Name != "gateway-0" || got[1].Node != healthy {
				t.Fatalf("it is %+v", got)
			}
		}
	})
	t.Run("is another one later", func(t *testing.T) {
		w, seen := newWorld(100, 1, 1), map[string]bool{}
		for i := range 50 {
			seen[choose(w.in.Observation, start.Add(time.Duration(i)*time.Second))[0].Name] = true
		}
		if len(seen) < 20 {
			t.Errorf("50 waves of one edge met %d edges", len(seen))
		}
	})
}

func TestStepsOfARollout(t *testing.T) {
	third := Settings{Version: "0.3", Workers: 2}.Profile()
	begun := func(t *testing.T) *world {
		w := newWorld(120, 1, 2)
		w.step()
		w.target(newer)
		w.run(10 * time.Second)
		if w.record.Phase != PhaseFirst {
			t.Fatalf("it is %+v", w.record)
		}
		return w
	}
	stopped := func(t *testing.T) *world {
		w := begun(t)
		w.breaks = refuses
		w.run(time.Minute)
		if w.record.Phase != PhaseStopped {
			t.Fatalf("it is %+v", w.record)
		}
		w.breaks = nil
		return w
	}
	for name, tc := range map[string]struct {
		begin func(*testing.T) *world
		do    func(*world)
		after time.Duration
		want  func(*world) bool
	}{
		"does not begin while xds-servers differ": {
			func(*testing.T) *world { w := newWorld(3, 1, 1); w.step(); return w },
			func(w *world) { w.in.Targets = []Profile{newer, old} }, time.Hour,
			func(w *world) bool { return w.record.Phase == PhaseNone && w.record.Current == old },
		},
		"does not begin while one announces nothing": {
			func(*testing.T) *world { w := newWorld(3, 1, 1); w.step(); return w },
			func(w *world) { w.in.Targets = []Profile{newer, ""} }, time.Hour,
			func(w *world) bool { return w.record.Phase == PhaseNone && w.record.Current == old },
		},
		"ends when the servers go back": {
			begun, func(w *world) { w.target(old) }, time.Second,
			func(w *world) bool { return w.record.Phase == PhaseNone && w.record.Current == old },
		},
		"begins again with another target": {
			begun, func(w *world) { w.run(time.Minute); w.target(third) }, 90 * time.Second,
			func(w *world) bool {
				return w.record.Phase == PhaseFirst && w.record.Next == third && w.record.Current == old
			},
		},
		"neither stops nor continues while an xds-server is unknown": {
			begun, func(w *world) { w.in.Known, w.frozen = false, true; clear(w.in.Edges); clear(w.in.Gateways) }, time.Hour,
			func(w *world) bool { return w.record.Phase == PhaseFirst },
		},
		"stops for a refusal though an xds-server is unknown": {
			begun, func(w *world) { w.in.Known = false; w.breaks = refuses }, time.Minute,
			func(w *world) bool { return w.record.Phase == PhaseStopped },
		},
		"waits for nodes that no xds-server serves": {
			begun, func(w *world) { w.frozen = true; clear(w.in.Nodes) }, 11 * time.Minute,
			func(w *world) bool { return w.record.Phase == PhaseFirst },
		},
		"continues when they are served": {
			begun, func(w *world) {
				w.frozen = true
				clear(w.in.Nodes)
				w.run(11 * time.Minute)
				w.frozen = false
			}, 5 * time.Minute,
			func(w *world) bool { return w.record.Phase == PhaseNone && w.record.Current == newer },
		},
		"stops if an edge of the first wave is never served": {
			begun, func(w *world) {
				m := w.record.Nodes[len(w.record.Nodes)-1].Node
				w.breaks = func(n Node, w *world) {
					if n == m {
						delete(w.in.Nodes, n)
					}
				}
			}, 13 * time.Minute,
			func(w *world) bool {
				return w.record.Phase == PhaseStopped && strings.HasPrefix(w.record.Reason, "edge edge-") &&
					strings.Contains(w.record.Reason, "has not been sent its configuration")
			},
		},
		"is not tried again by itself": {
			stopped, func(*world) {}, time.Hour,
			func(w *world) bool { return w.record.Phase == PhaseStopped },
		},
		"is tried again once for each value of the annotation": {
			stopped, func(w *world) { w.in.Retry = "1" }, time.Second,
			func(w *world) bool {
				return w.record.Phase == PhaseFirst && w.record.Reason == "" && w.record.Retried == "1"
			},
		},
		"is not tried again when the annotation is removed": {
			func(t *testing.T) *world {
				w := begun(t)
				w.in.Retry = "1"
				w.run(10 * time.Second)
				w.breaks = refuses
				w.run(time.Minute)
				w.breaks = nil
				return w
			}, func(w *world) { w.in.Retry = "" }, time.Minute,
			func(w *world) bool { return w.record.Phase == PhaseStopped && w.record.Retried == "1" },
		},
		"is tried again with another target": {
			stopped, func(w *world) { w.target(third) }, time.Second,
			func(w *world) bool { return w.record.Phase == PhaseFirst && w.record.Next == third },
		},
		"applies at once from stopped": {
			stopped, func(w *world) { w.decider.Immediate = true }, time.Second,
			func(w *world) bool { return w.record.Phase == PhaseNone && w.record.Current == newer },
		},
		"applies at once what comes": {
			func(*testing.T) *world { w := newWorld(120, 1, 2); w.decider.Immediate = true; w.step(); return w },
			func(w *world) { w.target(newer) }, time.Second,
			func(w *world) bool { return w.record.Phase == PhaseNone && w.record.Current == newer },
		},
		"a redial is no loss": {
			begun, func(w *world) { w.breaks = loses; w.run(20 * time.Second); w.breaks = nil }, 5 * time.Minute,
			func(w *world) bool { return w.record.Phase == PhaseNone && w.record.Current == newer },
		},
		"a gateway that is replaced delays it and does not stop it": {
			begun, func(w *world) { w.in.Gateways["gateway-0"], w.in.Gateways["gateway-1"] = Gateway{}, Gateway{} },
			11 * time.Minute, func(w *world) bool { return w.record.Phase == PhaseFirst },
		},
		"a gateway that does not come back stops it": {
			begun, func(w *world) { delete(w.in.Gateways, "gateway-0"); delete(w.in.Gateways, "gateway-1") },
			13 * time.Minute, func(w *world) bool {
				return w.record.Phase == PhaseStopped && strings.Contains(w.record.Reason, "its agent is not connected")
			},
		},
		"an edge that does not answer does not keep it from its end": {
			func(t *testing.T) *world { w := begun(t); w.mute = 1; return w }, func(*world) {}, 15 * time.Minute,
			func(w *world) bool {
				return w.record.Current == newer && strings.Contains(w.record.Reason, "1 of 122 nodes have not answered")
			},
		},
		"an edge whose tunnel has ended is no fault": {
			begun, func(w *world) {
				m := w.record.Nodes[len(w.record.Nodes)-1].Node
				w.gone[m] = true
				delete(w.healthy, m)
				w.in.Edges[m] = Edge{}
			}, 5 * time.Minute,
			func(w *world) bool { return w.record.Current == newer },
		},
		"a new leader continues from the record": {
			begun, func(w *world) { w.run(100 * time.Second); w.decider = Decider{Soak: 2 * time.Minute} }, 100 * time.Second,
			func(w *world) bool { return w.record.Phase == PhaseFirst }, // it observes the phase for the whole time again
		},
		"a new leader in the rest stops for refusals": {
			begun, func(w *world) {
				w.run(130 * time.Second)
				w.decider, w.breaks = Decider{Soak: 2 * time.Minute}, refuses
			}, 10 * time.Second,
			func(w *world) bool { return w.record.Phase == PhaseStopped },
		},
		"an edge that rejected its configuration before does not stop it": {
			begun, func(w *world) {
				m := Node{Name: "edge-0001", ID: "tunnel-0001"}
				w.in.Nodes[m] = State{Profile: old.ID(), Refusal: "as ever"}
				w.breaks = func(n Node, w *world) {
					if n == m {
						refuses(n, w)
					}
				}
				for w.record.Phase == PhaseFirst {
					w.step()
					w.in.Nodes[m] = State{Profile: w.record.Of(m).ID(), Refusal: "as ever"}
				}
			}, 10 * time.Minute,
			func(w *world) bool { return w.record.Current == newer },
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := tc.begin(t)
			tc.do(w)
			w.run(tc.after)
			if !tc.want(w) {
				t.Errorf("it is %+v", w.record)
			}
		})
	}
}

// TestFewerWorkersNeedFewerTunnels changes the number of workers: an edge has tunnels for each worker of a gateway.
func TestFewerWorkersNeedFewerTunnels(t *testing.T) {
	for has, stops := range map[int]bool{2: false, 1: true} {
		w := newWorld(3, 1, 1)
		w.step()
		one := Settings{Version: "0.1", Public: "gw.example.com:443", Control: "xds.example.com:18000", Workers: 1}.Profile()
		w.target(one)
		w.step()
		for n := range w.healthy {
			w.healthy[n] = Edge{Connected: true, Tunnels: map[string]int{"gateway-0": has}}
		}
		w.run(time.Minute)
		if got := w.record.Phase == PhaseStopped; got != stops {
			t.Errorf("with %d of 4 tunnels it is %+v", has, w.record)
		}
	}
}

// TestAnAddedGatewayStopsNoRollout: an edge then has its tunnels to other gateways, and to as many.
func TestAnAddedGatewayStopsNoRollout(t *testing.T) {
	for name, tc := range map[string]struct {
		tunnels map[string]int
		stops   bool
	}{
		"it takes the place of another one":            {map[string]int{"gateway-0": 4, "gateway-2": 4}, false},
		"the edge has fewer tunnels to one that stays": {map[string]int{"gateway-0": 1, "gateway-2": 4}, true},
		"the edge has not dialled it":                  {map[string]int{"gateway-0": 4}, true},
	} {
		w := newWorld(3, 1, 2)
		w.step()
		w.target(newer)
		w.step()
		w.in.Gateways["gateway-2"] = Gateway{Connected: true, Ready: true}
		for n := range w.healthy {
			w.healthy[n] = Edge{Connected: true, Tunnels: tc.tunnels}
		}
		w.run(10 * time.Minute)
		if got := w.record.Phase == PhaseStopped; got != tc.stops {
			t.Errorf("%s: it is %+v", name, w.record)
		}
	}
}

// TestNoFaultReachesMoreThanTheFirstWave checks the promise itself, with random fleets and random faults.
func TestNoFaultReachesMoreThanTheFirstWave(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	faults := []func(Node, *world){loses, refuses, troubled, disconnects, silent}
	for range 60 {
		edges, gateways := 1+r.IntN(150), 1+r.IntN(4)
		w := newWorld(edges, 1+r.IntN(3), gateways)
		w.step()
		w.breaks = faults[r.IntN(len(faults))]
		w.target(newer)
		for range 400 {
			w.in.Known = r.IntN(10) > 0
			if r.IntN(200) == 0 {
				w.decider = Decider{Soak: 2 * time.Minute}
			}
			w.step()
		}
		waves := 0
		for _, record := range w.written {
			if record.Phase == PhaseRest {
				t.Fatalf("%d edges, %d gateways: it reached all: %+v", edges, gateways, w.written)
			}
			waves += len(record.Nodes)
		}
		if len(w.reached) > waves || len(w.reached) == 0 {
			t.Fatalf(
				"%d edges, %d gateways: it reached %d nodes, and the first wave has %d", edges, gateways, len(w.reached), waves,
			)
		}
	}
}

// TestANodeWithoutTunnelsIsNotAbsent: the Envoy beside an apiserver never has any. While its agent is connected, what
// it does counts; later, it may have ended for good.
func TestANodeWithoutTunnelsIsNotAbsent(t *testing.T) {
	egress := Node{Name: "edge-egress", ID: "egress"}
	for name, tc := range map[string]struct {
		do    func(*world)
		stops bool
	}{
		"it rejects the profile": {do: func(w *world) {
			w.breaks = func(n Node, w *world) {
				if n == egress {
					refuses(n, w)
				}
			}
		}, stops: true},
		"its agent has ended": {do: func(w *world) {
			delete(w.healthy, egress)
			w.in.Edges[egress] = Edge{}
		}},
		"it has no fault": {do: func(*world) {}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(10, 1, 1)
			w.in.Edges[egress], w.healthy[egress] = Edge{Connected: true}, Edge{Connected: true}
			w.step()
			w.target(newer)
			w.step()
			w.gone[egress] = true // its Tunnel has ended, or it is revoked
			tc.do(w)
			w.run(10 * time.Minute)
			if got := w.record.Phase == PhaseStopped; got != tc.stops || !got && w.record.Current != newer {
				t.Errorf("it is %+v", w.record)
			}
		})
	}
}

// TestForwardingIsRolledOutBeforeFewerTunnels: in a first wave, a gateway that forwards no clients has no tunnel of an
// edge that already dials fewer gateways.
func TestForwardingIsRolledOutBeforeFewerTunnels(t *testing.T) {
	const gateways = 3
	of := func(perTunnel int) Profile { return Settings{Version: "0.1", PerTunnel: perTunnel}.Profile() }
	for _, tc := range []struct {
		from, to int
		want     Phase
	}{
		{0, 2, PhaseStopped},
		{2, 0, PhaseStopped},
		{0, gateways, PhaseNone},
		{gateways, 0, PhaseNone},
		{0, model.MaxGateways, PhaseNone},
		{model.MaxGateways, 0, PhaseNone},
		{model.MaxGateways, 2, PhaseNone},
		{2, 3, PhaseNone},
	} {
		w := newWorld(10, 3, gateways)
		w.target(of(tc.from))
		w.step()
		if w.record.Current != of(tc.from) {
			t.Fatalf("recorded %+v", w.record)
		}
		w.target(of(tc.to))
		w.in.Known = false
		before := w.record.Current
		if w.step(); tc.want == PhaseStopped && (w.record.Phase != PhaseNone || w.record.Current != before) {
			t.Errorf("from %d to %d: while gateways are not known: recorded %+v", tc.from, tc.to, w.record)
		}
		w.in.Known = true
		w.run(time.Hour)
		if w.record.Phase != tc.want || (w.record.Current == of(tc.to)) != (tc.want == PhaseNone) {
			t.Errorf("from %d to %d: recorded %+v, want the phase %s", tc.from, tc.to, w.record, tc.want)
		}
		if tc.want == PhaseStopped && !strings.Contains(w.record.Reason, "roll out 100 first") {
			t.Errorf("from %d to %d: the reason is %q", tc.from, tc.to, w.record.Reason)
		}
	}
}
