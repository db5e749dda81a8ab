package synthetic_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/synthetic"
)

// number returns the value of an environment variable, for manual measurements.
func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// slow is a rate that any gateway can sustain.
const slow = 100

// TestReconnectStorm lets many edges dial a gateway at the same time, while clients continuously use the tunnels of a
// few.
func TestReconnectStorm(t *testing.T) {
	edges, live, rate := number(t, "STORM_EDGES", 200), 10, number(t, "STORM_RATE", 100)
	w := newWorld(t, live+edges, func(inst *model.Installation) { inst.Handshakes = rate })
	f := w.fleet(t, nil)
	for i, wc := range w.clusters {
		e := w.edge(t, f, wc, nil)
		if i < live {
			e.Start()
		}
	}
	up(t, f, 2*live)
	calm := w.clients(t, live, func() {
		wait(t, 3*time.Second)
	})
	before := f.Stats()
	var took time.Duration
	storm := w.clients(t, live, func() {
		for _, e := range f.Edges()[live:] {
			e.Start()
		}
		took = up(t, f, 2*(live+edges))
	})
	after := f.Stats()
	t.Logf(
		"%d edges: all there after %s, %d dials, %d failed", edges, took, after.Dials-before.Dials,
		after.Failed-before.Failed,
	)
	t.Logf("requests of clients: before %s, meanwhile %s", calm, storm)
	if lost := after.Lost - before.Lost; lost > 0 {
		t.Errorf("%d tunnels that were there were lost", lost)
	}
	if calm.failed+storm.failed > 0 {
		t.Errorf("%d requests failed", calm.failed+storm.failed)
	}
	tunnels := 2 * edges
	if least := time.Duration(tunnels/rate-1) * time.Second; took < least {
		t.Errorf("all were there after %s: at %d in a second it takes %s or more", took, rate, least)
	}
	stats, err := w.envoy.Admin(
		t.Context(),
		http.MethodGet,
		"/stats?usedonly&filter=(handshakes.rate_limited|ratelimit.admission|ext_authz.admission|"+
			"listener.public.downstream_cx_(total|overflow))",
	)
	t.Logf("%v %s", err, strings.ReplaceAll(strings.TrimSpace(stats), "\n", ", "))
	// More than a gateway can process waits in the kernel instead.
	late := strings.Contains(stats, "ratelimit.admission.over_limit: ") ||
		strings.Contains(stats, "local_rate_limit.handshakes.rate_limited: ")
	if rate <= slow && (after.Failed == before.Failed || !late) {
		t.Errorf("no edge was told to come later: %q", stats)
	}
	begin, back := w.restart(t, f, 2*(live+edges))
	end := f.Stats()
	t.Logf("after a restart all are back in %s, %d dials, %d failed", back, end.Dials-begin.Dials, end.Failed-begin.Failed)
}

// restart replaces Envoy after it has lost all tunnels. It returns the counts at that time, and how long it takes until
// the given number of tunnels are open again.
func (w *world) restart(t *testing.T, f *synthetic.Fleet, tunnels int) (before synthetic.Stats, back time.Duration) {
	t.Helper()
	w.envoy.Kill()
	envoytest.Eventually(t, "tunnels are gone", func() error {
		if n := f.Stats().Up; n > 0 {
			return fmt.Errorf("%d are there", n)
		}
		return nil
	})
	before = f.Stats()
	w.start(t)
	return before, up(t, f, tunnels)
}

// latencies holds the latencies of requests.
type latencies struct {
	all    []time.Duration
	failed int64
}

// String implements fmt.Stringer.
func (l latencies) String() string {
	if len(l.all) == 0 {
		return "none"
	}
	at := func(part float64) time.Duration {
		return l.all[int(part*float64(len(l.all)-1))].Round(time.Microsecond)
	}
	return fmt.Sprintf("%d: p50 %s, p99 %s, worst %s, %d failed", len(l.all), at(.5), at(.99), at(1), l.failed)
}

// clients sends requests, each on a new connection, while during runs.
func (w *world) clients(t *testing.T, clusters int, during func()) latencies {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var (
		all    sync.WaitGroup
		mu     sync.Mutex
		result latencies
		failed atomic.Int64
	)
	for i := range clusters {
		all.Go(func() {
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				begin := time.Now()
				if _, err := w.get(context.WithoutCancel(ctx), w.bySNI, w.clusters[i].Hostname, "/version"); err != nil {
					failed.Add(1)
					t.Logf("after %s: %v", time.Since(begin), err)
				}
				mu.Lock()
				result.all = append(result.all, time.Since(begin))
				mu.Unlock()
			}
		})
	}
	during()
	cancel()
	all.Wait()
	slices.Sort(result.all)
	result.failed = failed.Load()
	return result
}

// wait waits for a duration.
func wait(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}
