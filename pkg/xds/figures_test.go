package xds_test

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/model"
)

// figure returns the sum of a metric's series that have these labels, given as pairs of name and value.
func (b *bed) figure(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	return figuresOf(t, b.Metrics(), name, labels...)
}

func figuresOf(t *testing.T, all prometheus.Collector, name string, labels ...string) float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(all)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && has(m, labels) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func has(m *dto.Metric, labels []string) bool {
	found := 0
	for _, l := range m.GetLabel() {
		for i := 0; i < len(labels); i += 2 {
			if l.GetName() == labels[i] && l.GetValue() == labels[i+1] {
				found++
			}
		}
	}
	return found == len(labels)/2
}

// TestAChangeIsCountedAndTracedToItsAnswers sends one change to a gateway and one to an edge.
func TestAChangeIsCountedAndTracedToItsAnswers(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)))
	t.Cleanup(func() { otel.SetTracerProvider(before) })
	c1 := workload("c1")
	b := newBed(t, c1)
	g, e := b.envoy(t, gateway), b.envoy(t, edgeOf(c1))
	for _, a := range []*ads{g, e} {
		a.fetch(t, cds)
		a.fetch(t, lds)
	}
	if n := b.figure(t, "fairlead_xds_change_ack_seconds"); n != 0 {
		t.Errorf("what an Envoy gets first counts as %v changes", n)
	}
	exporter.Reset()
	c1.APIServer.Port, c1.ExtraNames = 7443, []string{"api.example.com"}
	b.publish(c1)
	g.next(t)
	e.next(t)
	for _, role := range []model.Role{model.RoleGateway, model.RoleEdge} {
		waitFor(t, func() error {
			if n := b.figure(t, "fairlead_xds_change_ack_seconds", "role", string(role)); n != 1 {
				return fmt.Errorf("%s: %v changes were answered", role, n)
			}
			return nil
		})
	}
	if n := b.figure(t, "fairlead_xds_streams"); n != 2 {
		t.Errorf("there are %v streams", n)
	}
	waitFor(t, func() error { return traced(exporter.GetSpans()) })
}

// traced reports whether a change has all of its spans: the build, and the answers of a gateway and an edge.
func traced(spans tracetest.SpanStubs) error {
	parts := map[string]int{}
	var change tracetest.SpanStub
	for _, s := range spans {
		if s.Name == "change" {
			change = s
		}
	}
	for _, s := range spans {
		if s.Parent.SpanID() == change.SpanContext.SpanID() && s.SpanContext.TraceID() == change.SpanContext.TraceID() {
			parts[s.Name]++
		}
	}
	if !change.SpanContext.IsValid() || parts["build"] != 1 || parts["apply"] != 2 {
		return fmt.Errorf("a change has the parts %v, of %d spans", parts, len(spans))
	}
	return nil
}

func waitFor(t *testing.T, condition func() error) {
	t.Helper()
	eventually.True(t, patience, "counting", condition)
}
