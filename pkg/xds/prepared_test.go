package xds_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestEdgesOfAPreparedTunnelConnectWithoutResources(t *testing.T) {
	c1, other := workload("c1"), workload("c2")
	waits := c1
	waits.Prepared = true
	b := newBed(t, waits, other)
	gatewayStream := b.envoy(t, gateway)
	if routes := gatewayStream.fetch(t, cds); routes[c1.Hostname] != "" || routes[other.Hostname] == "" {
		t.Errorf("a gateway has %v", routes)
	}
	edge := b.envoy(t, edgeOf(c1))
	for _, kind := range []string{cds, lds} {
		if got := edge.fetch(t, kind); len(got) > 0 {
			t.Errorf("it gets %v", got)
		}
	}
	if err := b.Admit(edgeOf(c1)); err != nil {
		t.Errorf("it is not let in: %v", err)
	}
	if key, ok := b.Tunnel(c1.ID); !ok || key != c1.Key {
		t.Errorf("its tunnel is %v, %v", key, ok)
	}

	b.publish(c1) // its Cluster exists now
	expect(t, "sent to its edge", names(edge.next(t)), edgeClusters)
	expect(t, "sent to its edge", names(edge.next(t)), edgeListeners)
	expect(t, "sent to gateways", names(gatewayStream.next(t)), []string{c1.Hostname})

	b.publish(waits) // it was deleted, and the Tunnel waits again
	expect(t, "removed from gateways", gatewayStream.next(t).GetRemovedResources(), []string{c1.Hostname})
}

func TestAnExpiredPreparedTunnelDeniesItsEdges(t *testing.T) {
	c1 := workload("c1")
	c1.Prepared = true
	b := newBed(t, c1)
	edge := b.envoy(t, edgeOf(c1))
	edge.fetch(t, cds)
	b.revoke(c1, "edge-b")
	b.Ended(map[string]time.Time{c1.ID: time.Now().Add(time.Hour)})
	if code := edge.refusal(t); code != codes.FailedPrecondition {
		t.Errorf("its stream ended with %s", code)
	}
	if code := status.Code(b.Admit(edgeOf(c1))); code != codes.FailedPrecondition {
		t.Errorf("it is answered %s", code)
	}
}
