package main

import (
	"encoding/hex"
	"slices"
	"testing"

	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/fairlead/fairlead/internal/tracetest"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
)

// callersTrace is the trace of the caller, and callersSpan its span.
const callersTrace, callersSpan = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

// checkSpans checks that spans follow an edge to its certificate and contain no secrets.
func checkSpans(t *testing.T, c *tracetest.Collector, secrets ...string) {
	t.Helper()
	enrolled := 0
	for _, call := range c.Find(enrolv1.Enrolment_EnrolEdge_FullMethodName[1:], "rpc.response.status_code", "OK") {
		for _, sign := range c.Below(call, "sign") {
			if len(call.GetParentSpanId()) == 0 && tracetest.Attribute(sign, "fairlead.role") == "edge" &&
				len(c.Below(sign, "HTTP POST")) == 1 {
				enrolled++
			}
		}
	}
	if enrolled != 1 {
		t.Errorf(
			"%d enrolments led to a request to the apiserver, want 1 of %v", enrolled,
			c.Find(enrolv1.Enrolment_EnrolEdge_FullMethodName[1:]),
		)
	}
	looked := c.Find(statusv3.ClientStatusDiscoveryService_FetchClientStatus_FullMethodName[1:])
	if !slices.ContainsFunc(looked, func(s *tracev1.Span) bool {
		return hex.EncodeToString(s.GetTraceId()) == callersTrace && hex.EncodeToString(s.GetParentSpanId()) == callersSpan
	}) {
		t.Errorf("inspection is not in the trace of who looked: %v", looked)
	}
	// A stream that lasts for days has no span.
	for _, not := range append(secrets, "DeltaAggregatedResources", "fairlead.report.v1.Report/Gateway", "CERTIFICATE") {
		if c.Has(not) {
			t.Errorf("%q was sent to the collector", not)
		}
	}
}
