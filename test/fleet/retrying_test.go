package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

// retrying are clients that make a request that fails again.
type retrying struct {
	pick     func() int    // the gateway of the next connection
	patience time.Duration // for how long a request is made again; 0: it is made so often as attempts says
	requests atomic.Int64
	again    atomic.Int64 // attempts that failed
	mu       sync.Mutex
	longest  time.Duration // a request with all of its attempts
	failures []error       // requests that failed for good
}

const (
	// retryingClients share the rate.
	retryingClients = 8
	// attempts of a request, and the pause between them: client-go makes more, and pauses for a second.
	attempts = 3
	pause    = 100 * time.Millisecond
	// perConnection is how many requests a client makes on one connection.
	perConnection = 20
)

// startRetrying has clients that find gateways by their common name begin to ask, until the test ends.
func startRetrying(t *testing.T, w *world.World, members []*world.Member) *retrying {
	t.Helper()
	r := &retrying{pick: func() int { return anyGateway(w) }}
	r.start(t, members)
	return r
}

// start begins to ask, until the test ends.
func (r *retrying) start(t *testing.T, members []*world.Member) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for i := range retryingClients {
		clients.Go(func() { r.client(ctx, members[i%len(members)], i%4 < 2) })
	}
	t.Cleanup(func() { cancel(); clients.Wait() })
}

func (r *retrying) client(ctx context.Context, m *world.Member, byConnect bool) {
	ticker := time.NewTicker(retryingClients * time.Second / replicasRate)
	defer ticker.Stop()
	var s *traffic.Session
	defer func() { s.Close() }()
	for left := perConnection; ; left-- {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if left <= 0 {
			s.Close()
			s, left = nil, perConnection
		}
		begun := time.Now()
		var err error
		for attempt := 1; ; attempt++ {
			if s, err = r.ask(ctx, s, m, byConnect); err == nil || ctx.Err() != nil || r.over(attempt, begun) {
				break
			}
			r.again.Add(1)
			_ = retry.Sleep(ctx, pause)
		}
		if ctx.Err() != nil {
			return
		}
		r.note(begun, err)
	}
}

// over says whether a request has failed for good.
func (r *retrying) over(attempt int, begun time.Time) bool {
	if r.patience == 0 {
		return attempt == attempts
	}
	return time.Since(begun) > r.patience
}

func (r *retrying) note(begun time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests.Add(1)
	r.longest = max(r.longest, time.Since(begun))
	if err != nil {
		r.failures = append(r.failures, fmt.Errorf("%s: %w", begun.Format("15:04:05.000"), err))
	}
}

// worst is how long the longest request took with all of its attempts.
func (r *retrying) worst() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.longest
}

// ask makes one attempt, on the connection that there is or on a new one to any gateway. It returns the connection if it can be used
// again.
func (r *retrying) ask(ctx context.Context, s *traffic.Session, m *world.Member, byConnect bool) (*traffic.Session, error) {
	ctx, cancel := context.WithTimeout(ctx, traffic.RequestTimeout)
	defer cancel()
	var err error
	if s == nil {
		if s, err = m.Path(r.pick(), byConnect).Open(ctx); err != nil {
			return nil, err
		}
	}
	if _, err = s.Get(ctx, "/whoami"); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// anyGateway is the number of a gateway that the common name leads to.
func anyGateway(w *world.World) int {
	addresses := w.Network.Management.Addresses(lab.GatewayName)
	picked := addresses[rand.IntN(len(addresses))]
	for i := 0; ; i++ {
		if lab.InsideAddress(i) == picked {
			return i
		}
	}
}

func (r *retrying) atLeast(requests int64) func(context.Context) error {
	return func(context.Context) error {
		if n := r.requests.Load(); n < requests {
			return fmt.Errorf("%d of %d requests", n, requests)
		}
		return nil
	}
}

func (r *retrying) check(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.failures); n > 0 {
		t.Errorf("%d of %d requests failed for good, such as: %v", n, r.requests.Load(), errors.Join(r.failures[:min(3, n)]...))
	}
}
