package traffic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/test/lab/netns"
)

// Retry configures how clients retry.
type Retry struct {
	Attempts int           // of one request; 0: as many as Patience permits
	Patience time.Duration // the time after which a request without Attempts has finally failed
	Pause    time.Duration // between attempts
	// returns the number of the gateway of the next connection; nil: any gateway in the common DNS name
	Gateway func() int
}

// Retrying is clients that retry failed requests, like client-go.
type Retrying struct {
	Retry
	target   string
	every    time.Duration // the least time between two requests of a client
	requests atomic.Int64
	again    atomic.Int64
	mu       sync.Mutex
	longest  time.Duration
	failures []error
}

// retryingClients share the rate.
const retryingClients = 8

// StartRetrying starts clients that send requests on all paths in turn, at a rate that they share, until the test ends.
// It ignores the gateway of a path.
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

// client sends one request after the other, several on each connection.
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

// attempt sends a request on an open connection, or on a new one. It returns the connection if it can be used again.
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

// anyGateway returns the number of a gateway in the common DNS name.
func anyGateway(from *netns.Namespace) int {
	addresses := from.Addresses(netns.GatewayName)
	picked := addresses[rand.IntN(len(addresses))]
	for i := 0; ; i++ {
		if slices.Contains(netns.DualStack.Of(netns.InsideAddress(i)), picked) {
			return i
		}
	}
}

// over reports whether a request has finally failed.
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

// Requests returns how many requests have ended, successfully or not.
func (r *Retrying) Requests() int64 { return r.requests.Load() }

// Again returns how many attempts have failed and were retried.
func (r *Retrying) Again() int64 { return r.again.Load() }

// Longest returns the duration of the longest request, including its retries.
func (r *Retrying) Longest() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.longest
}

// More returns a condition that is nil once the given number of further requests have ended.
func (r *Retrying) More(requests int64) func(context.Context) error {
	want := r.requests.Load() + requests
	return func(context.Context) error {
		if n := r.requests.Load(); n < want {
			return fmt.Errorf("%d of %d requests", n, want)
		}
		return nil
	}
}

// Err returns an error if requests have finally failed since the previous call.
func (r *Retrying) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	failures := r.failures
	if r.failures = nil; len(failures) == 0 {
		return nil
	}
	return fmt.Errorf(
		"%d of %d requests failed for good, such as: %w", len(failures), r.requests.Load(),
		errors.Join(failures[:min(3, len(failures))]...),
	)
}
