package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/promise"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// attemptTime is how long a client waits for an answer, and retryTime the pause before it tries again.
	attemptTime, retryTime = time.Second, 100 * time.Millisecond
	// cutTime is how long tunnels are cut with each number of workers.
	cutTime = 10 * time.Second
	// longestWait bounds the time until a request that is retried succeeds.
	longestWait = 2 * time.Second
)

// TestWorkersWithoutATunnelAreRepaired proves that an edge keeps a tunnel to each worker of a gateway.
func TestWorkersWithoutATunnelAreRepaired(t *testing.T) {
	inTurn(t)
	for _, workers := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d workers", workers), func(t *testing.T) {
			w := &threads{
				World: newWorld(t, lab.Options{
					Lean: true, WithoutWorkload: true, GatewayWorkers: workers,
					ControllerFlags: []string{"--rollout=immediate"},
					XDSServerFlags:  []string{"--lanes=0"}, // they would serve, and nothing would need a repair
				}),
				workers: workers,
			}
			w.member = w.Member(t, "oslo", nil)
			w.Edge(t, lab.EdgeSpec{Name: "edge-oslo"}, w.member)
			that(t, fmt.Sprintf("an edge keeps two tunnels to each of %d workers", workers), func(t *testing.T) {
				eventually(t, func(context.Context) error { return w.each(2) })
			})
			w.repaired(t)
			if workers > 1 {
				w.alone(t)
				w.tooFew(t)
			}
		})
	}
}

// threads is a gateway with workers, and the tunnels of its only edge.
type threads struct {
	*world.World
	workers int
	member  *world.Member
}

// repaired destroys tunnels at random, two at a time, while clients send requests.
func (w *threads) repaired(t *testing.T) {
	that(
		t,
		fmt.Sprintf(
			"with %d workers no request fails for more than 2 s, while two tunnels at a time are cut at random", w.workers,
		),
		func(t *testing.T) {
			longest, asked, tunnels := w.cut(t, cutTime)
			measured(fmt.Sprintf("workers_%d_longest_ms", w.workers), float64(longest.Milliseconds()))
			t.Logf("%d requests, %d tunnels cut, the longest wait %v", asked, tunnels, longest)
			if longest > longestWait {
				t.Errorf("a request did not succeed for %v", longest)
			}
		},
	)
	that(t, fmt.Sprintf("each of %d workers has a tunnel after a repair", w.workers), func(t *testing.T) {
		eventually(t, func(context.Context) error { return w.each(1) })
	})
}

// alone does the same while the gateway's agent is frozen, for comparison, and to prove what the agent does afterwards.
func (w *threads) alone(t *testing.T) {
	must(t, w.Gateways[0].Process().Freeze())
	longest, asked, tunnels := w.cut(t, 5*time.Second)
	hole := false
	for range 60 {
		if hole = w.missing() == nil && w.each(1) != nil; hole {
			break
		}
		w.destroy(t)
		_ = proc.Wait(t.Context(), 3*time.Second, func(context.Context) error { return w.missing() })
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	last, _ := w.ask(ctx, t)()
	must(t, w.Gateways[0].Process().Thaw())
	longest = max(longest, last)
	measured(fmt.Sprintf("workers_%d_unrepaired_longest_ms", w.workers), float64(longest.Milliseconds()))
	t.Logf("without an agent: %d requests, %d reverse tunnels closed, the longest wait %v", asked, tunnels, longest)
	that(t, "a restarted agent repairs workers that lost their tunnels while it was down", func(t *testing.T) {
		if !hole {
			t.Error("none came")
		}
		eventually(t, func(context.Context) error { return w.each(1) })
	})
}

// tooFew makes the edge keep fewer tunnels than there are workers.
func (w *threads) tooFew(t *testing.T) {
	change := func(workers int) {
		w.Restart(t, w.XDSServers[0], w.XDSServerReady, func(s *proc.Spec) {
			for i, arg := range s.Args {
				if strings.HasPrefix(arg, "--gateway-workers=") {
					s.Args[i] = fmt.Sprintf("--gateway-workers=%d", workers)
				}
			}
		})
	}
	that(t, "status shows workers without a tunnel", func(t *testing.T) {
		change(1)
		eventually(t, func(ctx context.Context) error {
			tunnel, err := w.member.Tunnel(ctx)
			if err != nil {
				return err
			}
			for _, e := range tunnel.Status.Edges {
				for _, g := range e.Gateways {
					if g.Tunnels == 2 && g.WorkersWithout == 2 {
						return messageContains(tunnel, "has no tunnel on 2 workers of gateway-0")
					}
				}
			}
			return fmt.Errorf("edges are %+v", tunnel.Status.Edges)
		})
		change(w.workers)
		eventually(t, func(ctx context.Context) error {
			if err := w.each(1); err != nil {
				return err
			}
			tunnel, err := w.member.Tunnel(ctx)
			if err != nil {
				return err
			}
			return messageContains(tunnel, "connected to every gateway")
		})
	})
}

// messageContains returns nil if the message of the Tunnel's condition contains a text.
func messageContains(tunnel *v1alpha1.Tunnel, text string) error {
	c := meta.FindStatusCondition(tunnel.Status.Conditions, v1alpha1.ConditionTunnelReady)
	if c == nil || !strings.Contains(c.Message, text) {
		return fmt.Errorf("the condition is %+v", c)
	}
	return nil
}

// cut cuts two tunnels, and again a second or two after the edge has restored all tunnels, while clients send requests.
func (w *threads) cut(t *testing.T, duration time.Duration) (longest time.Duration, asked, tunnels int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	ask := w.ask(ctx, t)
	for ctx.Err() == nil {
		tunnels += w.destroy(t)
		_ = proc.Wait(ctx, 2*longestWait, func(context.Context) error { return w.missing() })
		_ = proc.Wait(
			ctx, time.Second+rand.N(time.Second), func(context.Context) error { return fmt.Errorf("it is not time yet") },
		)
	}
	longest, asked = ask()
	return longest, asked, tunnels
}

// ask starts clients that send requests until ctx ends, each on its own connection, and retry until they succeed. wait
// returns the longest time until success and the number of requests.
func (w *threads) ask(ctx context.Context, t *testing.T) (wait func() (longest time.Duration, asked int)) {
	var mu sync.Mutex
	var group sync.WaitGroup
	var longest time.Duration
	asked := 0
	for i := range 4 {
		path := w.member.Path(0, i%2 == 0)
		group.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				var failed []string
				for err := attempt(path); err != nil && time.Since(began) < promise.Patience; err = attempt(path) {
					failed = append(failed, fmt.Sprintf("at %s: %v", time.Now().Format("05.000"), err))
					_ = proc.Wait(
						context.Background(), retryTime, func(context.Context) error { return fmt.Errorf("it is not time yet") },
					)
				}
				took := time.Since(began)
				if took > longestWait {
					t.Logf("begun at %s, took %s: %q", began.Format("15:04:05.000"), took, failed)
				}
				mu.Lock()
				longest, asked = max(longest, took), asked+1
				mu.Unlock()
			}
		})
	}
	return func() (time.Duration, int) { group.Wait(); return longest, asked }
}

func attempt(p traffic.Path) error {
	ctx, cancel := context.WithTimeout(context.Background(), attemptTime)
	defer cancel()
	_, err := p.Get(ctx, "/whoami")
	return err
}

// live returns the current tunnels: their workers by the edge's address.
func (w *threads) live() (map[netip.AddrPort]int, error) { return liveTunnels(w.Gateways[0]) }

// each returns nil if each worker has at least the given number of tunnels, and the edge has all of its tunnels.
func (w *threads) each(least int) error {
	live, err := w.live()
	if err != nil {
		return err
	}
	count := make([]int, w.workers)
	for _, worker := range live {
		count[worker]++
	}
	for _, n := range count {
		if n < least {
			return fmt.Errorf("the workers have %v tunnels", count)
		}
	}
	return w.missing()
}

// missing returns an error unless the edge has all of its tunnels.
func (w *threads) missing() error {
	live, err := w.live()
	if err == nil && len(live) != 2*w.workers {
		err = fmt.Errorf("there are %d tunnels, not %d", len(live), 2*w.workers)
	}
	return err
}

// destroy destroys the sockets of two tunnels at the gateway, like a network that has lost their state, and returns
// when the gateway has noticed.
func (w *threads) destroy(t *testing.T) (n int) {
	t.Helper()
	live, err := w.live()
	must(t, err)
	var gone []netip.AddrPort
	for peer := range live { // map order is random
		command := w.Network.Gateways[0].Command(
			t.Context(), "ss", "-K", "dst", peer.Addr().String(), "dport", "=", strconv.Itoa(int(peer.Port())),
		)
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("destroying a tunnel: %v: %s", err, out)
		}
		if gone = append(gone, peer); len(gone) == 2 {
			break
		}
	}
	must(t, proc.Wait(t.Context(), promise.Patience, func(context.Context) error {
		live, err := w.live()
		for _, peer := range gone {
			if _, still := live[peer]; err == nil && still {
				err = fmt.Errorf("the tunnel of %s is there still", peer)
			}
		}
		return err
	}))
	return len(gone)
}
