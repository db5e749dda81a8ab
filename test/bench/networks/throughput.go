package networks

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/test/pods"
)

// throughput measures logs and a forwarded port, with one stream and with eight, and the CPU time of a GB.
func throughput(ctx context.Context, r *run) error {
	span := time.Duration(r.Rounds(2000, 1500)) * time.Millisecond
	counts := []int{1, 8}
	if r.Quick {
		counts = counts[:1]
	}
	for _, source := range []struct {
		name string
		open func(ctx context.Context, c *pods.Client) (io.ReadCloser, error)
	}{
		{"logs", func(ctx context.Context, c *pods.Client) (io.ReadCloser, error) { return c.Logs(ctx, false) }},
		{"port-forward", forwardSource},
	} {
		for _, streams := range counts {
			speed := quantity{source.name, "MB/s", higher, notWorse}
			cpu := quantity{source.name + " CPU", "CPU s/GB", lower, 0}
			err := r.measure(ctx, r.Rounds(3, 1), map[string]string{"streams": strconv.Itoa(streams)}, []quantity{speed, cpu},
				func(ctx context.Context, s *subject) (map[string]float64, error) {
					rate, used, err := s.download(ctx, streams, span, source.open)
					return map[string]float64{speed.name: rate, cpu.name: used}, err
				})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// forwardSource forwards the port of the Pod's source of bytes.
func forwardSource(ctx context.Context, c *pods.Client) (io.ReadCloser, error) {
	return c.Forward(ctx, sourcePort)
}

// download reads some streams for a while. It returns MB/s, and the CPU seconds per GB of the programs between
// apiserver and kubelet.
func (s *subject) download(
	ctx context.Context, streams int, span time.Duration,
	open func(ctx context.Context, c *pods.Client) (io.ReadCloser, error),
) (rate, cpu float64, err error) {
	const settle = 300 * time.Millisecond
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all := make([]io.ReadCloser, streams)
	var opening errgroup.Group
	for i := range all {
		opening.Go(func() (err error) {
			all[i], err = open(ctx, s.client)
			return err
		})
	}
	if err := opening.Wait(); err != nil {
		return 0, 0, err
	}
	var bytes atomic.Int64
	var reading sync.WaitGroup
	for _, stream := range all {
		reading.Go(func() {
			buffer := make([]byte, 128<<10)
			for err := error(nil); err == nil; {
				var n int
				n, err = stream.Read(buffer)
				bytes.Add(int64(n))
			}
		})
	}
	pause(ctx, settle)
	begin, from, used := time.Now(), bytes.Load(), s.cpu()
	pause(ctx, span)
	seconds, gb := time.Since(begin).Seconds(), float64(bytes.Load()-from)/1e9
	used = s.cpu() - used
	cancel()
	closeAll(all)
	reading.Wait()
	if gb == 0 {
		return 0, 0, errors.New("no byte arrived")
	}
	return gb * 1000 / seconds, used / gb, nil
}

func pause(ctx context.Context, span time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(span):
	}
}
