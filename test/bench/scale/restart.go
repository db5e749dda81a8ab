package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// restarts kills each component, and measures until it does its work again. The changes are of the last workload clusters: where an edge has
// one tunnel, the clients of the first ones have taken it.
func (w *world) restarts(ctx context.Context, r *results, n int) error {
	for i, service := range []struct {
		name string
		kill func()
	}{
		{"xds-server", w.XDSServers[0].Kill}, {"gateway-agent", w.Gateways[0].Kill},
	} {
		begin := time.Now()
		service.kill()
		if _, err := w.changeOne(ctx, n-1-i, "after-"+service.name+".example.org"); err != nil {
			return fmt.Errorf("after the end of the %s: %w", service.name, err)
		}
		r.of(service.name, "killed: works again after", "s", time.Since(begin).Seconds())
	}
	begin := time.Now()
	w.Controller.Kill()
	spare := n + spareCluster
	if err := w.create(ctx, spare); err != nil {
		return err
	}
	if err := quickly(ctx, func(ctx context.Context) (bool, error) {
		tunnel := &v1alpha1.Tunnel{}
		err := w.Management.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name(spare)}, tunnel)
		return err == nil && tunnel.Spec.ID != "", client.IgnoreNotFound(err)
	}); err != nil {
		return fmt.Errorf("after the end of the controller: %w", err)
	}
	r.of("controller", "killed: works again after", "s", time.Since(begin).Seconds())
	return nil
}

// spareCluster is beyond those of firstBytes.
const spareCluster = 10_000

// storm kills the gateway's Envoy: all edges come back at once. Clients use those that are back already.
func (w *world) storm(ctx context.Context, r *results) error {
	up := w.Fleet.Stats().Up
	first, err := hostname(0)
	if err != nil {
		return err
	}
	before := w.Fleet.Stats()
	begin := time.Now()
	if err := w.Gateways[0].KillEnvoy(); err != nil {
		return err
	}
	if err := quickly(ctx, func(context.Context) (bool, error) { return w.Fleet.Stats().Up < up/2, nil }); err != nil {
		return fmt.Errorf("waiting for the end of the tunnels: %w", err)
	}
	if err := quickly(ctx, func(context.Context) (bool, error) { return w.Fleet.Stats().Up > 0, nil }); err != nil {
		return fmt.Errorf("waiting for the gateway: %w", err)
	}
	r.of("gateway", "killed: first tunnel after", "s", time.Since(begin).Seconds())
	if _, err := w.answers(ctx, first); err != nil {
		return err
	}
	stop, latencies := w.probe(ctx, first)
	err = w.allUp(ctx, int(up))
	stop()
	if err != nil {
		return err
	}
	after := w.Fleet.Stats()
	w.explain(r)
	r.of("gateway", "killed: all edges back after", "s", time.Since(begin).Seconds())
	r.of("gateway", "killed: attempts for each tunnel", "", float64(after.Dials-before.Dials)/float64(up))
	r.times("requests while edges come back", latencies.ok)
	r.add("requests while edges come back: failed", "", float64(latencies.failed))
	return w.memory(r, "after a restart")
}

// latency are those of requests.
type latency struct {
	ok     []time.Duration
	failed int
}

// probe makes a request every 20 ms, each on a new connection, until stop is called. Then the result may be read.
func (w *world) probe(ctx context.Context, host string) (stop func(), _ *latency) {
	ctx, cancel := context.WithCancel(ctx)
	var (
		result latency
		done   sync.WaitGroup
	)
	done.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			begin := time.Now()
			if err := w.get(context.WithoutCancel(ctx), host); err != nil {
				result.failed++
				continue
			}
			result.ok = append(result.ok, time.Since(begin))
		}
	})
	return func() {
		cancel()
		done.Wait()
	}, &result
}

// cold ends the gateway's agent and Envoy, takes all that they keep on disk, and measures until the gateway is ready, and has all tunnels.
func (w *world) cold(ctx context.Context, r *results) error {
	up := w.Fleet.Stats().Up
	begin, err := w.restartGateway(ctx, func(g *lab.Agent) error {
		kept, err := filepath.Glob(filepath.Join(g.StateDir, "*"))
		for _, path := range kept {
			err = errors.Join(err, os.RemoveAll(path))
		}
		return err
	})
	if err != nil {
		return err
	}
	r.of("gateway", "cold start: ready after", "s", time.Since(begin).Seconds())
	if err := w.allUp(ctx, int(up)); err != nil {
		return err
	}
	r.of("gateway", "cold start: all edges back after", "s", time.Since(begin).Seconds())
	return nil
}

// statistics has the gateway count for each Envoy cluster.
func (w *world) statistics(ctx context.Context, r *results) error {
	up := w.Fleet.Stats().Up
	begin, err := w.restartGateway(ctx, func(g *lab.Agent) error {
		g.Change(func(spec *proc.Spec) { spec.Args = append(slices.Clone(spec.Args), "--cluster-statistics") })
		return nil
	})
	if err != nil {
		return err
	}
	r.of("gateway", "start with what is on disk: ready after", "s", time.Since(begin).Seconds())
	if err := w.allUp(ctx, int(up)); err != nil {
		return err
	}
	return w.memory(r, "with idle tunnels and statistics")
}

// restartGateway ends the gateway's agent and Envoy as kill -9 does, has something done, and returns when it is ready again, with when
// it began.
func (w *world) restartGateway(ctx context.Context, meanwhile func(*lab.Agent) error) (begin time.Time, err error) {
	g := w.Gateways[0]
	g.Hold()
	if err := g.KillEnvoy(); err != nil {
		return begin, err
	}
	if err := meanwhile(g); err != nil {
		return begin, err
	}
	begin = time.Now()
	g.Resume()
	return begin, g.WaitReady(ctx, patience, g.Ready)
}
