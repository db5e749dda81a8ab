package controller

import (
	"net/http"
	"sync"
	"time"
)

// Clock is the apiserver's clock, derived from its answers. Objects carry the apiserver's times, and the clock of this
// machine may be wrong. The zero value is this machine's clock, until Wrap's transport receives an answer.
type Clock struct {
	mu     sync.Mutex
	offset time.Duration // the apiserver's clock minus ours
}

// Now returns the apiserver's time, to about a second. It can go back: a clock is corrected, or several apiservers have
// different clocks. The result has no monotonic reading. With one, a correction of this machine's clock would be a step
// of the result, because the offset changes with it.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Round(0).Add(c.offset)
}

// Wrap returns a transport that reads the time from each answer, for rest.Config.Wrap.
func (c *Clock) Wrap(inner http.RoundTripper) http.RoundTripper {
	return &observed{clock: c, inner: inner}
}

type observed struct {
	clock *Clock
	inner http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (o *observed) RoundTrip(request *http.Request) (*http.Response, error) {
	sent := time.Now()
	response, err := o.inner.RoundTrip(request)
	if err == nil {
		o.clock.observe(sent, time.Now(), response.Header.Get("Date"))
	}
	return response, err
}

// WrappedRoundTripper lets client-go find the wrapped transport.
func (o *observed) WrappedRoundTripper() http.RoundTripper { return o.inner }

func (c *Clock) observe(sent, received time.Time, date string) {
	at, err := http.ParseTime(date)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset = adjust(c.offset, sent, received, at)
}

// adjust changes an offset as little as an answer requires. The header has whole seconds, and the apiserver wrote it at
// an unknown time between sending and receiving.
func adjust(offset time.Duration, sent, received, date time.Time) time.Duration {
	least, most := date.Sub(received), date.Add(time.Second).Sub(sent)
	return min(max(offset, least), most)
}
