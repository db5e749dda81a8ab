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

// Load asks all the time, at a given rate, and follows streams. No request is made twice.
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

// long is a request that took longer than slowRequest.
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
	// workers share the rate; each has one connection at a time.
	workers = 24
	// kept is how many requests a worker usually makes on one connection: so both new and old connections are always there.
	kept = 25
	// SlowRequest is far more than a request takes when nothing is wrong, on a machine that is busy.
	SlowRequest = time.Second
)

// Start begins to ask along all paths in turn, with some streams on each.
func Start(t *testing.T, perSecond int, streams int, target string, paths ...Path) *Load {
	t.Helper()
	return start(t, kept, perSecond, streams, target, paths)
}

// StartFresh is Start with a connection for each request, and no streams.
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

// giveTurns lets one worker after the other make a request, until ctx ends: then everybody has a turn. What is late is not
// made up for.
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

// work makes requests until ctx ends. A connection is opened when there is a request for it. The first one is a shorter one,
// so that not all change at once.
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

// openIn is open with a deadline.
func (p Path) openIn(ctx context.Context) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	return p.Open(ctx)
}

// ask makes one request and counts it, with the time for its connection, if that is new. That it was cut off by the end of the
// load doesn't count.
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

// Stop ends it, and returns when nothing is under way any more.
func (l *Load) Stop() {
	l.cancel()
	for _, f := range l.followers {
		f.Close()
	}
	l.done.Wait()
}

// Mark is what a load has done up to now.
type Mark struct {
	At             time.Time
	Requests, Slow int
	Failed         int
	Longest        time.Duration // that a request took
}

// Count is what it has done up to now.
func (l *Load) Count() Mark {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Mark{time.Now(), l.requests, len(l.slow), len(l.failures), l.longest}
}

// RateSince is how many requests a second were made.
func (l *Load) RateSince(m Mark) float64 {
	return float64(l.Count().Requests-m.Requests) / time.Since(m.At).Seconds()
}

// Unbroken is no error if since a mark no request failed, and no stream has broken at all.
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

// Usual is what a request may take at most: what is far more on any machine, or thrice of what one has taken up to now on this one.
func (l *Load) Usual() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(SlowRequest, 3*l.longest)
}

// BegunAfter are the requests that were begun after a time and took longer than usual, and an error if one of them failed.
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
		err = fmt.Errorf("%d requests that were begun later failed, such as: %q", len(failures), failures[:min(3, len(failures))])
	}
	return slow, err
}

// Broken is how many streams have broken.
func (l *Load) Broken() (n int) {
	for _, f := range l.followers {
		if f.Alive() != nil {
			n++
		}
	}
	return n
}

// AtLeast is the condition that a load has made a number of requests.
func (l *Load) AtLeast(requests int) func(context.Context) error {
	return func(context.Context) error {
		if n := l.Count().Requests; n < requests {
			return fmt.Errorf("%d of %d requests", n, requests)
		}
		return nil
	}
}
