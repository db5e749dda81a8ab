// Package progress records how far each stream is with each resource type: when something was sent, which change
// caused it, and the node's answer. In go responses and requests; out come metrics, trace spans, and the Answers
// that CSDS shows. It does not know what the resources are, or which node may receive them.
package progress

import (
	"context"
	"sync/atomic"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/xds/csds"
)

// slow is when a node that has not answered counts as waiting: a change takes well under a second.
const slow = 30 * time.Second

// The values of the label answer.
const (
	ACK  = "ack"
	NACK = "nack"
)

// TypeName is the value of the label type for a type URL.
func TypeName(typeURL string) string {
	switch typeURL {
	case resourcev3.ClusterType:
		return "cluster"
	case resourcev3.ScopedRouteType:
		return "scope"
	case resourcev3.ListenerType:
		return "listener"
	}
	return "other" // not served
}

// Progress is the progress of one stream with one resource type. At most one response awaits an answer. Times are
// Unix times in ns; 0: none. There may be 20,000 of them. The zero value is ready to use, and safe for concurrent
// use.
type Progress struct {
	refusing atomic.Bool
	sent     atomic.Int64 // when the response that has no answer yet was sent
	next     atomic.Int64 // when the newest change was seen that is not sent yet
	changed  atomic.Int64 // when the oldest change in the response was seen
	Answers  csds.Answers // per resource, for CSDS
}

// Waits returns whether the node has not answered for so long that it is counted as waiting.
func (p *Progress) Waits(now time.Time) bool {
	at := p.sent.Load()
	return at != 0 && now.Sub(time.Unix(0, at)) > slow
}

// Change records that something has changed that the node may have to receive.
func (p *Progress) Change() { p.next.Store(time.Now().UnixNano()) }

// TakeChange returns when the newest change was seen that is not sent yet, and removes it; 0: there is none.
func (p *Progress) TakeChange() int64 { return p.next.Swap(0) }

// Outstanding returns whether a response awaits its answer.
func (p *Progress) Outstanding() bool { return p.sent.Load() != 0 }

// Refuses returns whether the node rejects a resource that was not sent again since, or its last answer was a NACK.
func (p *Progress) Refuses() bool { return p.refusing.Load() || p.Answers.Rejects() }

// Recorder counts what is sent and answered, and joins answers to the changes that they are about. Its vectors must be
// set. It is safe for concurrent use.
type Recorder struct {
	Sent, Answered *prometheus.CounterVec
	Took           *prometheus.HistogramVec

	spans spans
}

// Trace begins the span of a change, if traces are recorded. The context is for what is done for it.
func (r *Recorder) Trace(key model.Key) (ctx context.Context, end func()) { return r.spans.change(key) }

// Send records a response, with the time at which its oldest change was seen; 0: the stream gets it first.
func (r *Recorder) Send(role model.Role, p *Progress, m *discoveryv3.DeltaDiscoveryResponse, changed int64) {
	r.Sent.WithLabelValues(string(role), TypeName(m.GetTypeUrl())).Add(float64(len(m.GetResources())))
	now := time.Now()
	p.sent.Store(now.UnixNano())
	p.changed.Store(changed)
	p.Answers.Sent(m, now)
}

// Answer records what a request states about the last response.
func (r *Recorder) Answer(role model.Role, p *Progress, m *discoveryv3.DeltaDiscoveryRequest) {
	p.Answers.Received(m, time.Now())
	if m.GetResponseNonce() == "" {
		return
	}
	answer := ACK
	if m.GetErrorDetail() != nil {
		answer = NACK
	}
	r.Answered.WithLabelValues(string(role), TypeName(m.GetTypeUrl()), answer).Inc()
	p.refusing.Store(answer == NACK)
	sent, changed := p.sent.Swap(0), p.changed.Swap(0)
	if changed != 0 {
		r.spans.answered(changed, sent, role, TypeName(m.GetTypeUrl()), answer)
	}
	if changed != 0 && answer == ACK {
		r.Took.WithLabelValues(string(role)).Observe(float64(time.Now().UnixNano()-changed) / 1e9)
	}
}
