package scale

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/test/bench/fleet"
)

// measure measures everything about one size, within a time that grows with the size. changes is the number of samples
// of a change.
func measure(ctx context.Context, r *results, n, changes int) error {
	ctx, cancel := context.WithTimeout(ctx, sizePatience+time.Duration(n)*clusterPatience)
	defer cancel()
	perEdge := tunnels(n)
	w, err := newWorld(ctx, fleet.Options{Tunnels: perEdge})
	if err != nil {
		return err
	}
	defer w.Close(ctx)
	if err := w.fill(ctx, r, n); err != nil {
		return err
	}
	var failed error
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"new Clusters", func() error { return w.firstBytes(ctx, r, n, changes) }},
		{"changes", func() error { return w.change(ctx, r, n, changes) }},
		{"control channels", func() error { return w.control(ctx, r, connections(n, perEdge)*clientsEach) }},
		{"clients", func() error { return w.clients(ctx, r, connections(n, perEdge)) }},
		{"ends of components", func() error { return w.restarts(ctx, r, n) }},
		{"the end of the gateway's Envoy", func() error { return w.storm(ctx, r, n) }},
		{"a cold start", func() error { return w.cold(ctx, r) }},
		{"statistics", func() error { return w.statistics(ctx, r) }},
	} {
		if !r.out.Only.MatchString(step.name) {
			continue
		}
		begin := time.Now()
		err := step.do()
		r.out.Printf("%6d  %s took %s", n, step.name, time.Since(begin).Round(time.Second))
		if err != nil {
			r.out.Printf("%6d  FAILED: %s: %v", n, step.name, err)
			failed = errors.Join(failed, fmt.Errorf("measuring %s: %w", step.name, err))
		}
	}
	if failed != nil {
		if logs, err := w.KeepLogs(); err == nil {
			r.out.Printf("%6d  logs are in %s", n, logs)
		}
	}
	return failed
}

// fill creates all Clusters and connects their edges.
func (w *world) fill(ctx context.Context, r *results, n int) error {
	before, err := w.writes(ctx)
	if err != nil {
		return err
	}
	begin := time.Now()
	ids, err := w.createAll(ctx, n)
	if err != nil {
		return err
	}
	r.add("all Clusters have a Tunnel after", "s", time.Since(begin).Seconds())
	if err := w.quiet(ctx, n); err != nil {
		return err
	}
	r.add("all is written after", "s", time.Since(begin).Seconds())
	if err := w.written(ctx, r, before, n); err != nil {
		return err
	}
	for i := range n {
		if _, err := w.Edge(ids[name(i)]); err != nil {
			return err
		}
	}
	if err := w.memory(r, "without tunnels"); err != nil {
		return err
	}
	empty, err := w.memoryOf("gateway")
	if err != nil {
		return err
	}
	perEdge := tunnels(n)
	begin = time.Now()
	for _, e := range w.Fleet.Edges() {
		e.Start()
	}
	if err := w.allUp(ctx, n*perEdge); err != nil {
		return err
	}
	r.add("all edges there after", "s", time.Since(begin).Seconds())
	r.add("tunnels of each edge", "", float64(perEdge))
	if err := w.quiet(ctx, n); err != nil {
		return err
	}
	r.add("all edges are in status after", "s", time.Since(begin).Seconds())
	after, err := w.memoryOf("gateway")
	if err != nil {
		return err
	}
	r.of("gateway", "memory of an idle tunnel", "KB", (after-empty)*1e3/float64(n*perEdge))
	return w.memory(r, "with idle tunnels")
}

func (w *world) allUp(ctx context.Context, tunnels int) error {
	ctx, cancel := context.WithTimeout(ctx, patience+time.Duration(tunnels)*allPatience)
	defer cancel()
	if _, err := w.Fleet.WaitUp(ctx, int64(tunnels)); err != nil {
		return fmt.Errorf("waiting for %d tunnels: %w: %+v", tunnels, err, w.Fleet.Stats())
	}
	return nil
}

// firstBytes creates additional Clusters, one after the other, and measures the time to the first answer through their
// tunnels. An edge dials as soon as its Tunnel exists.
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
		e, err := w.Edge(tunnel.Spec.ID)
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

// change gives Tunnels an additional name, one after the other. It measures how long it takes until the gateway serves
// the name, and the CPU time of each component in excess of its idle CPU time.
func (w *world) change(ctx context.Context, r *results, n, rounds int) error {
	atRest, err := w.rest(ctx, r)
	if err != nil {
		return err
	}
	var all []time.Duration
	err = w.usage(ctx, r, "one change", rounds, atRest, func() error {
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
	return errors.Join(err, w.changeBack(ctx, min(n, rounds)))
}

// changeBack removes the additional names, and waits for the tunnels that they have used: a synthetic edge has no spare
// tunnels.
func (w *world) changeBack(ctx context.Context, tunnels int) error {
	up := w.Fleet.Stats().Up
	for i := range tunnels {
		if err := w.unname(ctx, i); err != nil {
			return err
		}
	}
	if err := retry.Sleep(ctx, backTime); err != nil {
		return err
	}
	return w.allUp(ctx, int(up))
}

// unname removes the additional name of a Tunnel.
func (w *world) unname(ctx context.Context, i int) error {
	tunnel := &v1alpha1.Tunnel{}
	tunnel.Namespace, tunnel.Name = namespace, name(i)
	none := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"extraNames":null}}`))
	if err := w.Management.Client.Patch(ctx, tunnel, none); err != nil {
		return fmt.Errorf("changing the Tunnel %s back: %w", tunnel.Name, err)
	}
	return nil
}

// backTime is how long a removed Envoy cluster may keep its tunnel.
const backTime = 5 * time.Second

func (w *world) changeOne(ctx context.Context, i int, extra string) (time.Duration, error) {
	if err := w.rename(ctx, i, extra); err != nil {
		return 0, err
	}
	return w.answers(ctx, extra)
}

// rename gives the i-th Tunnel an extra name instead of those that it has.
func (w *world) rename(ctx context.Context, i int, extra string) error {
	patch := fmt.Appendf(nil, `{"spec":{"extraNames":[%q]}}`, extra)
	tunnel := &v1alpha1.Tunnel{}
	tunnel.Namespace, tunnel.Name = namespace, name(i)
	if err := w.Management.Client.Patch(ctx, tunnel, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("changing the Tunnel %s: %w", tunnel.Name, err)
	}
	return nil
}

// quickly repeats a check every few milliseconds until it returns true or an error.
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
