package synthetic_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/test/synthetic"
)

// TestRequestsInFlightInAnEndedTunnelAreRetried runs a good edge and two faulty ones of the same workload cluster. One
// closes each of its tunnels at the first CONNECT, the other resets the first stream of each tunnel. Tunnels in use are
// cut between the rounds, so that each round has new tunnels of the faulty edges.
func TestRequestsInFlightInAnEndedTunnelAreRetried(t *testing.T) {
	const rounds, each, tunnels = 50, 4, 8
	w := newWorld(t, 1, nil)
	f := w.fleet(t, func(o *synthetic.Options) { o.Tunnels = tunnels })
	var closed, reset atomic.Int64
	closes := func(m synthetic.Moment) synthetic.Fault {
		switch {
		case m.Stream < 0:
			return synthetic.None
		case m.Stream == 0:
			closed.Add(1)
		}
		// Other requests may have arrived together with the first. A request that has been answered could not be sent
		// again.
		return synthetic.CloseTunnel
	}
	resets := func(m synthetic.Moment) synthetic.Fault {
		if m.Stream != 0 {
			return synthetic.None
		}
		reset.Add(1)
		return synthetic.ResetStream
	}
	wc := w.clusters[0]
	w.edge(t, f, wc, nil)
	w.edge(t, f, wc, closes)
	w.edge(t, f, wc, resets)
	for _, e := range f.Edges() {
		e.Start()
	}
	up(t, f, 3*tunnels)
	var failed atomic.Int64
	for range rounds {
		var all sync.WaitGroup
		for _, route := range routes(w) {
			for range each {
				all.Go(func() {
					begin := time.Now()
					if _, err := w.get(t.Context(), route.connect, wc.Hostname, "/version"); err != nil {
						failed.Add(1)
						t.Logf("%s, after %s: %v", route.name, time.Since(begin), err)
					}
				})
			}
		}
		all.Wait()
		for _, e := range f.Edges() {
			e.Cut(func(used bool) bool { return used })
		}
		w.noneUsed(t)
	}
	met := fmt.Sprintf("%d tunnels closed, %d streams reset", closed.Load(), reset.Load())
	if failed.Load() > 0 {
		t.Errorf("%d of %d requests by each route failed; %s", failed.Load(), rounds*each, met)
	}
	if closed.Load() < rounds/2 || reset.Load() < rounds/2 {
		t.Errorf("the faults were hardly met: %s", met)
	}
	t.Log(met)
}

// noneUsed waits until the gateway has noticed that tunnels have ended. Envoy 1.40 loses a client that it accepts at
// the same moment: see docs/decisions/0023-client-first-message.md.
func (w *world) noneUsed(t *testing.T) {
	t.Helper()
	envoytest.Eventually(t, "tunnels that were in use are gone", func() error {
		stats, err := w.envoy.Admin(t.Context(), http.MethodGet, "/stats?filter=c0.*upstream_cx_active$")
		if err == nil && !strings.HasSuffix(strings.TrimSpace(stats), ": 0") {
			err = fmt.Errorf("%s", stats)
		}
		return err
	})
}
