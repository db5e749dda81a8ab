package traffic

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
	"github.com/fairlead/fairlead/test/lab/netns"
)

// Retry says how clients make a request that fails again.
type Retry struct {
	Attempts int           // of a request; 0: as many as there is time for
	Patience time.Duration // after which a request without Attempts has failed for good
	Pause    time.Duration // between attempts
	Gateway  func() int    // number of the gateway of the next connection; nil: any that the common name leads to
}

// Retrying are clients that make a request that fails again, as client-go does.
type Retrying struct {
	Retry
	target   string
	every    time.Duration // a client's next request, at the soonest
	requests atomic.Int64
	again    atomic.Int64
	mu       sync.Mutex
	longest  time.Duration
	failures []error
}

// retryingClients share the rate.
const retryingClients = 8

// StartRetrying begins to ask along all paths in turn, at a rate that all clients share, until the test ends. The gateway of a path doesn't count.
func StartRetrying(t *testing.T, how Retry, perSecond int, target string, paths ...Path) *Retrying {
	t.Helper()
	r := &Retrying{Retry: how, target: target, every: retryingClients * time.Second / time.Duration(perSecond)}
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for i := range retryingClients {
		clients.Go(func() { r.client(ctx, paths[i%len(paths)]) })
	}
	t.Cleanup(func() { cancel(); clients.Wait() })
	return r
}

// client makes one request after the other, some on each connection.
func (r *Retrying) client(ctx context.Context, p Path) {
	ticker := time.NewTicker(r.every)
	defer ticker.Stop()
	var s *Session
	defer func() { s.Close() }()
	for left := kept; ; left-- {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if left <= 0 {
			s.Close()
			s, left = nil, kept
		}
		begun := time.Now()
		var err error
		for attempt := 1; ; attempt++ {
			if s, err = r.attempt(ctx, s, p); err == nil || ctx.Err() != nil || r.over(attempt, begun) {
				break
			}
			r.again.Add(1)
			_ = retry.Sleep(ctx, r.Pause)
		}
		if ctx.Err() != nil {
			return
		}
		r.note(begun, err)
	}
}

// attempt makes a request on the connection that there is, or on a new one. It returns the connection if it can be used again.
func (r *Retrying) attempt(ctx context.Context, s *Session, p Path) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	var err error
	if s == nil {
		if p.Gateway = anyGateway(p.From); r.Gateway != nil {
			p.Gateway = r.Gateway()
		}
		if s, err = p.Open(ctx); err != nil {
			return nil, err
		}
	}
	if _, err = s.Get(ctx, r.target); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// anyGateway is the number of a gateway that the common name leads to.
func anyGateway(from *netns.Namespace) int {
	addresses := from.Addresses(netns.GatewayName)
	picked := addresses[rand.IntN(len(addresses))]
	for i := 0; ; i++ {
		if netns.InsideAddress(i) == picked {
			return i
		}
	}
}

// over says whether a request has failed for good.
func (r *Retrying) over(attempt int, begun time.Time) bool {
	if r.Attempts > 0 {
		return attempt == r.Attempts
	}
	return time.Since(begun) > r.Patience
}

func (r *Retrying) note(begun time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests.Add(1)
	r.longest = max(r.longest, time.Since(begun))
	if err != nil {
		r.failures = append(r.failures, fmt.Errorf("%s: %w", begun.Format("15:04:05.000"), err))
	}
}

// Requests is how many have ended, well or not.
func (r *Retrying) Requests() int64 { return r.requests.Load() }

// Again is how many attempts have failed and were followed by another.
func (r *Retrying) Again() int64 { return r.again.Load() }

// Longest is how long the longest request took with all of its attempts.
func (r *Retrying) Longest() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.longest
}

// More is the condition that some more requests have ended than now.
func (r *Retrying) More(requests int64) func(context.Context) error {
	want := r.requests.Load() + requests
	return func(context.Context) error {
		if n := r.requests.Load(); n < want {
			return fmt.Errorf("%d of %d requests", n, want)
		}
		return nil
	}
}

// Err is an error if requests have failed for good since it was called last.
func (r *Retrying) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	failures := r.failures
	if r.failures = nil; len(failures) == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d requests failed for good, such as: %w", len(failures), r.requests.Load(), errors.Join(failures[:min(3, len(failures))]...))
}
