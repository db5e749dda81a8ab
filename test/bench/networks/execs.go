package networks

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead/fairlead/test/bench/record"
	"github.com/fairlead/fairlead/test/pods"
)

// opening is how many execs are opened at the same time.
const opening = 20

// execs measures many execs at the same time: how long it takes to open them, the memory of each in the programs
// between apiserver and kubelet, and how long a line takes to the remote network and back.
func execs(ctx context.Context, r *run) error {
	const interval = time.Second
	n, span := r.Rounds(1000, 100), time.Duration(r.Rounds(10, 2))*time.Second
	return r.measure(ctx, r.Rounds(5, 1), map[string]string{"execs": strconv.Itoa(n)}, []quantity{
		{"open all", "s", lower, notWorse},
		{"memory per stream", "KB", lower, notWorse},
		{"broken streams", "", count, notWorse},
		{"echo p50", "ms", lower, notWorse},
		{"echo p99", "ms", lower, notWorse},
		{"CPU per echo", "µs", lower, 0},
	}, func(ctx context.Context, s *subject) (map[string]float64, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		begin := time.Now()
		all, broken := s.client.OpenEchoes(ctx, n, opening)
		opened := time.Since(begin).Seconds()
		if len(all) == 0 {
			return nil, fmt.Errorf("no exec of %d was opened: %w", n, broken)
		}
		used := s.cpu()
		trips, failed := echoAll(ctx, all, interval, span)
		used = s.cpu() - used
		memory := s.memory() - s.atRest
		closeAll(all)
		for _, e := range all {
			select {
			case <-e.Done(): //nolint:errcheck // broken execs are counted
			case <-time.After(patience):
				return nil, errors.New("an exec did not end")
			}
		}
		return map[string]float64{
			"open all": opened, "memory per stream": memory / float64(len(all)) / 1000,
			"broken streams": float64(n - len(all) + failed),
			"echo p50":       record.Quantile(trips, 0.5), "echo p99": record.Quantile(trips, 0.99),
			"CPU per echo": used * 1e6 / float64(len(trips)),
		}, nil
	})
}

// echoAll sends lines through execs, one in each interval, for a while. It returns how long each took, in ms, and how
// many execs broke.
func echoAll(ctx context.Context, all []*pods.Echo, interval, span time.Duration) (trips []float64, broken int) {
	var mu sync.Mutex
	var failed atomic.Int64
	var running sync.WaitGroup
	end := time.Now().Add(span)
	for i, e := range all {
		running.Go(func() {
			pause(ctx, interval*time.Duration(i)/time.Duration(len(all)))
			for time.Now().Before(end) && ctx.Err() == nil {
				begin := time.Now()
				if err := e.TripWithin(patience); err != nil {
					failed.Add(1)
					return
				}
				took := time.Since(begin)
				mu.Lock()
				trips = append(trips, milliseconds(took))
				mu.Unlock()
				pause(ctx, interval-took)
			}
		})
	}
	running.Wait()
	return trips, int(failed.Load())
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
