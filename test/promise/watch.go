package promise

import (
	"context"
	"testing"
	"time"
)

const (
	watchPause = 100 * time.Millisecond // between two requests
	watchTime  = 10 * time.Second       // bounds one request
	watchShown = 10                     // how many lost requests are logged
)

// Watched is the result of requests that were sent one after the other.
type Watched struct {
	Sent, Lost int
	Outage     time.Duration // the longest time without a success
}

// Watch sends requests, one after the other, until stop is called. A request that is in flight then is completed, and
// one more is sent, so that an outage which the last step of a test begins is counted too.
func Watch(t *testing.T, request func(context.Context) error) (stop func() Watched) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var w Watched
	done := make(chan struct{})
	go func() {
		defer close(done)
		last := time.Now()
		for ended := false; !ended; {
			select {
			case <-ctx.Done():
				ended = true
			case <-time.After(watchPause):
			}
			began := time.Now()
			err := within(context.WithoutCancel(ctx), request)
			w.Sent++
			w.Outage = max(w.Outage, time.Since(last))
			if err != nil {
				if w.Lost++; w.Lost <= watchShown {
					t.Logf("lost at %s after %s: %v", began.Format(time.TimeOnly), time.Since(began).Round(time.Millisecond), err)
				}
				continue
			}
			last = time.Now()
		}
	}()
	return func() Watched {
		cancel()
		<-done
		return w
	}
}

func within(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, watchTime)
	defer cancel()
	return request(ctx)
}
