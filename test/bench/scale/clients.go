package scale

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/test/synthetic"
)

const (
	// clientsEach is how many connections Cluster API has to a workload cluster: two caches and a probe.
	clientsEach = 3
	// probeInterval is ClusterCache's time between two probes.
	probeInterval = 10 * time.Second
	// clientTime is how long clients are observed: two probes of each.
	clientTime = 2 * probeInterval
	// dialling is how many clients dial at the same time, and attempts how often each tries.
	dialling, attempts = 32, 10
	// shown is how many failures are printed.
	shown = 20
)

// clients opens three connections to each of the given number of workload clusters. Two of them are silent, like
// watches. The third has a request as often as Cluster API probes.
func (w *world) clients(ctx context.Context, r *results, clusters int) error {
	if clusters == 0 {
		r.out.Printf("%6d  no room for clients: a process may not have so many sockets open", r.size)
		return nil
	}
	before, err := w.memoryOf("gateway")
	if err != nil {
		return err
	}
	begin := time.Now()
	conns, failed, err := w.watchAll(ctx, r, clusters)
	defer func() {
		for _, conn := range conns {
			_ = conn.Close()
		}
	}()
	if err != nil {
		return err
	}
	r.add("workload clusters with three clients", "", float64(clusters))
	r.add("new connections of clients", "1/s", float64(len(conns))/time.Since(begin).Seconds())
	r.add("new connections of clients: failed", "", float64(failed))
	if failed > 0 {
		w.explain(r)
	}
	if err := w.memory(r, "with three clients each"); err != nil {
		return err
	}
	after, err := w.memoryOf("gateway")
	if err != nil {
		return err
	}
	each := (after - before) / float64(clusters)
	r.of("gateway", "memory of a tunnel in use with three clients", "KB", each*1e3)
	if clusters < r.size { // the others have no clients, because the process has too few sockets
		r.of("gateway", "memory if all had three clients", "MB", before+each*float64(r.size))
	}
	var took []time.Duration
	err = w.usage(ctx, r, "a second of probes", int(clientTime/time.Second), nil, func() error {
		took = w.probeAll(ctx, clusters)
		return nil
	})
	r.times("Cluster API's probe on a new connection", took)
	return err
}

// watchAll opens the connections, with a watch on each. It retries connections that fail, as Cluster API does.
func (w *world) watchAll(ctx context.Context, r *results, clusters int) (conns []*tls.Conn, failed int, err error) {
	var mu sync.Mutex
	group, bounded := errgroup.WithContext(ctx)
	group.SetLimit(dialling)
	for i := range clusters * clientsEach {
		group.Go(func() error {
			host, err := hostname(i % clusters)
			for range attempts {
				if err != nil || bounded.Err() != nil {
					return errors.Join(err, bounded.Err())
				}
				began := time.Now()
				conn, failure := w.watch(bounded, host)
				mu.Lock()
				if failure == nil {
					conns = append(conns, conn)
					mu.Unlock()
					return nil
				}
				if failed++; failed <= shown {
					r.out.Printf("%6d  connecting to %s, after %s: %v", r.size, host, time.Since(began), failure)
				}
				mu.Unlock()
			}
			return fmt.Errorf("connecting to %s: it failed %d times", host, attempts)
		})
	}
	err = group.Wait()
	return conns, failed, err
}

// watch opens a connection with a watch on it.
func (w *world) watch(ctx context.Context, host string) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, synthetic.Patience)
	defer cancel()
	conn, err := w.connect(ctx, host)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(conn, "GET /api?watch=true HTTP/1.1\r\nHost: %s\r\n\r\n", host); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// probeAll probes each workload cluster once in each probeInterval, evenly spread, for clientTime.
func (w *world) probeAll(ctx context.Context, clusters int) []time.Duration {
	ctx, cancel := context.WithTimeout(ctx, clientTime)
	defer cancel()
	var (
		mu   sync.Mutex
		took []time.Duration
		all  sync.WaitGroup
	)
	slots := make(chan struct{}, dialling)
	tick := time.NewTicker(probeInterval / time.Duration(clusters))
	defer tick.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		select {
		case <-ctx.Done():
			continue
		case <-tick.C:
		}
		host, err := hostname(i % clusters)
		if err != nil {
			continue
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			begin := time.Now()
			if w.get(context.WithoutCancel(ctx), host) == nil {
				mu.Lock()
				defer mu.Unlock()
				took = append(took, time.Since(begin))
			}
		})
	}
	all.Wait()
	return took
}
