package synthetic_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestSyntheticEdgesServeRequests connects 50 edges to a real gateway. For each workload cluster, a client reaches the
// right one, by both routes.
func TestSyntheticEdgesServeRequests(t *testing.T) {
	const edges = 50
	w := newWorld(t, edges, nil)
	f := w.fleet(t, nil)
	before := heap()
	for _, wc := range w.clusters {
		w.edge(t, f, wc, nil).Start()
	}
	up(t, f, 2*edges)
	t.Logf("%d bytes of heap for each idle edge", (heap()-before)/edges)
	for i, e := range f.Edges() {
		for _, route := range routes(w) {
			var got string
			envoytest.Eventually(t, w.clusters[i].Hostname, func() (err error) {
				got, err = w.get(t.Context(), route.connect, w.clusters[i].Hostname, "/whoami")
				return err
			})
			if strings.TrimSpace(got) != fmt.Sprintf("%q", e.Node) {
				t.Errorf("%s of %s led to %s", route.name, e.Node, got)
			}
		}
	}
	if s := f.Stats(); s.Broken > 0 || s.Refused > 0 || s.Up != 2*edges {
		t.Errorf("%+v", s)
	}
	t.Run("a watch stays open, and ends with its client", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got, err := w.get(ctx, w.bySNI, w.clusters[0].Hostname, "/api/v1/nodes?watch=true"); ctx.Err() == nil {
			t.Errorf("it ended by itself: %q, %v", got, err)
		}
	})
	t.Run("all come back after a restart of the gateway", func(t *testing.T) {
		w.envoy.Kill()
		envoytest.Eventually(t, "tunnels are gone", func() error {
			if up := f.Stats().Up; up > 0 {
				return fmt.Errorf("%d are there", up)
			}
			return nil
		})
		w.start(t)
		t.Logf("all back after %s, %+v", up(t, f, 2*edges), f.Stats())
	})
}

type route struct {
	name    string
	connect connectFunc
}

func routes(w *world) []route { return []route{{"SNI", w.bySNI}, {"CONNECT", w.byConnect}} }

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}
