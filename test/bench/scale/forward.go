package scale

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/test/bench/fleet"
	"github.com/fairlead/fairlead/test/bench/record"
)

const (
	// forwardGateways and forwardPerTunnel are the numbers of gateways, and of those to which an edge keeps tunnels, and
	// forwardTunnels is how many it keeps to each of these.
	forwardGateways, forwardPerTunnel, forwardTunnels = 6, 2, 2
	// forwardFiles is how many sockets an edge has: its tunnels and its control channel.
	forwardFiles = forwardPerTunnel*forwardTunnels + 1
	// retries is how often a client repeats a request that failed, each time at another gateway, as one behind a Service
	// does.
	retries = 2
	// users is how many clients send requests while gateways are killed, one every pause each.
	users, pause = 4, 50 * time.Millisecond
	// around is how long these clients go on before and after each kill, and kills how many gateways are killed.
	around, kills = 5 * time.Second, 2
)

// RunForward measures an installation in which each edge has tunnels to two of six gateways, so that most clients are
// forwarded: how even the tunnels are, a request with and without the additional hop, and what clients notice when
// gateways are killed while no xds-server runs.
func RunForward(ctx context.Context, log *record.Log, o record.Options) error {
	all, err := sizes(o, 1_000, 10_000)
	if err != nil {
		return err
	}
	most := mostForwarded()
	if most < forwardFiles {
		return errors.New("a process may not have enough sockets open")
	}
	var failed error
	for _, n := range all {
		n = min(n, most)
		r := &results{log: log, out: o, size: n, growth: growth{}}
		if err := forward(ctx, r, n); err != nil {
			o.Printf("%6d  FAILED: %v", n, err)
			failed = errors.Join(failed, fmt.Errorf("measuring %d workload clusters: %w", n, err))
		}
	}
	return failed
}

// mostForwarded returns the number of workload clusters for which the sockets of an xds-server suffice, which has the
// control channels of all edges.
func mostForwarded() int {
	limit, ok := openFiles()
	if !ok {
		return 0
	}
	return limit - reserve
}

func forward(ctx context.Context, r *results, n int) (err error) {
	ctx, cancel := context.WithTimeout(ctx, sizePatience+2*time.Duration(n)*clusterPatience) // six gateways instead of one
	defer cancel()
	w, err := newWorld(ctx, fleet.Options{
		Tunnels: forwardTunnels, Gateways: forwardGateways, GatewaysPerTunnel: forwardPerTunnel,
	})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			if logs, keeping := w.KeepLogs(); keeping == nil {
				r.out.Printf("%6d  logs are in %s", n, logs)
			}
		}
		w.Close(ctx)
	}()
	// The time of new Clusters is not measured here. Six gateways that get them one by one would take most of it.
	for _, s := range w.XDSServers {
		s.Hold()
	}
	ids, err := w.createAll(ctx, n)
	if err != nil {
		return err
	}
	for _, s := range w.XDSServers {
		s.Resume()
	}
	edges, err := w.Divide(ctx, slices.Sorted(maps.Values(ids)), mostForwarded()/forwardFiles)
	if err != nil {
		return err
	}
	defer edges.Close()
	r.add("processes of edges", "", float64(len(edges)))
	if err := spread(ctx, r, edges, n); err != nil {
		return err
	}
	open, err := edges.Follow(ctx)
	if err != nil {
		return fmt.Errorf("opening %d control channels: %w", n, err)
	}
	if err := w.quiet(ctx, n); err != nil {
		return err
	}
	r.add("edges with a control channel", "", float64(open))
	if err := errors.Join(w.memory(r, "with six gateways"), w.files(r)); err != nil {
		return err
	}
	if err := w.hop(ctx, r, ids, n); err != nil {
		return err
	}
	return w.killed(ctx, r, n)
}

// spread waits for all tunnels, and records how many the gateways with the fewest and the most have.
func spread(ctx context.Context, r *results, edges fleet.Processes, n int) error {
	ctx, cancel := context.WithTimeout(ctx, patience+time.Duration(n)*allPatience)
	defer cancel()
	all := int64(n * forwardPerTunnel * forwardTunnels)
	var each []int64
	for sum := int64(0); sum != all; {
		if err := retry.Sleep(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("waiting for %d tunnels, the gateways have %v: %w", all, each, err)
		}
		var err error
		if each, err = edges.Up(ctx); err != nil {
			return err
		}
		sum = 0
		for _, up := range each {
			sum += up
		}
	}
	r.add("tunnels of the gateway with the fewest", "", float64(slices.Min(each)))
	r.add("tunnels of the gateway with the most", "", float64(slices.Max(each)))
	return nil
}

// hop measures requests on new connections, by gateways that have a tunnel and by others. Each of them must succeed.
func (w *world) hop(ctx context.Context, r *results, ids map[string]string, n int) error {
	direct, forwarded := []time.Duration{}, []time.Duration{}
	for range r.out.Rounds(200, 40) {
		i, gateway := rand.IntN(n), rand.IntN(forwardGateways)
		host, err := hostname(i)
		if err != nil {
			return err
		}
		// The gateway may not have this Tunnel yet, and a synthetic edge opens another tunnel in place of a used one.
		if _, err := w.answersBy(ctx, gateway, host); err != nil {
			return err
		}
		begin := time.Now()
		if err := w.getBy(ctx, gateway, host); err != nil {
			return fmt.Errorf("a request to %s by gateway %d: %w", host, gateway, err)
		}
		if took := time.Since(begin); slices.Contains(w.Assigned(ids[name(i)]), gateway) {
			direct = append(direct, took)
		} else {
			forwarded = append(forwarded, took)
		}
	}
	r.times("a request by a gateway with the tunnel", direct)
	r.times("a request that is forwarded", forwarded)
	return nil
}

// killed stops all xds-servers, and kills the Envoys of some gateways one after the other while clients send requests
// by the others.
func (w *world) killed(ctx context.Context, r *results, n int) error {
	for _, s := range w.XDSServers {
		s.Hold()
		defer s.Resume()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		mu          sync.Mutex
		took        []time.Duration
		again, lost int
		group       sync.WaitGroup
	)
	for range users {
		group.Go(func() {
			for ctx.Err() == nil {
				begin := time.Now()
				repeated, err := w.retried(context.WithoutCancel(ctx), rand.IntN(n))
				mu.Lock()
				took, again = append(took, time.Since(begin)), again+repeated
				if err != nil {
					if lost++; lost <= shown {
						r.out.Printf("%6d  lost: %v", r.size, err)
					}
				}
				mu.Unlock()
				_ = retry.Sleep(ctx, pause) // the loop checks ctx
			}
		})
	}
	err := func() error {
		defer group.Wait()
		defer cancel()
		for i := range kills {
			if err := retry.Sleep(ctx, around); err != nil {
				return err
			}
			if err := w.Gateways[i].KillEnvoy(); err != nil {
				return err
			}
		}
		return retry.Sleep(ctx, around)
	}()
	if err != nil {
		return err
	}
	r.times("gateways killed without xds-servers: requests", took)
	r.add("gateways killed without xds-servers: requests", "", float64(len(took)))
	r.add("gateways killed without xds-servers: repeated", "", float64(again))
	r.add("gateways killed without xds-servers: lost", "", float64(lost))
	return nil
}

// retried sends a request to a workload cluster by one gateway after the other that is not killed, until one succeeds.
// It returns how often it was repeated.
func (w *world) retried(ctx context.Context, i int) (repeated int, err error) {
	host, err := hostname(i)
	if err != nil {
		return 0, err
	}
	first := rand.IntN(forwardGateways - kills)
	for attempt := range 1 + retries {
		gateway := kills + (first+attempt)%(forwardGateways-kills)
		failure := w.getBy(ctx, gateway, host)
		if failure == nil {
			return attempt, nil
		}
		err = errors.Join(err, fmt.Errorf("%s by gateway %d: %w", host, gateway, failure))
	}
	return retries, err
}
