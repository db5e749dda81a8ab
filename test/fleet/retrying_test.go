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

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

// retrying are clients that find gateways by their common name, and make a request that fails again, by whichever gateway.
type retrying struct {
	world    *world.World
	requests atomic.Int64
	again    atomic.Int64 // attempts that failed
	mu       sync.Mutex
	failures []error // requests that failed for good
}

const (
	// retryingClients share the rate.
	retryingClients = 8
	// attempts of a request: as with client-go, which has more.
	attempts = 3
	// perConnection is how many requests a client makes on one connection.
	perConnection = 20
)

// startRetrying begins to ask, until the test ends.
func startRetrying(t *testing.T, w *world.World, members []*world.Member) *retrying {
	t.Helper()
	r := &retrying{world: w}
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for i := range retryingClients {
		clients.Go(func() { r.client(ctx, members[i%len(members)], i%4 < 2) })
	}
	t.Cleanup(func() { cancel(); clients.Wait() })
	return r
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
		var err error
		for range attempts {
			if s, err = r.ask(ctx, s, m, byConnect); err == nil || ctx.Err() != nil {
				break
			}
			r.again.Add(1)
		}
		if ctx.Err() != nil {
			return
		}
		r.requests.Add(1)
		if err != nil {
			r.mu.Lock()
			r.failures = append(r.failures, fmt.Errorf("%s: %w", time.Now().Format("15:04:05.000"), err))
			r.mu.Unlock()
		}
	}
}

// ask makes one attempt, on the connection that there is or on a new one to any gateway. It returns the connection if it can be used
// again.
func (r *retrying) ask(ctx context.Context, s *traffic.Session, m *world.Member, byConnect bool) (*traffic.Session, error) {
	ctx, cancel := context.WithTimeout(ctx, traffic.RequestTimeout)
	defer cancel()
	var err error
	if s == nil {
		if s, err = m.Path(r.any(), byConnect).Open(ctx); err != nil {
			return nil, err
		}
	}
	if _, err = s.Get(ctx, "/whoami"); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// any is the number of a gateway that the common name leads to.
func (r *retrying) any() int {
	addresses := r.world.Network.Management.Addresses(lab.GatewayName)
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
		t.Errorf("%d of %d requests failed %d times in a row, such as: %v", n, r.requests.Load(), attempts, errors.Join(r.failures[:min(3, n)]...))
	}
}
