// Package tracetest is a collector of OpenTelemetry traces for tests: a real receiver of OTLP over gRPC that stores all
// spans. It does not know which program sends them.
package tracetest

import (
	"bytes"
	"context"
	"net"
	"strconv"
	"sync"
	"testing"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Collector is a collector that listens. It is safe for concurrent use.
type Collector struct {
	collectorv1.UnimplementedTraceServiceServer

	// Endpoint is its address, for --otlp-endpoint.
	Endpoint string

	mu    sync.Mutex
	spans []*tracev1.Span
	raw   []byte
}

// Start starts a collector that ends with the test.
func Start(t testing.TB) *Collector {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, server := &Collector{Endpoint: "http://" + listener.Addr().String()}, grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return c
}

// Export implements the OTLP trace service.
func (c *Collector) Export(
	_ context.Context, r *collectorv1.ExportTraceServiceRequest,
) (*collectorv1.ExportTraceServiceResponse, error) {
	raw, err := proto.Marshal(r)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw = append(c.raw, raw...)
	for _, resource := range r.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

// Find returns the spans with a name that have all of the attributes, given as keys and values in turn.
func (c *Collector) Find(name string, attributes ...string) (found []*tracev1.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, span := range c.spans {
		good := span.GetName() == name
		for i := 0; i+1 < len(attributes); i += 2 {
			good = good && Attribute(span, attributes[i]) == attributes[i+1]
		}
		if good {
			found = append(found, span)
		}
	}
	return found
}

// Below returns the spans with a name whose parent is the given span.
func (c *Collector) Below(parent *tracev1.Span, name string) (found []*tracev1.Span) {
	for _, span := range c.Find(name) {
		if bytes.Equal(span.GetParentSpanId(), parent.GetSpanId()) && bytes.Equal(span.GetTraceId(), parent.GetTraceId()) {
			found = append(found, span)
		}
	}
	return found
}

// Has reports whether a text occurs anywhere in the received spans: in a name, an attribute, a status or an event.
func (c *Collector) Has(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Contains(c.raw, []byte(text))
}

// Attribute returns the value of an attribute. It returns an empty string if the span has no such attribute, or one
// that is neither a text nor a number.
func Attribute(span *tracev1.Span, key string) string {
	for _, a := range span.GetAttributes() {
		if a.GetKey() != key {
			continue
		}
		if n := a.GetValue().GetIntValue(); n != 0 {
			return strconv.FormatInt(n, 10)
		}
		return a.GetValue().GetStringValue()
	}
	return ""
}
