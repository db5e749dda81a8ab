package identity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// load asks all the time, at a given rate, and follows streams. No request is made twice.
type load struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	since  time.Time

	perConnection int // requests of a worker on one connection

	mu        sync.Mutex
	requests  int
	slow      []long
	longest   time.Duration
	failures  []failure
	followers []*follower
}

// long is a request that took longer than slowRequest.
type long struct {
	begun time.Time
	took  time.Duration
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
	// slowRequest is far more than a request takes when nothing is wrong, on a machine that is busy.
	slowRequest = time.Second
)

// startLoad begins to ask along all paths in turn, with some streams on each.
func startLoad(t *testing.T, perSecond int, streams int, target string, paths ...path) *load {
	t.Helper()
	return start(t, kept, perSecond, streams, target, paths)
}

// startFreshLoad is startLoad with a connection for each request, and no streams.
func startFreshLoad(t *testing.T, perSecond int, target string, paths ...path) *load {
	t.Helper()
	return start(t, 1, perSecond, 0, target, paths)
}

func start(t *testing.T, perConnection, perSecond, streams int, target string, paths []path) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{cancel: cancel, since: time.Now(), perConnection: perConnection}
	turns := make(chan struct{})
	l.done.Go(func() { giveTurns(ctx, turns, perSecond) })
	for i := range workers {
		l.done.Go(func() { l.work(ctx, turns, target, paths[i%len(paths)], i) })
	}
	for _, p := range paths {
		for range streams {
			f, err := p.follow(ctx)
			must(t, err)
			l.followers = append(l.followers, f)
		}
	}
	t.Cleanup(l.stop)
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
func (l *load) work(ctx context.Context, turns <-chan struct{}, target string, p path, i int) {
	var s *session
	var err error
	defer func() { s.close() }()
	for left := min(1+i, l.perConnection); ; left-- {
		if <-turns; ctx.Err() != nil {
			return
		}
		begun := time.Now()
		if s == nil {
			s, err = p.openIn(ctx)
		}
		if err == nil {
			err = l.ask(ctx, begun, s, target)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			l.fail(begun, fmt.Errorf("%s: %w", p, err))
		}
		if err != nil || left <= 1 {
			s.close()
			s, err, left = nil, nil, l.perConnection+1
		}
	}
}

// openIn is open with a deadline.
func (p path) openIn(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return p.open(ctx)
}

// ask makes one request and counts it, with the time for its connection, if that is new. That it was cut off by the end of the
// load doesn't count.
func (l *load) ask(ctx context.Context, begun time.Time, s *session, target string) error {
	within, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := s.get(within, target)
	took := time.Since(begun)
	if ctx.Err() != nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests++
	l.longest = max(l.longest, took)
	if took > slowRequest {
		l.slow = append(l.slow, long{begun, took})
	}
	return err
}

func (l *load) fail(begun time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures = append(l.failures, failure{begun, time.Now(), err})
}

func (l *load) stop() {
	l.cancel()
	for _, f := range l.followers {
		f.close()
	}
	l.done.Wait()
}

// mark is what a load has done up to now.
type mark struct {
	at             time.Time
	requests, slow int
	failed         int
}

func (l *load) mark() mark {
	l.mu.Lock()
	defer l.mu.Unlock()
	return mark{time.Now(), l.requests, len(l.slow), len(l.failures)}
}

// rateSince is how many requests a second were made.
func (l *load) rateSince(m mark) float64 {
	return float64(l.mark().requests-m.requests) / time.Since(m.at).Seconds()
}

// unbroken is no error if since a mark no request failed, and no stream has broken at all.
func (l *load) unbroken(since mark) error {
	l.mu.Lock()
	failures := slices.Clone(l.failures[since.failed:])
	l.mu.Unlock()
	var errs []error
	for _, f := range l.followers {
		errs = append(errs, f.alive())
	}
	if len(failures) > 0 {
		errs = append(errs, fmt.Errorf("%d requests failed, such as: %q", len(failures), failures[:min(3, len(failures))]))
	}
	return errors.Join(errs...)
}

// usual is what a request may take at most: what is far more on any machine, or thrice of what one has taken up to now on this one.
func (l *load) usual() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(slowRequest, 3*l.longest)
}

// begunAfter is how many requests that were begun after a time took longer than usual, and an error if one of them failed.
func (l *load) begunAfter(at time.Time, usual time.Duration) (n int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.slow {
		if s.begun.After(at) && s.took > usual {
			n++
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
	return n, err
}

// broken is how many streams have broken.
func (l *load) broken() (n int) {
	for _, f := range l.followers {
		if f.alive() != nil {
			n++
		}
	}
	return n
}

// atLeast is the condition that a load has made a number of requests.
func (l *load) atLeast(requests int) func(context.Context) error {
	return func(context.Context) error {
		if n := l.mark().requests; n < requests {
			return fmt.Errorf("%d of %d requests", n, requests)
		}
		return nil
	}
}
