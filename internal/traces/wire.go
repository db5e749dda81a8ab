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

// w3c passes a trace from one program to the next in the header traceparent.
var w3c = propagation.TraceContext{}

// Transport makes a span of each request that belongs to a trace, and passes the trace on to the server. The span has
// the address and the result of the request, but no bodies and headers. Requests that belong to no trace pass
// unchanged: watches, leases, and all requests while tracing is off. Use it with rest.Config.Wrap.
func Transport(inner http.RoundTripper) http.RoundTripper {
	return &transport{
		otelhttp.NewTransport(inner, otelhttp.WithPropagators(w3c), otelhttp.WithFilter(func(r *http.Request) bool {
			return trace.SpanContextFromContext(r.Context()).IsValid()
		})),
		inner,
	}
}

type transport struct {
	http.RoundTripper
	inner http.RoundTripper
}

// WrappedRoundTripper returns the inner transport, which client-go requires.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.inner }

// Handler makes a span of each request to a handler, in the caller's trace if it has one.
func Handler(inner http.Handler, name string) http.Handler {
	return otelhttp.NewHandler(inner, name, otelhttp.WithPropagators(w3c),
		otelhttp.WithFilter(func(*http.Request) bool { return started.Load() }),
		otelhttp.WithSpanNameFormatter(func(string, *http.Request) string { return name }))
}

// Callers is a kind of clients of a server.
type Callers bool

const (
	// Untrusted may not join the server's traces: their own trace is only linked, and does not decide whether a call is
	// traced.
	Untrusted Callers = true
	// Trusted callers have the call in their own trace.
	Trusted Callers = false
)

// Calls returns a handler that makes a span of each call of the given gRPC methods, or nil, which costs a call nothing,
// if Start has not begun to send spans. Methods are full names. They must be short calls: a stream that is open for
// days would hold its span for days.
func Calls(from Callers, methods ...string) stats.Handler {
	if !started.Load() {
		return nil
	}
	options := []otelgrpc.Option{otelgrpc.WithPropagators(w3c), otelgrpc.WithFilter(func(info *stats.RPCTagInfo) bool {
		return slices.Contains(methods, info.FullMethodName)
	})}
	if from == Untrusted {
		options = append(options, otelgrpc.WithPublicEndpoint())
	}
	return otelgrpc.NewServerHandler(options...)
}
