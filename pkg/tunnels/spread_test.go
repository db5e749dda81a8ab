package tunnels

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// spreadOf returns an edge with tunnels on workers. Each tunnel is the number of its worker, with a + if it carries
// connections.
func spreadOf(workers int, tunnels string) *edge {
	e := &edge{tunnels: map[*entry]bool{}, count: make([]int, workers), changed: noon, unserved: noon}
	for i, word := range strings.Fields(tunnels) {
		v := &entry{}
		v.Key, v.Since = fmt.Sprint(i), noon.Add(time.Duration(i)*time.Second-time.Hour)
		number, used := strings.CutSuffix(word, "+")
		if v.worker = workerOf("worker_"+number, workers); v.worker >= 0 {
			e.count[v.worker]++
		}
		if used {
			v.Used = v.Since
		}
		e.tunnels[v] = true
	}
	return e
}

func TestPlan(t *testing.T) {
	const (
		eight = "0+ 0 0 1+ 1 1 2+ 2" // none on worker 3
		// an edge whose workload cluster has four names: 4 workers × 4 names × 2
		names = "0 0 0 0 0 0 0 0 1 1 1 1 1 1 1 1 2 2 2 2 2 2 2 2 2 2 2 2 2 "
	)
	tests := map[string]struct {
		tunnels string
		turns   []int
		after   time.Duration // since the last change, and since a worker has no tunnel
		change  func(*edge)
		want    []string // workers of the tunnels to close
		again   time.Duration
	}{
		"two on each worker": {tunnels: "0+ 0 1 1 2 2+ 3 3"},
		"a worker without a tunnel: one unused tunnel is closed in this worker's turn": {
			tunnels: eight,
			turns:   []int{1, 1, 1, 0},
			want:    []string{"0"},
		},
		"a worker without a tunnel, and three workers come first": {
			tunnels: eight,
			turns:   []int{0, 0, 1, 0},
			want:    []string{"0", "0", "1"},
		},
		"a worker without a tunnel, and no turn is known": {
			tunnels: eight,
			want:    []string{"0", "0", "1", "1"},
		},
		"a worker without a tunnel, after the turn of another worker": {
			tunnels: eight,
			turns:   []int{0, 1, 1, 1},
			want:    []string{"0", "0", "1", "1"},
		},
		"a worker without a tunnel of an edge that still dials": {
			tunnels: "0+ 0 1+ 1 2+ 2",
			again:   dialTime,
		},
		"a worker without a tunnel of an edge that keeps fewer tunnels": {
			tunnels: "0+ 0 1+ 1 2+ 2",
			after:   dialTime,
			want:    []string{"0"},
		},
		"a worker without a tunnel of an edge whose closed tunnel did not reopen": {
			tunnels: "0+ 0 1+ 1 2+ 2", after: dialTime, change: func(e *edge) { e.want = 7 }, again: laterTime,
		},
		"a worker without a tunnel for which some were just closed": {
			tunnels: eight, change: func(e *edge) { e.next = noon.Add(time.Second) }, again: time.Second,
		},
		"a worker without a tunnel, and each other worker has only one": {tunnels: "0+ 1+ 2+ 9 9 9 9 9"},
		"a worker without a tunnel, and all others carry connections": {
			tunnels: "0+ 0+ 0+ 1+ 1+ 1+ 2+ 2+",
			turns:   []int{1, 1, 1, 0},
			again:   usedTime,
		},
		"a worker long without a tunnel, and all others carry connections": {
			tunnels: "1+ 1+ 0+ 0+ 0+ 1+ 2+ 2+",
			after:   usedTime,
			want:    []string{"1"},
		},
		"a worker has one alone, for a moment": {
			tunnels: "0+ 0 0 1 1 2 2 3",
			again:   levelTime,
		},
		"a worker has one alone": {
			tunnels: "0+ 0 0 1 1 2 2 3",
			after:   levelTime,
			want:    []string{"0"},
		},
		"a worker has only one, and the others at most two without connections": {
			tunnels: "0+ 0+ 0+ 1 1 2 2 3",
			after:   time.Hour,
		},
		"a worker has one alone, and the edge dials": {
			tunnels: "0+ 0 0 1 1 2 3",
			after:   levelTime,
			again:   dialTime,
		},
		"a worker has fewer than there are names": {
			tunnels: names + "3 3 3",
			turns:   []int{1, 1, 1, 0},
			after:   levelTime,
			want:    []string{"2"},
		},
		"a worker has as many as there are names": {tunnels: names + "3 3 3 3"},
		"one that could not be cut is left alone": {
			tunnels: eight, turns: []int{1, 1, 1, 0}, want: []string{"1"}, change: func(e *edge) {
				for v := range e.tunnels {
					v.stuck = v.worker == 0
				}
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			e := spreadOf(4, tt.tunnels)
			if tt.change != nil {
				tt.change(e)
			}
			victims, again := e.plan(noon.Add(tt.after), rules{workers: 4, tunnels: 8}, tt.turns)
			var got []string
			left := slices.Clone(e.count)
			for _, v := range victims {
				got = append(got, fmt.Sprint(v.worker))
				left[v.worker]--
			}
			slices.Sort(got)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			for i, n := range left {
				if n == 0 && e.count[i] > 0 {
					t.Errorf("worker %d loses its last", i)
				}
			}
			if want := noon.Add(tt.again); tt.again == 0 && !again.IsZero() || tt.again != 0 && !again.Equal(want) {
				t.Errorf("again at %s, want %s after noon", again.Sub(noon), tt.again)
			}
		})
	}
}

// dealer assigns new tunnels to workers as Envoy does.
type dealer []int

func (d dealer) deal() (worker int) {
	worker = rand.IntN(len(d)) // the worker that accepted the connection
	for i, n := range d {
		if n < d[worker] {
			worker = i
		}
	}
	d[worker]++
	return worker
}

// TestAWorkerWithoutATunnelIsRepairedByClosingTunnelsOnce simulates Envoy and an edge that loses two tunnels at a time,
// also for a table that starts after many changes.
func TestAWorkerWithoutATunnelIsRepairedByClosingTunnelsOnce(t *testing.T) {
	for _, workers := range []int{3, 4, 8} {
		envoy, known := make(dealer, workers), turns{}
		opened := make([]int, workers)
		dial := func(e *edge) {
			for len(e.tunnels) < atLeast*workers {
				v := &entry{worker: envoy.deal()}
				e.tunnels[v] = true
				e.count[v.worker]++
				opened[v.worker]++
			}
		}
		cut := func(e *edge, v *entry) {
			delete(e.tunnels, v)
			e.count[v.worker]--
		}
		e := &edge{tunnels: map[*entry]bool{}, count: make([]int, workers), unserved: noon}
		dial(e)
		clear(opened) // the table did not observe this
		holes, rounds := 0, 0
		for range 3000 {
			for v := range e.tunnels {
				if cut(e, v); len(e.tunnels) == atLeast*workers-2 {
					break
				}
			}
			dial(e)
			known.add("edge", opened)
			clear(opened)
			hole, least := e.least()
			if least > 0 {
				continue
			}
			holes++
			for tries := 0; e.count[hole] == 0; tries++ {
				victims, _ := e.plan(noon.Add(time.Hour), rules{workers, atLeast * workers}, known["edge"])
				if len(victims) == 0 || tries > 3 {
					t.Fatalf("%d workers: %v stays after %d cuts, with turns %v of %v", workers, e.count, tries, known["edge"], envoy)
				}
				for _, v := range victims {
					cut(e, v)
				}
				dial(e)
				known.add("edge", opened)
				clear(opened)
				rounds++
			}
		}
		t.Logf("%d workers: %d holes, closed in %.2f rounds", workers, holes, float64(rounds)/float64(holes))
		if holes == 0 || float64(rounds) > 1.5*float64(holes) {
			t.Errorf("%d workers: %d rounds for %d holes", workers, rounds, holes)
		}
	}
}

func TestTurnsAreBounded(t *testing.T) {
	known := turns{}
	for i := range 2 * maxTurns {
		known.add(fmt.Sprint(i), []int{1, 0})
	}
	if len(known) > maxTurns {
		t.Errorf("of %d nodes", len(known))
	}
}
