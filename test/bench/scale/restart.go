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

// restarts kills each component, and measures how long it takes until it is ready, and until it works again.
func (w *world) restarts(ctx context.Context, r *results, n int) error {
	for i, s := range []service{
		{"xds-server", w.XDSServers[0].Kill, w.XDSServerReady}, {"gateway-agent", w.Gateways[0].Kill, w.Gateways[0].Ready},
	} {
		if err := w.kill(ctx, r, n, n-1-i, s); err != nil {
			return err
		}
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

// service is a component that is killed.
type service struct {
	name  string
	kill  func()
	ready func(context.Context) error
}

// serviceKills is how often a service is killed.
const serviceKills = 3

// kill kills a service several times. It works again when a change of the given Tunnel is in use, which should be one
// of the last: the clients of the first workload clusters occupy the tunnels where an edge has only one.
func (w *world) kill(ctx context.Context, r *results, n, tunnel int, s service) error {
	var ready, works []float64
	for i := range serviceKills {
		// The writes that the end of the clients and the last restart have caused are not part of it.
		if err := w.quiet(ctx, n); err != nil {
			return err
		}
		begin := time.Now()
		s.kill()
		extra := fmt.Sprintf("after-%s-%d.example.org", s.name, i)
		if err := w.rename(ctx, tunnel, extra); err != nil {
			return err
		}
		if err := quickly(ctx, func(ctx context.Context) (bool, error) { return s.ready(ctx) == nil, nil }); err != nil {
			return fmt.Errorf("waiting until the %s is ready: %w", s.name, err)
		}
		ready = append(ready, time.Since(begin).Seconds())
		if _, err := w.answers(ctx, extra); err != nil {
			return fmt.Errorf("after the end of the %s: %w", s.name, err)
		}
		works = append(works, time.Since(begin).Seconds())
	}
	r.of(s.name, "killed: ready after", "s", percentile(ready, .5), ready...)
	r.of(s.name, "killed: works again after", "s", percentile(works, .5), works...)
	return nil
}

// spareCluster has a higher number than the Clusters of firstBytes.
const spareCluster = 10_000

// storm kills the gateway's Envoy, so that the edges of all n workload clusters reconnect at once. Meanwhile a client
// uses the first edge that is back.
func (w *world) storm(ctx context.Context, r *results, n int) error {
	before := w.Fleet.Stats()
	up := before.Up
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
	back, err := w.firstAnswer(ctx, n)
	if err != nil {
		return err
	}
	stop, latencies := w.probe(ctx, back)
	err = w.allUp(ctx, int(up))
	stop()
	if err != nil {
		return err
	}
	if len(latencies.ok) == 0 && latencies.failed == 0 {
		return errors.New("no request was sent while the edges came back")
	}
	after := w.Fleet.Stats()
	w.explain(r)
	r.of("gateway", "killed: all edges back after", "s", time.Since(begin).Seconds())
	r.of("gateway", "killed: attempts for each tunnel", "", float64(after.Dials-before.Dials)/float64(up))
	r.times("requests while edges come back", latencies.ok)
	r.add("requests while edges come back: failed", "", float64(latencies.failed))
	return w.memory(r, "after a restart")
}

// candidates is how many workload clusters are asked until the first of them is back. The others may be the last.
const candidates = 32

// firstAnswer waits until one of several workload clusters answers, and returns its host name. They are spread over the
// first n.
func (w *world) firstAnswer(ctx context.Context, n int) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		host string
		err  error
	}
	answers := make(chan answer, candidates)
	asked := min(n, candidates)
	for i := range asked {
		host, err := hostname(i * n / asked)
		if err != nil {
			return "", err
		}
		go func() {
			_, err := w.answers(ctx, host)
			answers <- answer{host, err}
		}()
	}
	var failed error
	for range asked {
		a := <-answers
		if a.err == nil {
			return a.host, nil
		}
		failed = errors.Join(failed, a.err)
	}
	return "", failed
}

// latency holds the latencies of requests.
type latency struct {
	ok     []time.Duration
	failed int
}

// probe sends a request every 20 ms, each on a new connection, until stop is called. The result may be read after that.
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

// cold stops the gateway's agent and Envoy and deletes their files. It measures how long it takes until the gateway is
// ready, and until it has all tunnels.
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

// statistics turns on the gateway's statistics of each Envoy cluster.
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

// restartGateway kills the gateway's agent and Envoy with SIGKILL, calls meanwhile, and returns when the gateway is
// ready again. begin is when it was started again.
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
