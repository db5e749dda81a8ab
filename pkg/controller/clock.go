package controller

import (
	"net/http"
	"sync"
	"time"
)

// Clock is the apiserver's clock, as far as its answers tell: objects have its times on them, and this machine's
// clock may be wrong. Its zero value is this machine's clock, until Wrap's transport has seen an answer.
type Clock struct {
	mu     sync.Mutex
	offset time.Duration // of the apiserver's clock from ours
}

// Now is the time at the apiserver, to about a second.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.offset)
}

// Wrap returns a transport that learns the time from each answer, for rest.Config.Wrap.
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

// WrappedRoundTripper lets client-go find what it wraps.
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

// adjust changes an offset as little as an answer demands: a header has whole seconds, and it is unknown when between
// sending and receiving it was written.
func adjust(offset time.Duration, sent, received, date time.Time) time.Duration {
	least, most := date.Sub(received), date.Add(time.Second).Sub(sent)
	return min(max(offset, least), most)
}
