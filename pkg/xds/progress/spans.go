package progress

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/fairlead/fairlead/internal/traces"
	"github.com/fairlead/fairlead/pkg/model"
)

// maxCauses is how many changes are kept for the spans of answers: the last few seconds of a busy server.
const maxCauses = 512

// spans join the answers of Envoys to the changes that they are about. A stream stores only the time at which a
// change was observed, so nothing is stored while no traces are recorded.
type spans struct {
	mu  sync.Mutex
	all []*cause // the newest at the end
}

// cause is a change, and the time span of its creation, in ns; end is 0 until it is complete.
type cause struct {
	begin, end int64
	span       trace.SpanContext
}

// change begins the span of a change. The context is for the work on the change.
func (s *spans) change(key model.Key) (context.Context, func()) {
	ctx, span := traces.Begin(context.Background(), "change", "cluster", key.String())
	if !span.IsRecording() {
		return ctx, func() {}
	}
	c := &cause{begin: time.Now().UnixNano(), span: span.SpanContext()}
	s.mu.Lock()
	if s.all = append(s.all, c); len(s.all) > maxCauses {
		s.all = append([]*cause(nil), s.all[maxCauses/2:]...)
	}
	s.mu.Unlock()
	return ctx, func() {
		s.mu.Lock()
		c.end = time.Now().UnixNano()
		s.mu.Unlock()
		span.End()
	}
}

// answered creates the span of an answer that has come now. sent is the time of its response, and changed the time
// of the change.
func (s *spans) answered(changed, sent int64, role model.Role, kind, answer string) {
	s.mu.Lock()
	var of trace.SpanContext
	for _, c := range s.all {
		if c.begin <= changed && (c.end == 0 || changed <= c.end) {
			of = c.span
		}
	}
	s.mu.Unlock()
	if !of.IsValid() {
		return
	}
	_, span := traces.BeginAt(trace.ContextWithSpanContext(context.Background(), of), "apply", time.Unix(0, sent),
		attribute.String("fairlead.role", string(role)), attribute.String("fairlead.type", kind),
		attribute.String("fairlead.answer", answer))
	if answer == NACK {
		span.SetStatus(codes.Error, "the Envoy rejects it")
	}
	span.End()
}
