package traces

import (
	"net/http"
	"slices"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/stats"
)

// w3c is how a trace goes from one program to the next: the header traceparent.
var w3c = propagation.TraceContext{}

// Transport has each request that belongs to a span make one of its own, which says where it went and what came of it, and nothing of bodies
// and headers. It tells the other end of the trace. What belongs to no span goes through as it is: watches, leases, all where nothing is traced.
// It is for rest.Config.Wrap.
func Transport(inner http.RoundTripper) http.RoundTripper {
	return &transport{otelhttp.NewTransport(inner, otelhttp.WithPropagators(w3c), otelhttp.WithFilter(func(r *http.Request) bool {
		return trace.SpanContextFromContext(r.Context()).IsValid()
	})), inner}
}

type transport struct {
	http.RoundTripper
	inner http.RoundTripper
}

// WrappedRoundTripper lets client-go find what it wraps.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.inner }

// Handler makes a span of each request to a handler, in the caller's trace if it has one.
func Handler(inner http.Handler, name string) http.Handler {
	return otelhttp.NewHandler(inner, name, otelhttp.WithPropagators(w3c),
		otelhttp.WithFilter(func(*http.Request) bool { return started.Load() }),
		otelhttp.WithSpanNameFormatter(func(string, *http.Request) string { return name }))
}

// Callers are who may call a server.
type Callers bool

const (
	// Strangers have their own trace linked, and no say in whether a call is traced.
	Strangers Callers = true
	// Trusted callers have a call in their own trace.
	Trusted Callers = false
)

// Calls makes a span of each call of some gRPC methods to a server; nil, and nothing to be done for a call, if Start has found nobody to send
// spans to. Methods are full names, of calls that are over soon: a stream that is open for days would hold its span for days.
func Calls(from Callers, methods ...string) stats.Handler {
	if !started.Load() {
		return nil
	}
	options := []otelgrpc.Option{otelgrpc.WithPropagators(w3c), otelgrpc.WithFilter(func(info *stats.RPCTagInfo) bool {
		return slices.Contains(methods, info.FullMethodName)
	})}
	if from == Strangers {
		options = append(options, otelgrpc.WithPublicEndpoint())
	}
	return otelgrpc.NewServerHandler(options...)
}
