// Package traces sends spans of the control plane to an OpenTelemetry collector, if one is configured, and costs
// nothing otherwise. Its output is OTLP over gRPC. Spans contain no secrets: names of objects and nodes, codes and
// times. OpenTelemetry's own variables, OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG, set how many traces are kept.
package traces

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/fairlead/fairlead/internal/redact"
	"github.com/fairlead/fairlead/internal/version"
)

const (
	// stopTime bounds sending the last spans when a program stops.
	stopTime = 5 * time.Second
	// maxQueue is how many spans wait while the collector is unreachable; more are dropped. A span has about 1 KB.
	maxQueue = 4096
	// endpointVariable is the variable that OpenTelemetry's own programs read.
	endpointVariable = "OTEL_EXPORTER_OTLP_ENDPOINT"
	// maxError bounds the bytes of an error in a span.
	maxError = 1 << 10
)

// started is true after Start has begun to send spans.
var started atomic.Bool

// Flags are the flags of a program that sends spans.
type Flags struct{ Endpoint string }

// AddTo adds the flags to a flag set.
func (f *Flags) AddTo(set *pflag.FlagSet) {
	set.StringVar(
		&f.Endpoint,
		"otlp-endpoint",
		"",
		"http://host:port (plain) or https://host:port of an OpenTelemetry collector for traces, by gRPC; without it "+
			"$"+endpointVariable+", without that no traces are sent",
	)
}

// Start begins to send the spans of a program if a collector is configured. stop sends the remaining spans; it is never
// nil.
func (f Flags) Start(ctx context.Context, program string, log *slog.Logger) (stop func(), err error) {
	endpoint := cmp.Or(f.Endpoint, os.Getenv(endpointVariable))
	if endpoint == "" {
		return func() {}, nil
	}
	at, err := url.Parse(endpoint)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" || strings.Trim(at.Path, "/") != "" {
		return func() {}, fmt.Errorf("--otlp-endpoint: %q is invalid: must be http(s)://host:port", endpoint)
	}
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(endpoint))
	if err != nil {
		return func() {}, fmt.Errorf("--otlp-endpoint: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Debug("cannot send traces", "error", err) }))
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter, sdktrace.WithMaxQueueSize(maxQueue), sdktrace.WithBatchTimeout(time.Second)),
		sdktrace.WithResource(
			resource.NewSchemaless(attribute.String("service.name", program), attribute.String("service.namespace", "fairlead"),
				attribute.String("service.version", version.Get())),
		),
	)
	otel.SetTracerProvider(provider)
	started.Store(true)
	return func() {
		started.Store(false)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			log.Debug("cannot send traces", "error", err)
		}
	}, nil
}

// Begin begins a span. pairs are attributes: names and values in turn.
func Begin(ctx context.Context, name string, pairs ...string) (context.Context, trace.Span) {
	ctx, span := otel.Tracer("github.com/fairlead/fairlead").Start(ctx, name)
	if span.IsRecording() {
		for i := 0; i+1 < len(pairs); i += 2 {
			span.SetAttributes(attribute.String("fairlead."+pairs[i], pairs[i+1]))
		}
	}
	return ctx, span
}

// End ends a span with the result of its work. It redacts the error, although an error should contain no secret.
func End(span trace.Span, err error) {
	if err != nil && span.IsRecording() {
		text := redact.Text(err.Error())
		span.SetStatus(codes.Error, strings.ToValidUTF8(text[:min(len(text), maxError)], ""))
	}
	span.End()
}

// BeginAt begins a span with an earlier start time.
func BeginAt(
	ctx context.Context, name string, at time.Time, attributes ...attribute.KeyValue,
) (context.Context, trace.Span) {
	return otel.Tracer("github.com/fairlead/fairlead").
		Start(ctx, name, trace.WithTimestamp(at), trace.WithAttributes(attributes...))
}
