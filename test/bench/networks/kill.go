package networks

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/fairlead/fairlead/test/pods"
)

// kills measures what clients notice when one of two edges is killed while they open streams.
func kills(ctx context.Context, r *run) error {
	const warm = time.Second
	after := time.Duration(r.Rounds(4, 3)) * time.Second
	return r.measure(ctx, r.Rounds(6, 1), nil, []quantity{
		{"lost requests", "", count, notWorse}, {"longest outage", "s", outage, notWorse},
	}, func(ctx context.Context, s *subject) (map[string]float64, error) {
		if s.edge == nil {
			return nil, nil // a direct connection has no edge
		}
		if err := s.addEdge(ctx); err != nil {
			return nil, err
		}
		if err := s.recovers(ctx); err != nil {
			return nil, err
		}
		load := s.startLoad(ctx)
		pause(ctx, warm)
		first := s.edges[0]
		s.edges = s.edges[1:]
		killed := time.Now()
		first.Kill()
		pause(ctx, after)
		lost, longest, err := load.stop(killed)
		return map[string]float64{"lost requests": float64(lost), "longest outage": longest.Seconds()}, err
	})
}

// load is clients that run short commands one after the other.
type load struct {
	cancel  context.CancelFunc
	running sync.WaitGroup
	mu      sync.Mutex
	done    []request
}

type request struct {
	begin, end time.Time
	err        error
}

// startLoad starts clients, each of which starts a command five times a second.
func (s *subject) startLoad(ctx context.Context) *load {
	const clients, period, deadline = 8, 200 * time.Millisecond, 10 * time.Second
	ctx, cancel := context.WithCancel(ctx)
	l := &load{cancel: cancel}
	for i := range clients {
		l.running.Go(func() {
			pause(ctx, period*time.Duration(i)/clients)
			for ctx.Err() == nil {
				begin := time.Now()
				// Not ctx: the last command may end.
				err := s.client.RunWithin(context.WithoutCancel(ctx), deadline)
				l.add(begin, err)
				pause(ctx, period-time.Since(begin))
			}
		})
	}
	return l
}

// add adds a request that has just ended, or whose connection ended before.
func (l *load) add(begin time.Time, err error) {
	r := request{begin, time.Now(), err}
	var ended *pods.EndedError
	if errors.As(err, &ended) {
		r.end = ended.At
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = append(l.done, r)
}

// stop ends the clients. It returns how many commands failed that ended after a time, and the longest time that one of
// them took, or during which none succeeded.
func (l *load) stop(since time.Time) (lost int, longest time.Duration, err error) {
	l.cancel()
	l.running.Wait()
	success := since
	slices.SortStableFunc(l.done, func(a, b request) int { return a.end.Compare(b.end) })
	for _, r := range l.done {
		switch {
		case r.end.Before(since):
			err = errors.Join(err, r.err)
			continue
		case r.err != nil:
			lost++
		default:
			longest = max(longest, r.end.Sub(success))
			success = r.end
		}
		longest = max(longest, r.end.Sub(r.begin))
	}
	return lost, longest, err
}
