package xds_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/envoy"
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
	exporter := recordSpans(t)
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
	waitFor(t, func() error { return traced(exporter, "prod/c1", "gateway cluster ack", "edge cluster ack") })
}

// TestAChangeOfANetworkIsTracedToItsAnswers: the routes of apiservers to a gateway, and what its edge dials.
func TestAChangeOfANetworkIsTracedToItsAnswers(t *testing.T) {
	exporter := recordSpans(t)
	n1 := network("n1", "c1")
	b := newBed(t, egress("c1"), n1)
	g, _ := b.gatewayWithNetworks(t)
	node := nodeOf(edgeOf(n1))
	node.Metadata = envoy.EdgeDial{Version: envoy.Current}.Metadata()
	identity := b.identity(t, edgeOf(n1), time.Now().Add(time.Hour))
	e := b.claim(t, &identity, node)
	e.fetch(t, cds)
	e.fetch(t, lds)
	exporter.Reset()
	n1.Network = clone(n1.Network)
	n1.Network.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}
	b.publish(n1)
	g.next(t)
	e.next(t)
	waitFor(t, func() error {
		return traced(exporter, "prod/n1.network", "gateway scope ack", "edge cluster ack")
	})
}

// recordSpans records the spans of the test.
func recordSpans(t *testing.T) *tracetest.InMemoryExporter {
	t.Helper()
	exporter := tracetest.NewInMemoryExporter()
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)))
	t.Cleanup(func() { otel.SetTracerProvider(before) })
	return exporter
}

// traced reports whether the change of a Tunnel has all of its spans: the build, and these answers, by role, type and
// answer.
func traced(exporter *tracetest.InMemoryExporter, of string, answers ...string) error {
	spans := exporter.GetSpans()
	at := slices.IndexFunc(spans, func(s tracetest.SpanStub) bool {
		return s.Name == "change" && attributeOf(s, "cluster") == of
	})
	if at < 0 {
		return fmt.Errorf("no change of %s among %d spans", of, len(spans))
	}
	var parts []string
	for _, s := range spans {
		if s.Parent.SpanID() != spans[at].SpanContext.SpanID() ||
			s.SpanContext.TraceID() != spans[at].SpanContext.TraceID() {
			continue
		}
		if s.Name == "apply" {
			parts = append(parts, attributeOf(s, "role")+" "+attributeOf(s, "type")+" "+attributeOf(s, "answer"))
		} else {
			parts = append(parts, s.Name)
		}
	}
	want := slices.Sorted(slices.Values(append(answers, "build")))
	if got := slices.Sorted(slices.Values(parts)); !slices.Equal(got, want) {
		return fmt.Errorf("the change has the parts %q, want %q", got, want)
	}
	return nil
}

// attributeOf returns an attribute of Fairlead of a span.
func attributeOf(s tracetest.SpanStub, name string) string {
	for _, a := range s.Attributes {
		if string(a.Key) == "fairlead."+name {
			return a.Value.AsString()
		}
	}
	return ""
}

func waitFor(t *testing.T, condition func() error) {
	t.Helper()
	eventually.True(t, patience, "counting", condition)
}
