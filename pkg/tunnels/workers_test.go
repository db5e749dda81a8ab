package tunnels

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/sockets"
)

// TestNoRequestWaitsForAWorkerWithoutTunnel destroys two tunnels of an edge at a time, at random, while clients open
// one connection after the other: with a gateway of one worker, of four, and of four without repair for comparison.
// test/fleet does the same with a whole installation, and for longer.
func TestNoRequestWaitsForAWorkerWithoutTunnel(t *testing.T) {
	needsRight(t)
	for name, tt := range map[string]struct {
		workers int
		repairs bool
	}{
		"one worker":                    {1, true},
		"four workers":                  {4, true},
		"four workers without an agent": {4, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // the test mostly waits
			const duration = 15 * time.Second
			const longest = 4 * time.Second // verify-fleet, which has the machine to itself, promises two seconds
			l := (&lab{Address: "127.0.0.1", Dials: "127.0.0.1", Workers: tt.workers, Count: atLeast * tt.workers}).start(t)
			b := &bed{path: filepath.Join(l.dir, "tunnels.log")}
			b.Table = New(Config{
				Domain: domain, Log: b.path, Workers: tt.workers, Logger: slog.New(slog.NewTextHandler(l.log, nil)),
				Reopen: func(ctx context.Context) error {
					_, err := l.gateway.Admin(ctx, http.MethodPost, "/reopen_logs")
					return err
				},
			})
			if !tt.repairs {
				b.repairs.budget.SetBurst(0)
			}
			b.run(t)
			want := map[string]int{"edge-1": l.Count, "edge-2": l.Count}
			waitForTunnels(t, b.Table, want)

			ctx, cancel := context.WithTimeout(t.Context(), duration)
			defer cancel()
			tries := l.tries(ctx, l.Tunnels[0], 4)
			holes := b.destroy(t, ctx, "edge-1", tt.workers)
			result := tries()
			t.Logf(
				"%d workers, repair %t: %d requests, of which %d had to be tried again, the longest for %v; %d workers without a "+
					"tunnel, for %v together, the longest for %v; %+v",
				tt.workers,
				tt.repairs,
				result.requests,
				result.failed,
				result.longest,
				holes.count,
				holes.sum,
				holes.longest,
				b.Stats(),
			)
			if !tt.repairs {
				return
			}
			if result.longest > longest {
				t.Errorf("a request did not succeed for %v", result.longest)
			}
			waitForTunnels(t, b.Table, want)
			eventually.True(t, envoytest.Patience, "each worker has tunnels", func() error {
				if n := b.without("edge-1", tt.workers); n > 0 || len(b.UnservedWorkers()) > 0 {
					return fmt.Errorf("%d have none, known are %+v", n, b.UnservedWorkers())
				}
				return nil
			})
		})
	}
}

// tally counts the results of requests.
type tally struct {
	requests, failed int
	longest          time.Duration // from the start of a request that failed to its success
}

// tries has clients send one request after the other, each on a connection of its own. A client gives up after a
// second, and repeats the request every 100 ms until it succeeds.
func (l *lab) tries(ctx context.Context, tunnel labTunnel, clients int) (wait func() tally) {
	var mu sync.Mutex
	var all tally
	var group sync.WaitGroup
	for range clients {
		group.Go(func() {
			for ctx.Err() == nil {
				began, failed := time.Now(), 0
				for try(tunnel.Clients) != nil {
					failed++
					time.Sleep(100 * time.Millisecond)
				}
				mu.Lock()
				all.requests++
				if failed > 0 {
					all.failed++
				}
				all.longest = max(all.longest, time.Since(began))
				mu.Unlock()
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	return func() tally { group.Wait(); return all }
}

func try(port int) error {
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("hello\n")); err != nil {
		return err
	}
	_, err = bufio.NewReader(conn).ReadString('\n')
	return err
}

// holes are the periods during which a worker had no tunnel.
type holes struct {
	count        int
	sum, longest time.Duration
}

// destroy destroys two tunnels of a node about once a second until ctx ends.
func (b *bed) destroy(t *testing.T, ctx context.Context, node string, workers int) (h holes) {
	t.Helper()
	var k sockets.Kernel
	defer k.Close()
	compare := time.NewTicker(10 * time.Millisecond)
	defer compare.Stop()
	since := make([]time.Time, workers)
	for next := time.Now(); ; {
		select {
		case <-ctx.Done():
			return h
		case <-compare.C:
		}
		now := time.Now()
		for i, n := range b.spread(node, workers) {
			switch {
			case n == 0 && since[i].IsZero():
				since[i] = now
				h.count++
			case n > 0 && !since[i].IsZero():
				h.sum += now.Sub(since[i])
				h.longest = max(h.longest, now.Sub(since[i]))
				since[i] = time.Time{}
			}
		}
		if now.Before(next) {
			continue
		}
		next = now.Add(time.Second + rand.N(time.Second))
		victims := b.of(node)
		rand.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
		for _, v := range victims[:min(2, len(victims))] {
			if s, err := k.Get(v.Local, v.Remote); err == nil {
				_ = k.Destroy(s)
			}
		}
	}
}

func (b *bed) of(node string) (all []tunnel) {
	b.Table.mu.Lock()
	defer b.Table.mu.Unlock()
	for _, e := range b.live {
		if e.Node == node {
			all = append(all, e.tunnel)
		}
	}
	return all
}

// spread returns the number of tunnels of a node on each worker.
func (b *bed) spread(node string, workers int) []int {
	count := make([]int, workers)
	for _, tunnel := range b.of(node) {
		count[workerOf(tunnel.Worker, workers)]++
	}
	return count
}

func (b *bed) without(node string, workers int) (n int) {
	return len(slices.DeleteFunc(b.spread(node, workers), func(n int) bool { return n > 0 }))
}
