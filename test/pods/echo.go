package pods

import (
	"bufio"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"k8s.io/client-go/tools/remotecommand"
)

// Echo is an exec of cat.
type Echo struct {
	in    *io.PipeWriter
	out   *io.PipeReader
	lines *bufio.Reader // of out
	done  chan error
}

// Echo starts an exec of cat, which ends with ctx.
func (c *Client) Echo(ctx context.Context) (*Echo, error) {
	executor, err := c.executor(true, "cat")
	if err != nil {
		return nil, err
	}
	stdin, in := io.Pipe()
	out, stdout := io.Pipe()
	e := &Echo{in, out, bufio.NewReaderSize(out, 512), make(chan error, 1)}
	go func() {
		err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout})
		e.done <- err
		if err == nil {
			err = io.EOF
		}
		e.Abort(err)
	}()
	return e, nil
}

// OpenEchoes opens execs of cat, at most opening of them at the same time, and returns those through which a line came
// back, with the last error of the others.
func (c *Client) OpenEchoes(ctx context.Context, n, opening int) (all []*Echo, err error) {
	var mu sync.Mutex
	var running sync.WaitGroup
	slots := make(chan struct{}, opening)
	for range n {
		running.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			e, failed := c.Echo(ctx)
			if failed == nil {
				failed = e.TripWithin(patience)
			}
			mu.Lock()
			defer mu.Unlock()
			if failed != nil {
				err = failed
				return
			}
			all = append(all, e)
		})
	}
	running.Wait()
	return all, err
}

// Done returns a channel with the error with which the exec ended.
func (e *Echo) Done() <-chan error { return e.done }

// Abort makes trips fail from now on.
func (e *Echo) Abort(err error) {
	_ = e.in.CloseWithError(err)
	_ = e.out.CloseWithError(err)
}

// trip sends a line and returns when it is back.
func (e *Echo) trip() error {
	if _, err := e.in.Write([]byte("is this line back?\n")); err != nil {
		return err
	}
	_, err := e.lines.ReadSlice('\n')
	return err
}

// TripWithin sends a line and returns when it is back. After the deadline the exec is closed.
func (e *Echo) TripWithin(deadline time.Duration) error {
	timer := time.AfterFunc(deadline, func() { e.Abort(errors.New("the line did not come back")) })
	defer timer.Stop()
	return e.trip()
}

// Close implements io.Closer: cat reads the end of its input. It does not wait.
func (e *Echo) Close() error { return e.in.Close() }

// TripsUntil sends lines, one in each interval, until a time. It returns how long each took. A line that is late delays
// the lines that should have followed, which count from when they should have been sent. A line that is not back at the
// end counts until then.
func (e *Echo) TripsUntil(end time.Time, interval time.Duration) (trips []time.Duration) {
	stop := time.AfterFunc(time.Until(end), func() { e.Abort(context.DeadlineExceeded) })
	defer stop.Stop()
	for {
		begin := time.Now()
		err := e.trip()
		took := time.Since(begin)
		if err != nil && len(trips) > 0 && took < interval {
			return trips // the end, just after the line was sent
		}
		if err != nil {
			took = max(took, end.Sub(begin)) // an exec that broke stays silent
		}
		for late := took; late > 0; late -= interval {
			trips = append(trips, late)
		}
		if err != nil {
			return trips
		}
		time.Sleep(interval - took)
	}
}
