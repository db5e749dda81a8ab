package fleet

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// few and more are limits on the connections of the noisy workload cluster. crowd is how many connections its
	// clients try to open.
	few, more, crowd = 20, 40, 60
	// slowRate is the bandwidth limit, and bulkSize the size of a download.
	slowRate, bulkSize = 1 << 20, 5 << 20
	// quietRate is how many requests per second the other workload clusters get, and quietWait bounds one of them on a
	// busy machine.
	quietRate = 40
	quietWait = 4 * time.Second
	// outage is how long the network of an edge is down while clients are connected, and growth by how much the
	// gateway's memory may grow meanwhile.
	outage = 30 * time.Second
	growth = 24 << 20
)

// tenants are workload clusters that share a gateway.
type tenants struct {
	*world.World
	noisy, quiet, slow, lost *world.Member
	held                     []*traffic.Session
}

// TestLimits proves that a workload cluster that uses too much, or is unreachable, does not affect others.
func TestLimits(t *testing.T) {
	inTurn(t)
	w := &tenants{World: newWorld(t, lab.Options{Lean: true, WithoutWorkload: true})}
	limits := func(key string, value any) map[string]any {
		return map[string]any{"limits": map[string]any{key: value}}
	}
	w.noisy = w.Member(t, "noisy", limits("connections", few))
	w.quiet = w.Member(t, "quiet", nil)
	w.slow = w.Member(t, "slow", limits("bandwidth", "1Mi"))
	w.lost = w.Member(t, "lost", nil)
	site, err := w.AddSite(t.Context(), "island")
	must(t, err)
	t.Cleanup(func() {
		for _, s := range w.held {
			s.Close()
		}
	})
	w.Edge(t, lab.EdgeSpec{Name: "edge-noisy"}, w.noisy)
	w.Edge(t, lab.EdgeSpec{Name: "edge-quiet"}, w.quiet)
	w.Edge(t, lab.EdgeSpec{Name: "edge-slow"}, w.slow)
	w.Edge(t, lab.EdgeSpec{Name: "edge-lost", Site: site.Namespace}, w.lost)
	that(t, "an invalid limit is rejected with the permitted range", func(t *testing.T) {
		for key, value := range map[string]any{"connections": -1, "pendingConnections": 20000, "bandwidth": "1Ki"} {
			if err := w.noisy.PatchTunnel(t.Context(), limits(key, value)); err == nil ||
				!strings.Contains(err.Error(), "must be between") {
				t.Errorf("%s: %v gives the error %v", key, value, err)
			}
		}
	})
	load := traffic.Start(t, quietRate, 2, "/whoami", w.quiet.Paths()...)
	defer load.Stop()
	that(t, "connections beyond the limit of a workload cluster are rejected", func(t *testing.T) { w.fill(t, few) })
	that(t, "a limit can change while connections stay open", func(t *testing.T) {
		must(t, w.noisy.PatchTunnel(t.Context(), limits("connections", more)))
		w.fill(t, more)
		for _, s := range w.held {
			_, err := s.Get(within(t), "/whoami")
			must(t, err)
		}
	})
	that(t, "a bandwidth limit slows only the downloads of its workload cluster", w.bandwidth)
	that(
		t,
		"a gateway's memory is bounded while an edge's network is down and clients connect",
		func(t *testing.T) {
			w.blackHole(t, site)
		},
	)
	that(t, "requests to other workload clusters stay fast, and none fails", func(t *testing.T) {
		must(t, load.Unbroken(traffic.Mark{}))
		longest := load.Count().Longest
		measured("limits_others_longest_ms", float64(longest.Milliseconds()))
		if longest > quietWait {
			t.Errorf("a request took %v", longest)
		}
	})
	w.Logs(t)
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), traffic.RequestTimeout)
	t.Cleanup(cancel)
	return ctx
}

// fill opens connections up to the limit, and then tries to open some more.
func (w *tenants) fill(t *testing.T, limit int) {
	t.Helper()
	open := func(connect bool) error {
		s, err := w.noisy.Path(0, connect).Open(within(t))
		if err == nil {
			w.held = append(w.held, s)
		}
		return err
	}
	eventually(t, func(context.Context) error {
		for len(w.held) < limit {
			if err := open(len(w.held)%2 == 0); err != nil {
				return fmt.Errorf("connection %d: %w", len(w.held)+1, err)
			}
		}
		return nil
	})
	var group sync.WaitGroup
	var beyond atomic.Int64
	for i := range crowd - limit {
		group.Go(func() {
			if s, err := w.noisy.Path(0, i%2 == 0).Open(within(t)); err == nil {
				beyond.Add(1)
				s.Close()
			}
		})
	}
	group.Wait()
	if n := beyond.Load(); n > 0 {
		t.Errorf("%d connections beyond the limit of %d", n, limit)
	}
}

// bandwidth downloads the same size from two workload clusters.
func (w *tenants) bandwidth(t *testing.T) {
	download := func(m *world.Member) time.Duration {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s, err := m.Path(0, false).Open(ctx)
		must(t, err)
		defer s.Close()
		began := time.Now()
		_, err = s.Get(ctx, fmt.Sprintf("/bytes/%d", bulkSize))
		must(t, err)
		return time.Since(began)
	}
	slow, quick := download(w.slow), download(w.quiet)
	measured("limits_bandwidth_held_ratio", bulkSize/slow.Seconds()/slowRate)
	t.Logf("%d bytes: %v at the limit, %v without", bulkSize, slow, quick)
	// The first second's worth may arrive at once.
	if slow < (bulkSize-slowRate)/slowRate*time.Second*3/4 || quick > slow/2 {
		t.Errorf("%v at the limit, %v without", slow, quick)
	}
}

// blackHole takes the network of an edge down. Connected clients stay connected, and new ones arrive all the time.
func (w *tenants) blackHole(t *testing.T, site *netns.Site) {
	for i := range more {
		f, err := w.lost.Path(0, i%2 == 0).Follow(t.Context())
		must(t, err)
		t.Cleanup(f.Close)
	}
	before := w.gatewayMemory(t)
	must(t, site.Unplug(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), outage)
	defer cancel()
	var group sync.WaitGroup
	var came atomic.Int64
	for i := range 16 {
		group.Go(func() {
			for ctx.Err() == nil {
				_, _ = w.lost.Path(0, i%2 == 0).Get(ctx, "/whoami")
				came.Add(1)
				_ = proc.Wait(ctx, retryTime, func(context.Context) error { return fmt.Errorf("it is not time yet") })
			}
		})
	}
	group.Wait()
	after := w.gatewayMemory(t)
	must(t, site.Plug(t.Context()))
	measured("limits_black_hole_growth_mb", (float64(after)-float64(before))/(1<<20))
	t.Logf("%d clients came in %v: %d MB before, %d after", came.Load(), outage, before>>20, after>>20)
	if after > before+growth {
		t.Errorf("the gateway's memory has grown from %d to %d MB", before>>20, after>>20)
	}
	measured("limits_black_hole_back_s", world.Took(t, time.Minute, w.lost.Works).Seconds())
}

// gatewayMemory returns the resident memory of the gateway's Envoy.
func (w *tenants) gatewayMemory(t *testing.T) uint64 {
	t.Helper()
	pid, err := w.Gateways[0].EnvoyPID()
	must(t, err)
	bytes, err := proc.RSS(pid)
	must(t, err)
	return bytes
}
