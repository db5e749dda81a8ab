package main

import (
	"encoding/hex"
	"testing"

	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/fairlead/fairlead/internal/tracetest"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
)

// callersTrace is that of somebody who looks, and their span in it.
const callersTrace, callersSpan = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

// inspected looks at what a node was sent, as a part of a trace of the test's.
func inspected(t *testing.T, address, node string) {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+callersTrace+"-"+callersSpan+"-01")
	answer, err := statusv3.NewClientStatusDiscoveryServiceClient(conn).FetchClientStatus(ctx, &statusv3.ClientStatusRequest{})
	if err != nil || len(answer.GetConfig()) == 0 || answer.GetConfig()[0].GetNode().GetId() != model.NodeID(node) {
		t.Errorf("inspection shows %v, %v", answer, err)
	}
}

// checkSpans looks for the way of an edge to its certificate, and for what may not be told.
func checkSpans(t *testing.T, c *tracetest.Collector, secrets ...string) {
	t.Helper()
	enrolled := 0
	for _, call := range c.Find(enrolv1.Enrolment_EnrolEdge_FullMethodName[1:], "rpc.response.status_code", "OK") {
		for _, sign := range c.Below(call, "sign") {
			if len(call.GetParentSpanId()) == 0 && tracetest.Attribute(sign, "fairlead.role") == "edge" && len(c.Below(sign, "HTTP POST")) == 1 {
				enrolled++
			}
		}
	}
	if enrolled != 1 {
		t.Errorf("%d enrolments led to a request to the apiserver, want 1 of %v", enrolled, c.Find(enrolv1.Enrolment_EnrolEdge_FullMethodName[1:]))
	}
	looked := c.Find(statusv3.ClientStatusDiscoveryService_FetchClientStatus_FullMethodName[1:])
	if len(looked) != 1 || hex.EncodeToString(looked[0].GetTraceId()) != callersTrace || hex.EncodeToString(looked[0].GetParentSpanId()) != callersSpan {
		t.Errorf("inspection is not in the trace of who looked: %v", looked)
	}
	// A stream for days has no span.
	for _, not := range append(secrets, "DeltaAggregatedResources", "fairlead.report.v1.Report/Gateway", "CERTIFICATE") {
		if c.Has(not) {
			t.Errorf("%q was sent to the collector", not)
		}
	}
}
