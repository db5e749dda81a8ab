package networks

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead/fairlead/test/bench/record"
	"github.com/fairlead/fairlead/test/pods"
)

const (
	live     = 20                    // execs beside the stalled readers
	interval = 50 * time.Millisecond // between two lines of each
	// frozenAfter is how long an exec gets no byte until it counts as frozen.
	frozenAfter = 10 * time.Second
)

// stall is a kind of stalled readers.
type stall struct {
	name string
	goal float64 // of the p99 beside them
	// open opens readers that read nothing. Their bytes come as soon as flow is called.
	open func(ctx context.Context, w *world, c *pods.Client, n int) (readers []io.ReadCloser, flow func(), err error)
}

func stalledForwards(ctx context.Context, w *world, c *pods.Client, n int) ([]io.ReadCloser, func(), error) {
	w.source.hold()
	var readers []io.ReadCloser
	for range n {
		reader, err := c.Forward(ctx, sourcePort)
		if err != nil {
			w.source.release()
			closeAll(readers)
			return nil, nil, err
		}
		readers = append(readers, reader)
	}
	return readers, w.source.release, w.source.waitHeld(ctx, n)
}

func stalledLogs(ctx context.Context, _ *world, c *pods.Client, n int) ([]io.ReadCloser, func(), error) {
	var readers []io.ReadCloser
	for range n {
		reader, err := c.Logs(ctx, true)
		if err != nil {
			closeAll(readers)
			return nil, nil, err
		}
		readers = append(readers, reader)
	}
	return readers, func() {}, nil
}

// stalled measures execs beside forwarded ports of which none is read, each of which has a connection to the kubelet.
func stalled(ctx context.Context, r *run) error {
	return r.stalled(ctx, stall{"port-forward", 10, stalledForwards}, 1)
}

// followed measures execs beside followed logs of which none is read. They share one HTTP/2 connection to the kubelet,
// with flow control of its own, so a quick run leaves them out.
func followed(ctx context.Context, r *run) error {
	return r.stalled(ctx, stall{"logs -f", notWorse, stalledLogs}, r.Rounds(1, 0))
}

func (r *run) stalled(ctx context.Context, kind stall, rounds int) error {
	counts := []int{1, 16}
	if r.Quick {
		counts = counts[:1]
	}
	alone, span := time.Duration(r.Rounds(4, 1))*time.Second, frozenAfter+time.Duration(r.Rounds(5, 1))*time.Second
	for _, n := range counts {
		params := map[string]string{"stalled": kind.name, "readers": strconv.Itoa(n)}
		err := r.measure(ctx, rounds, params, []quantity{
			{"p50 beside stalled", "ms", lower, notWorse},
			{"p99 beside stalled", "ms", lower, kind.goal},
			{"p99 before stall", "ms", lower, notWorse},
			{"longest silence", "s", outage, notWorse},
			{"frozen streams", "%", count, notWorse},
			{"stalled readers cut", "%", count, notWorse},
		}, func(ctx context.Context, s *subject) (map[string]float64, error) {
			return s.beside(ctx, r.world, kind, n, alone, span)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// beside measures execs first alone and then beside n stalled readers.
func (s *subject) beside(
	ctx context.Context, w *world, kind stall, n int, alone, span time.Duration,
) (map[string]float64, error) {
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all, err := s.client.OpenEchoes(ctx, live, opening)
	if len(all) < live {
		return nil, err
	}
	before, broken := echoAll(ctx, all, interval, alone)
	if broken > 0 {
		return nil, errors.New("an exec broke beside no stalled reader")
	}
	readers, flow, err := kind.open(ctx, w, s.client, n)
	if err != nil {
		return nil, err
	}
	flow()
	values := echoUntil(all, time.Now().Add(span))
	values["p99 before stall"] = record.Quantile(before, 0.99)
	values["stalled readers cut"] = 100 * countCut(readers) / float64(n)
	cancel()
	closeAll(readers)
	return values, s.recovers(outer)
}

// echoUntil sends lines through execs until a time, and returns the figures of all of them together.
func echoUntil(all []*pods.Echo, end time.Time) map[string]float64 {
	var mu sync.Mutex
	var running sync.WaitGroup
	var trips []float64
	var longest, frozen float64
	for _, e := range all {
		running.Go(func() {
			var own []float64
			for _, trip := range e.TripsUntil(end, interval) {
				own = append(own, milliseconds(trip))
			}
			silence := record.Quantile(own, 1)
			mu.Lock()
			defer mu.Unlock()
			trips = append(trips, own...)
			longest = max(longest, silence/1000)
			if silence >= milliseconds(frozenAfter) {
				frozen++
			}
		})
	}
	running.Wait()
	return map[string]float64{
		"p50 beside stalled": record.Quantile(trips, 0.5), "p99 beside stalled": record.Quantile(trips, 0.99),
		"longest silence": longest, "frozen streams": 100 * frozen / float64(len(all)),
	}
}

// countCut reads what stalled readers left, all at the same time. It returns how many of them end, which their streams
// do not in themselves.
func countCut(readers []io.ReadCloser) float64 {
	const long = 3 * time.Second // for a cut reader, of which only the buffers on the way are left
	var cut atomic.Int64
	var running sync.WaitGroup
	for _, reader := range readers {
		running.Go(func() {
			var late atomic.Bool
			timer := time.AfterFunc(long, func() {
				late.Store(true)
				_ = reader.Close()
			})
			defer timer.Stop()
			_, _ = io.Copy(io.Discard, reader) // until its end, with an error or without
			if !late.Load() {
				cut.Add(1)
			}
		})
	}
	running.Wait()
	return float64(cut.Load())
}
