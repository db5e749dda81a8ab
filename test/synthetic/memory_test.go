package synthetic_test

import (
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/synthetic"
)

// TestMemory measures what Envoy clusters and idle tunnels cost a gateway, with and without statistics of each Envoy
// cluster.
func TestMemory(t *testing.T) {
	edges := number(t, "MEMORY_EDGES", 0)
	if edges == 0 {
		t.Skip("a measurement, by hand: MEMORY_EDGES=3000")
	}
	w := newWorld(t, edges, nil)
	for _, w.statistics = range []bool{false, true} {
		for _, tunnels := range []int{1, 2} {
			w.envoy.Kill()
			began := time.Now()
			w.start(t)
			started := time.Since(began)
			f := w.fleet(t, func(o *synthetic.Options) { o.Tunnels = tunnels })
			for _, wc := range w.clusters {
				w.edge(t, f, wc, nil)
			}
			empty := w.memory(t)
			for _, e := range f.Edges() {
				e.Start()
			}
			up(t, f, tunnels*edges)
			wait(t, 3*time.Second)
			full := w.memory(t)
			t.Logf(
				"statistics %t: %d Envoy clusters after %s, %.0f MB; with %d idle tunnels each %.0f MB, %.1f KB for each tunnel",
				w.statistics, edges, started.Round(time.Millisecond), empty/1e6, tunnels, full/1e6,
				(full-empty)/1e3/float64(tunnels*edges),
			)
			for _, e := range f.Edges() {
				e.Stop()
			}
		}
	}
}

// memory returns the resident memory of the gateway's Envoy in bytes.
func (w *world) memory(t *testing.T) float64 {
	t.Helper()
	rss, err := proc.RSS(w.envoy.PID())
	if err != nil {
		t.Fatal(err)
	}
	return float64(rss)
}
