package traces_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/fairlead/fairlead/internal/traces"
)

// collector is a real OTLP receiver.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer

	mu    sync.Mutex
	spans map[string]*tracev1.Span
}

// Export implements the service.
func (c *collector) Export(_ context.Context, r *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				c.spans[span.GetName()] = span
			}
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func TestSpansArriveAtACollector(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, server := &collector{spans: map[string]*tracev1.Span{}}, grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	stop, err := traces.Flags{Endpoint: "http://" + listener.Addr().String()}.Start(t.Context(), "xds-server", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, parent := traces.Begin(t.Context(), "enrol", "request", "edge")
	_, child := traces.Begin(ctx, "sign")
	traces.End(child, errors.New("nobody answers"))
	traces.End(parent, nil)
	stop()
	enrol, sign := c.spans["enrol"], c.spans["sign"]
	if enrol == nil || sign == nil || string(sign.GetParentSpanId()) != string(enrol.GetSpanId()) || string(sign.GetTraceId()) != string(enrol.GetTraceId()) {
		t.Fatalf("got %v", c.spans)
	}
	if sign.GetStatus().GetCode() != tracev1.Status_STATUS_CODE_ERROR || enrol.GetAttributes()[0].GetKey() != "fairlead.request" {
		t.Errorf("got %v", c.spans)
	}
}

func TestEndpointsAreChecked(t *testing.T) {
	for _, bad := range []string{"localhost:4317", "ftp://h:1", "http://", "http://h:1/path"} {
		if _, err := (traces.Flags{Endpoint: bad}).Start(t.Context(), "x", slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}
