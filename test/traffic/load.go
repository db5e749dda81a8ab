package traffic

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/promise"
)

// Load sends requests at a given rate, and follows streams. It does not retry.
type Load struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	since  time.Time

	perConnection int // requests of a worker on one connection

	mu        sync.Mutex
	requests  int
	slow      []long
	longest   time.Duration
	failures  []failure
	followers []*Follower
}

// long is a request that took longer than SlowRequest.
type long struct {
	begun time.Time
	took  time.Duration
	path  Path
}

func (l long) String() string {
	return fmt.Sprintf("%s %s took %s", l.begun.Format("15:04:05.000"), l.path, l.took)
}

// failure is a request that failed.
type failure struct {
	begun, at time.Time
	err       error
}

func (f failure) String() string { return f.at.Format("15:04:05.000 ") + f.err.Error() }

const (
	// workers share the rate. Each has one connection at a time.
	workers = 24
	// kept is how many requests a worker usually sends on one connection, so that the load always has both new and old
	// connections.
	kept = 25
	// SlowRequest is far longer than a request takes on a busy machine when nothing is wrong.
	SlowRequest = time.Second
)

// Start starts a load on all paths in turn, with some streams on each.
func Start(t *testing.T, perSecond int, streams int, target string, paths ...Path) *Load {
	t.Helper()
	return start(t, kept, perSecond, streams, target, paths)
}

// StartFresh is Start with a new connection for each request, and without streams.
func StartFresh(t *testing.T, perSecond int, target string, paths ...Path) *Load {
	t.Helper()
	return start(t, 1, perSecond, 0, target, paths)
}

func start(t *testing.T, perConnection, perSecond, streams int, target string, paths []Path) *Load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &Load{cancel: cancel, since: time.Now(), perConnection: perConnection}
	turns := make(chan struct{})
	l.done.Go(func() { giveTurns(ctx, turns, perSecond) })
	for i := range workers {
		l.done.Go(func() { l.work(ctx, turns, target, paths[i%len(paths)], i) })
	}
	for _, p := range paths {
		for range streams {
			f, err := p.Follow(ctx)
			promise.Must(t, err)
			l.followers = append(l.followers, f)
		}
	}
	t.Cleanup(l.Stop)
	return l
}

// giveTurns lets the workers send requests at the given rate until ctx ends, and then closes turns, which ends all
// workers. It does not make up for delays.
func giveTurns(ctx context.Context, turns chan<- struct{}, perSecond int) {
	defer close(turns)
	ticker := time.NewTicker(time.Second / time.Duration(perSecond))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		select {
		case <-ctx.Done():
			return
		case turns <- struct{}{}:
		}
	}
}

// work sends requests until ctx ends. It opens a connection when there is a request for it. The first connection is
// used for fewer requests, so that the workers do not reconnect at the same time.
func (l *Load) work(ctx context.Context, turns <-chan struct{}, target string, p Path, i int) {
	var s *Session
	var err error
	defer func() { s.Close() }()
	for left := min(1+i, l.perConnection); ; left-- {
		if <-turns; ctx.Err() != nil {
			return
		}
		begun := time.Now()
		if s == nil {
			s, err = p.openIn(ctx)
		}
		if err == nil {
			err = l.ask(ctx, begun, s, target, p)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			l.fail(begun, fmt.Errorf("%s: %w", p, err))
		}
		if err != nil || left <= 1 {
			s.Close()
			s, err, left = nil, nil, l.perConnection+1
		}
	}
}

// openIn is Open with a timeout.
func (p Path) openIn(ctx context.Context) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	return p.Open(ctx)
}

// ask sends one request and counts it, including the time to open its connection if that is new. A request that the end
// of the load interrupts is not counted.
func (l *Load) ask(ctx context.Context, begun time.Time, s *Session, target string, p Path) error {
	within, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	_, err := s.Get(within, target)
	took := time.Since(begun)
	if ctx.Err() != nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests++
	l.longest = max(l.longest, took)
	if took > SlowRequest {
		l.slow = append(l.slow, long{begun, took, p})
	}
	return err
}

func (l *Load) fail(begun time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures = append(l.failures, failure{begun, time.Now(), err})
}

// Stop ends the load, and returns when no request is in flight.
func (l *Load) Stop() {
	l.cancel()
	for _, f := range l.followers {
		f.Close()
	}
	l.done.Wait()
}

// Mark is the state of a load at some time.
type Mark struct {
	At             time.Time
	Requests, Slow int
	Failed         int
	Longest        time.Duration // duration of a request
}

// Count returns the current state.
func (l *Load) Count() Mark {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Mark{time.Now(), l.requests, len(l.slow), len(l.failures), l.longest}
}

// RateSince returns the requests per second since a mark.
func (l *Load) RateSince(m Mark) float64 {
	return float64(l.Count().Requests-m.Requests) / time.Since(m.At).Seconds()
}

// Unbroken returns an error if a request has failed since a mark, or if any stream has broken.
func (l *Load) Unbroken(since Mark) error {
	l.mu.Lock()
	failures := slices.Clone(l.failures[since.Failed:])
	l.mu.Unlock()
	var errs []error
	for _, f := range l.followers {
		errs = append(errs, f.Alive())
	}
	if len(failures) > 0 {
		errs = append(errs, fmt.Errorf("%d requests failed, such as: %q", len(failures), failures[:min(3, len(failures))]))
	}
	return errors.Join(errs...)
}

// Usual returns the longest acceptable duration of a request: SlowRequest, or three times the longest duration on this
// machine so far, whichever is longer.
func (l *Load) Usual() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(SlowRequest, 3*l.longest)
}

// BegunAfter returns the requests that began after a time and took longer than usual, and an error if one of them
// failed.
func (l *Load) BegunAfter(at time.Time, usual time.Duration) (slow []string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.slow {
		if s.begun.After(at) && s.took > usual {
			slow = append(slow, s.String())
		}
	}
	var failures []failure
	for _, f := range l.failures {
		if f.begun.After(at) {
			failures = append(failures, f)
		}
	}
	if len(failures) > 0 {
		err = fmt.Errorf(
			"%d requests that were begun later failed, such as: %q", len(failures), failures[:min(3, len(failures))],
		)
	}
	return slow, err
}

// Broken returns how many streams have broken.
func (l *Load) Broken() (n int) {
	for _, f := range l.followers {
		if f.Alive() != nil {
			n++
		}
	}
	return n
}

// AtLeast returns a condition that is nil once a load has sent the given number of requests.
func (l *Load) AtLeast(requests int) func(context.Context) error {
	return func(context.Context) error {
		if n := l.Count().Requests; n < requests {
			return fmt.Errorf("%d of %d requests", n, requests)
		}
		return nil
	}
}
