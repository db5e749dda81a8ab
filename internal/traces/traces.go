// Package traces sends spans of the control plane to an OpenTelemetry collector, where one is named, and costs nothing where none is. What a
// program does goes in, OTLP over gRPC comes out. There are no secrets in spans: names of objects and nodes, codes and times. How many
// traces are kept is said by OpenTelemetry's own variables, OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG.
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
	// stopTime is how long the last spans may take on their way.
	stopTime = 5 * time.Second
	// maxQueue is how many spans wait for a collector that is away; more are dropped. A span has about 1 KB.
	maxQueue = 4096
	// endpointVariable is what OpenTelemetry's own programs read.
	endpointVariable = "OTEL_EXPORTER_OTLP_ENDPOINT"
	// maxError is how much is sent of an error.
	maxError = 1 << 10
)

// started says that spans are sent.
var started atomic.Bool

// Flags are the flags of a program that has spans.
type Flags struct{ Endpoint string }

// AddTo adds the flags to a set.
func (f *Flags) AddTo(set *pflag.FlagSet) {
	set.StringVar(&f.Endpoint, "otlp-endpoint", "", "http://host:port (plain) or https://host:port of an OpenTelemetry collector for traces, by gRPC; without it $"+endpointVariable+", without that none are sent")
}

// Start begins to send the spans of a program, if a collector is named. stop sends what is left; it is never nil.
func (f Flags) Start(ctx context.Context, program string, log *slog.Logger) (stop func(), err error) {
	endpoint := cmp.Or(f.Endpoint, os.Getenv(endpointVariable))
	if endpoint == "" {
		return func() {}, nil
	}
	at, err := url.Parse(endpoint)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" || strings.Trim(at.Path, "/") != "" {
		return func() {}, fmt.Errorf("--otlp-endpoint: %q is neither http://host:port nor https://host:port", endpoint)
	}
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(endpoint))
	if err != nil {
		return func() {}, fmt.Errorf("--otlp-endpoint: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Debug("traces not sent", "error", err) }))
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter, sdktrace.WithMaxQueueSize(maxQueue), sdktrace.WithBatchTimeout(time.Second)),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", program), attribute.String("service.namespace", "fairlead"),
			attribute.String("service.version", version.Get()))),
	)
	otel.SetTracerProvider(provider)
	started.Store(true)
	return func() {
		started.Store(false)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			log.Debug("traces not sent", "error", err)
		}
	}, nil
}

// Begin begins a span. Pairs are attributes: a name and its value, each time.
func Begin(ctx context.Context, name string, pairs ...string) (context.Context, trace.Span) {
	ctx, span := otel.Tracer("github.com/fairlead/fairlead").Start(ctx, name)
	if span.IsRecording() {
		for i := 0; i+1 < len(pairs); i += 2 {
			span.SetAttributes(attribute.String("fairlead."+pairs[i], pairs[i+1]))
		}
	}
	return ctx, span
}

// End ends a span with what came of it. An error is told without what looks like a secret, though none should be in one.
func End(span trace.Span, err error) {
	if err != nil && span.IsRecording() {
		text := redact.Text(err.Error())
		span.SetStatus(codes.Error, strings.ToValidUTF8(text[:min(len(text), maxError)], ""))
	}
	span.End()
}

// BeginAt begins a span that began at a time.
func BeginAt(ctx context.Context, name string, at time.Time, attributes ...attribute.KeyValue) (context.Context, trace.Span) {
	return otel.Tracer("github.com/fairlead/fairlead").Start(ctx, name, trace.WithTimestamp(at), trace.WithAttributes(attributes...))
}
