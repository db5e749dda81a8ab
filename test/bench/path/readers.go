package path

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/fairlead/fairlead/test/bench/record"
)

// stalledReaders measures clients that request much and stop reading: how long small requests of others take meanwhile,
// and by how much the memory of the processes between client and apiserver grows.
func stalledReaders(ctx context.Context, p *place, log *record.Log, options record.Options) error {
	counts := []int{2, 64}
	if options.Quick {
		counts = []int{64}
	}
	span := time.Duration(options.Rounds(2, 1)) * time.Second
	for _, n := range counts {
		err := each(
			ctx,
			p,
			log,
			options,
			link{},
			options.Rounds(3, 1),
			map[string]string{
				"p50 beside stalled":        "ms",
				"p99 beside stalled":        "ms",
				"p99 stalled/before":        "× before",
				"memory per stalled reader": "MB",
			},
			map[string]string{
				"stalled readers": strconv.Itoa(n),
			},
			func(ctx context.Context, s *subject) (map[string]float64, error) {
				return beside(ctx, p, s, n, span)
			},
		)
		if err != nil {
			return fmt.Errorf("%d stalled readers: %w", n, err)
		}
	}
	return nil
}

func beside(ctx context.Context, p *place, s *subject, n int, span time.Duration) (map[string]float64, error) {
	before, err := quantiles(ctx, p, s, span)
	if err != nil {
		return nil, err
	}
	memory := s.memory()
	stop, err := hold(ctx, p, s, n, "/bytes/1000000000000")
	after := map[string]float64{"p50": patience.Seconds() * 1000, "p99": patience.Seconds() * 1000}
	if err == nil {
		defer stop()
		s.waitIdle(ctx)
		limited, cancel := context.WithTimeout(ctx, span+patience)
		defer cancel()
		// If no request succeeds any longer, that is the result.
		if took, failed := quantiles(limited, p, s, span); failed == nil {
			after = took
		}
	}
	return map[string]float64{
		"p50 beside stalled": after["p50"], "p99 beside stalled": after["p99"],
		"p99 stalled/before":        after["p99"] / before["p99"],
		"memory per stalled reader": (s.memory() - memory) / float64(n) / 1e6,
	}, nil
}

// waitIdle returns when the subject is idle because every buffer is full, or after a while.
func (s *subject) waitIdle(ctx context.Context) {
	const (
		span, longest = 500 * time.Millisecond, 6 * time.Second
		little        = 0.03 // seconds of CPU in a span
	)
	pause(ctx, 2*time.Second)
	for end := time.Now().Add(longest); time.Now().Before(end) && ctx.Err() == nil; {
		before := cpuSeconds(s.pids())
		pause(ctx, span)
		if cpuSeconds(s.pids())-before < little {
			return
		}
	}
}

// memory returns the resident memory of a subject's processes in bytes.
func (s *subject) memory() float64 {
	sum := 0.0
	for _, pid := range family(s.pids()) {
		sum += resident(pid)
	}
	return sum
}

// hold opens n answers, each on its own connection, and reads none of them until it is stopped.
func hold(ctx context.Context, p *place, s *subject, n int, path string) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	client, err := newClient(p, s)
	if err != nil {
		cancel()
		return nil, err
	}
	var mu sync.Mutex
	var bodies []io.ReadCloser
	var opening sync.WaitGroup
	errs := make(chan error, n)
	slots := make(chan struct{}, 16)
	for range n {
		opening.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			body, err := client.open(ctx, path)
			if err != nil {
				errs <- err
				cancel() // the others would only wait until the same failure
				return
			}
			mu.Lock()
			defer mu.Unlock()
			bodies = append(bodies, body)
		})
	}
	opening.Wait()
	stop = func() {
		cancel()
		for _, b := range bodies {
			_ = b.Close()
		}
		client.close()
	}
	if err := drainErrors(errs); err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// watches measures 1,000 idle watches through one edge, each on its own connection: the latency of a small request
// beside them, and the memory of each.
func watches(ctx context.Context, p *place, log *record.Log, options record.Options) error {
	const n = 1000
	span := time.Duration(options.Rounds(2, 1)) * time.Second
	return each(
		ctx,
		p,
		log,
		options,
		link{},
		options.Rounds(3, 1),
		map[string]string{
			"p50 beside watches": "ms",
			"p99 beside watches": "ms",
			"opening watches":    "s",
			"memory per watch":   "KB",
		},
		map[string]string{"watches": strconv.Itoa(n)},
		func(ctx context.Context, s *subject) (map[string]float64, error) {
			memory, begin := s.memory(), time.Now()
			stop, err := hold(ctx, p, s, n, "/watch")
			if err != nil {
				return nil, err
			}
			defer stop()
			opened := time.Since(begin).Seconds()
			took, err := quantiles(ctx, p, s, span)
			return map[string]float64{
				"p50 beside watches": took["p50"],
				"p99 beside watches": took["p99"],
				"opening watches":    opened,
				"memory per watch":   (s.memory() - memory) / n / 1000,
			}, err
		},
	)
}
