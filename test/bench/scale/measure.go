package scale

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// measure is everything about one size. Changes is how many samples of a change.
func measure(ctx context.Context, r *results, n, changes int) error {
	perEdge := tunnels(n)
	w, err := newWorld(ctx, perEdge)
	if err != nil {
		return err
	}
	defer w.close(ctx)
	steps := []func(context.Context, *results, int) error{
		w.fill,
		func(ctx context.Context, r *results, n int) error { return w.firstBytes(ctx, r, n, changes) },
		func(ctx context.Context, r *results, n int) error { return w.change(ctx, r, n, changes) },
		w.restarts,
		func(ctx context.Context, r *results, n int) error {
			return w.clients(ctx, r, connections(n, perEdge))
		},
	}
	for _, step := range steps {
		if err := step(ctx, r, n); err != nil {
			return err
		}
	}
	return nil
}

// fill creates all Clusters, and has their edges come.
func (w *world) fill(ctx context.Context, r *results, n int) error {
	begin := time.Now()
	ids, err := w.createAll(ctx, n)
	if err != nil {
		return err
	}
	r.add("all Clusters have a Tunnel after", "s", time.Since(begin).Seconds())
	for i := range n {
		if _, err := w.edge(ids[name(i)]); err != nil {
			return err
		}
	}
	if err := w.memory(r, "no tunnels"); err != nil {
		return err
	}
	perEdge := tunnels(n)
	begin = time.Now()
	for _, e := range w.fleet.Edges() {
		e.Start()
	}
	if err := w.allUp(ctx, n*perEdge); err != nil {
		return err
	}
	r.add("all edges there after", "s", time.Since(begin).Seconds())
	r.add("tunnels of each edge", "", float64(perEdge))
	return w.memory(r, "idle tunnels")
}

func (w *world) allUp(ctx context.Context, tunnels int) error {
	ctx, cancel := context.WithTimeout(ctx, patience+time.Duration(tunnels)*allPatience)
	defer cancel()
	if _, err := w.fleet.WaitUp(ctx, int64(tunnels)); err != nil {
		return fmt.Errorf("waiting for %d tunnels: %w: %+v", tunnels, err, w.fleet.Stats())
	}
	return nil
}

// firstBytes creates further Clusters, one after the other, and measures the time to the first answer through their tunnels. An edge
// dials as soon as the Tunnel is there.
func (w *world) firstBytes(ctx context.Context, r *results, n, rounds int) error {
	var all, made []time.Duration
	for i := range rounds {
		begin := time.Now()
		if err := w.create(ctx, n+i); err != nil {
			return err
		}
		tunnel := &v1alpha1.Tunnel{}
		if err := quickly(ctx, func(ctx context.Context) (bool, error) {
			err := w.Management.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name(n + i)}, tunnel)
			return err == nil && tunnel.Spec.ID != "", client.IgnoreNotFound(err)
		}); err != nil {
			return err
		}
		made = append(made, time.Since(begin))
		e, err := w.edge(tunnel.Spec.ID)
		if err != nil {
			return err
		}
		e.Start()
		host, err := hostname(n + i)
		if err != nil {
			return err
		}
		if _, err := w.answers(ctx, host); err != nil {
			return err
		}
		all = append(all, time.Since(begin))
	}
	r.times("from a new Cluster to its Tunnel", made)
	r.times("from a new Cluster to its first answer", all)
	return nil
}

// change gives a Tunnel a further name, one after the other, and measures when that leads through the gateway.
func (w *world) change(ctx context.Context, r *results, n, rounds int) error {
	var all []time.Duration
	err := w.usage(ctx, r, "one change", rounds, func() error {
		for i := range rounds {
			took, err := w.changeOne(ctx, i%n, fmt.Sprintf("api-%d.example.org", i))
			if err != nil {
				return err
			}
			all = append(all, took)
		}
		return nil
	})
	r.times("from a change to its use at the gateway", all)
	return err
}

func (w *world) changeOne(ctx context.Context, i int, extra string) (time.Duration, error) {
	patch := fmt.Appendf(nil, `{"spec":{"extraNames":[%q]}}`, extra)
	tunnel := &v1alpha1.Tunnel{}
	tunnel.Namespace, tunnel.Name = namespace, name(i)
	if err := w.Management.Client.Patch(ctx, tunnel, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return 0, fmt.Errorf("changing the Tunnel %s: %w", tunnel.Name, err)
	}
	return w.answers(ctx, extra)
}

// quickly asks again and again, every few milliseconds.
func quickly(ctx context.Context, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := done(ctx); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// restarts kills each component, and measures until it does its work again, with requests of clients all the time.
func (w *world) restarts(ctx context.Context, r *results, n int) error {
	for i, service := range []struct {
		name string
		kill func()
	}{
		{"xds-server", w.XDSServers[0].Kill}, {"gateway-agent", w.Gateways[0].Kill},
	} {
		begin := time.Now()
		service.kill()
		if _, err := w.changeOne(ctx, i%n, "after-"+service.name+".example.org"); err != nil {
			return fmt.Errorf("after the end of the %s: %w", service.name, err)
		}
		r.add("a change is in use after the end of the "+service.name, "s", time.Since(begin).Seconds())
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
	r.add("a new Cluster has a Tunnel after the end of the controller", "s", time.Since(begin).Seconds())
	return w.storm(ctx, r)
}

// spareCluster is beyond those of firstBytes.
const spareCluster = 10_000

// storm kills the gateway's Envoy: all edges come back at once. Clients use those that are back already.
func (w *world) storm(ctx context.Context, r *results) error {
	up := w.fleet.Stats().Up
	first, err := hostname(0)
	if err != nil {
		return err
	}
	before := w.fleet.Stats()
	begin := time.Now()
	if err := w.Gateways[0].KillEnvoy(); err != nil {
		return err
	}
	if err := quickly(ctx, func(context.Context) (bool, error) { return w.fleet.Stats().Up < up/2, nil }); err != nil {
		return fmt.Errorf("waiting for the end of the tunnels: %w", err)
	}
	if err := quickly(ctx, func(context.Context) (bool, error) { return w.fleet.Stats().Up > 0, nil }); err != nil {
		return fmt.Errorf("waiting for the gateway: %w", err)
	}
	r.add("gateway restarted: first tunnel after", "s", time.Since(begin).Seconds())
	if _, err := w.answers(ctx, first); err != nil {
		return err
	}
	stop, latencies := w.probe(ctx, first)
	err = w.allUp(ctx, int(up))
	stop()
	if err != nil {
		return err
	}
	after := w.fleet.Stats()
	w.explain(r)
	r.add("gateway restarted: all edges back after", "s", time.Since(begin).Seconds())
	r.add("gateway restarted: attempts for each tunnel", "", float64(after.Dials-before.Dials)/float64(up))
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
