package traces_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/fairlead/fairlead/internal/traces"
	"github.com/fairlead/fairlead/internal/tracetest"
)

var quiet = slog.New(slog.DiscardHandler)

func start(t *testing.T, c *tracetest.Collector) (stop func()) {
	t.Helper()
	stop, err := traces.Flags{Endpoint: c.Endpoint}.Start(t.Context(), "xds-server", quiet)
	if err != nil {
		t.Fatal(err)
	}
	return stop
}

func TestSpansArriveAtACollector(t *testing.T) {
	c := tracetest.Start(t)
	stop := start(t, c)
	ctx, parent := traces.Begin(t.Context(), "enrol", "request", "edge")
	_, child := traces.Begin(ctx, "sign")
	traces.End(child, errors.New("nobody answers, password: hunter2"))
	traces.End(parent, nil)
	stop()
	enrol := c.Find("enrol", "fairlead.request", "edge")
	if len(enrol) != 1 {
		t.Fatalf("got %v", enrol)
	}
	sign := c.Below(enrol[0], "sign")
	if len(sign) != 1 || sign[0].GetStatus().GetCode() != tracev1.Status_STATUS_CODE_ERROR ||
		!strings.Contains(sign[0].GetStatus().GetMessage(), "nobody answers") {
		t.Errorf("got %v", sign)
	}
	if c.Has("hunter2") {
		t.Error("a password was sent")
	}
}

// An HTTP request to another program continues the trace there. A request outside of any trace makes no span.
func TestATraceContinuesOverHTTP(t *testing.T) {
	c := tracetest.Start(t)
	stop := start(t, c)
	server := httptest.NewServer(
		traces.Handler(
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("fine")) }), "webhook",
		),
	)
	defer server.Close()
	ask := func(ctx context.Context) {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/x", strings.NewReader("a body"))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer a-header")
		response, err := (&http.Client{Transport: traces.Transport(http.DefaultTransport)}).Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
	}
	ctx, parent := traces.Begin(t.Context(), "reconcile")
	ask(ctx)
	traces.End(parent, nil)
	ask(t.Context())
	stop()
	asked := c.Below(c.Find("reconcile")[0], "HTTP POST")
	if len(asked) != 1 || len(c.Find("HTTP POST")) != 1 || len(c.Below(asked[0], "webhook")) != 1 {
		t.Errorf("asked %v, answered %v", c.Find("HTTP POST"), c.Find("webhook"))
	}
	for _, secret := range []string{"a body", "a-header", "fine"} {
		if c.Has(secret) {
			t.Errorf("%q was sent", secret)
		}
	}
}

func TestTheEnvironmentSetsTheSampler(t *testing.T) {
	t.Setenv("OTEL_TRACES_SAMPLER", "always_off")
	c := tracetest.Start(t)
	stop := start(t, c)
	_, span := traces.Begin(t.Context(), "enrol")
	traces.End(span, nil)
	stop()
	if c.Has("enrol") {
		t.Error("a span was sent")
	}
}

func TestEndpointsAreChecked(t *testing.T) {
	for _, bad := range []string{"localhost:4317", "ftp://h:1", "http://", "http://h:1/path"} {
		if _, err := (traces.Flags{Endpoint: bad}).Start(t.Context(), "x", quiet); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

// BenchmarkOff measures a span when no collector is configured.
func BenchmarkOff(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_, span := traces.Begin(b.Context(), "reconcile", "controller", "tunnel", "namespace", "prod", "name", "c1")
		traces.End(span, nil)
	}
}
