package networks

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// opens measures how many execs of a short command end per second, with eight at the same time. Each opens a stream to
// the kubelet.
func opens(ctx context.Context, r *run) error {
	const workers = 8
	span := time.Duration(r.Rounds(4000, 1500)) * time.Millisecond
	rate := quantity{"new streams", "1/s", higher, notWorse}
	return r.measure(ctx, r.Rounds(3, 1), nil, []quantity{rate},
		func(ctx context.Context, s *subject) (map[string]float64, error) {
			var done atomic.Int64
			var running sync.WaitGroup
			errs := make(chan error, workers)
			begin := time.Now()
			for range workers {
				running.Go(func() {
					for time.Since(begin) < span {
						if err := s.client.RunWithin(ctx, patience); err != nil {
							errs <- err
							return
						}
						done.Add(1)
					}
				})
			}
			running.Wait()
			select {
			case err := <-errs:
				return nil, err
			default:
				return map[string]float64{rate.name: float64(done.Load()) / time.Since(begin).Seconds()}, nil
			}
		})
}
