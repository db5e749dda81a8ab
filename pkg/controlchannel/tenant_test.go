package controlchannel_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/controlchannel"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
)

var victim = model.Subject{Role: model.RoleEdge, Node: "edge-v", ID: c2.ID}

// hold opens control connections with several leaves of one tunnel, each with an ADS stream, and keeps the accepted
// ones.
func (b *testbed) hold(t *testing.T, wc model.WorkloadCluster, leaves, each int) (held int) {
	t.Helper()
	for i := range leaves {
		is := model.Subject{Role: model.RoleEdge, Node: fmt.Sprintf("edge-h%d", i), ID: wc.ID}
		identity := b.identity(t, is, time.Hour)
		for range each {
			conn := b.dial(t, &identity, fmt.Sprintf("203.0.113.%d:1", i))
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			t.Cleanup(cancel)
			stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
			if err != nil {
				continue
			}
			if stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: nodeOf(is), TypeUrl: resourcev3.ClusterType}) == nil {
				if _, err := stream.Recv(); err == nil {
					held++
				}
			}
		}
	}
	return held
}

// TestATenantThatFillsTheChannelKeepsNoOtherOut lets one tenant use all slots of edges with several leaves. The edge
// of another tenant connects, renews and keeps its connection.
func TestATenantThatFillsTheChannelKeepsNoOtherOut(t *testing.T) {
	t.Run("with shares", func(t *testing.T) {
		b := newTestbed(t, controlchannel.Bounds{Known: 24, PerNode: 8, PerTunnel: 1000})
		if held := b.hold(t, c1, 4, 8); held < 20 {
			t.Fatalf("the tenant got %d connections only", held)
		}
		identity := ptr(b.identity(t, victim, time.Hour))
		early := b.dial(t, identity, "198.51.100.1:1")
		for i := range 6 { // each at the first attempt
			if err := fetch(t, b.dial(t, identity, "198.51.100.1:1"), victim); err != nil {
				t.Errorf("connection %d of the victim: %v", i, err)
			}
		}
		if err := fetch(t, early, victim); err != nil {
			t.Error(err)
		}
		b.hold(t, c1, 4, 8) // again
		if _, err := enrolv1.NewEnrolmentClient(early).Renew(t.Context(), &enrolv1.RenewRequest{Csr: csr(t)}); err != nil {
			t.Errorf("the victim renews: %v", err)
		}
		// its clients try again, so any number of handshakes may run at one time
		eventually.True(t, patience, "no more connections being held than there are slots", func() error {
			if held := b.Held(); held > 24 {
				return fmt.Errorf("%d are held", held)
			}
			return nil
		})
	})
	t.Run("without a share of its own for each tunnel", func(t *testing.T) {
		b := newTestbed(t, controlchannel.Bounds{Known: 24, PerNode: 8, PerTunnel: 1000})
		b.ForgetTunnels()
		b.hold(t, c1, 4, 8)
		identity := ptr(b.identity(t, victim, time.Hour))
		if err := fetch(t, b.dial(t, identity, "198.51.100.1:1"), victim); err == nil {
			t.Error("the victim is served: the attack proves nothing")
		}
	})
}

func TestTheConnectionsOfOneTunnelAreBounded(t *testing.T) {
	b := newTestbed(t, controlchannel.Bounds{PerNode: 8, PerTunnel: 12})
	if held := b.hold(t, c1, 3, 8); held > 12 || held < 8 {
		t.Errorf("the edges of one tunnel hold %d connections, want 12", held)
	}
	if err := fetch(t, b.dial(t, ptr(b.identity(t, victim, time.Hour)), ""), victim); err != nil {
		t.Error(err)
	}
}

func TestTheConnectionsOfAllEdgesCanBeChanged(t *testing.T) {
	const all, fewer = 24, 8
	b := newTestbed(t, controlchannel.Bounds{Known: all, PerNode: 8})
	bounded := func(most int) {
		t.Helper()
		eventually.True(t, patience, "no more connections being held than are allowed", func() error {
			if held := b.Held(); held > most {
				return fmt.Errorf("%d are held, of %d", held, most)
			}
			return nil
		})
	}
	if held := b.hold(t, c1, 2, 8); held < 2*fewer {
		t.Fatalf("%d connections are served", held)
	}
	b.SetEdgeConnections(fewer)
	bounded(fewer)
	if held := b.hold(t, c1, 1, 8); held > 0 {
		t.Errorf("%d connections are served beyond what is allowed", held)
	}
	b.SetEdgeConnections(2 * all)
	if held := b.hold(t, c1, 4, 8); held < all-2*fewer {
		t.Errorf("%d further connections are served", held)
	}
	bounded(all)
}

// TestTheCallsOfOneTunnelAreBounded begins calls with as many leaves as necessary.
func TestTheCallsOfOneTunnelAreBounded(t *testing.T) {
	b := newTestbed(t, controlchannel.Bounds{TunnelCalls: 50, NodeStreams: 3})
	var served, limited int
	for i := range 20 {
		is := model.Subject{Role: model.RoleEdge, Node: fmt.Sprintf("edge-%d", i), ID: c1.ID}
		conn := b.dial(t, ptr(b.identity(t, is, time.Hour)), "")
		for range 20 {
			if err := send(t.Context(), conn, reportEdge); status.Code(err) == codes.ResourceExhausted {
				limited++
			} else {
				served++
			}
		}
	}
	if served < 50 || limited == 0 {
		t.Errorf("%d calls were served, %d limited", served, limited)
	}
	if err := fetch(t, b.dial(t, ptr(b.identity(t, victim, time.Hour)), ""), victim); err != nil {
		t.Errorf("another tunnel: %v", err)
	}
}

func TestTheOpenCallsOfOneCertificateAreBounded(t *testing.T) {
	b := newTestbed(t, controlchannel.Bounds{NodeStreams: 3})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var refused atomic.Int64
	call(ctx, t, b.dial(t, ptr(b.identity(t, edge, time.Hour)), ""), 12, &refused)
	eventually.True(t, patience, "calls beyond three are rejected", func() error {
		if n := refused.Load(); n != 9 {
			return fmt.Errorf("%d of 12 are", n)
		}
		return nil
	})
}

// call begins calls that do not end on a connection, and counts those that are rejected.
func call(ctx context.Context, t *testing.T, conn *grpc.ClientConn, calls int, refused *atomic.Int64) {
	t.Helper()
	for range calls {
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if _, err := stream.Recv(); status.Code(err) == codes.ResourceExhausted {
				refused.Add(1)
			}
		}()
	}
}

// TestTheOpenCallsOfOneGatewayAreBounded: each may hold a message of 32 MiB that does not end.
func TestTheOpenCallsOfOneGatewayAreBounded(t *testing.T) {
	const conns, each, most = 4, 16, 8
	b := newTestbed(t, controlchannel.Bounds{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	identity := ptr(b.identity(t, gateway, time.Hour))
	var refused atomic.Int64
	for range conns {
		call(ctx, t, b.dial(t, identity, ""), each, &refused)
	}
	eventually.True(t, patience, "calls beyond eight are rejected", func() error {
		if n := refused.Load(); n != conns*each-most || b.Running() != most {
			return fmt.Errorf("%d of %d are, %d run", n, conns*each, b.Running())
		}
		return nil
	})
}

// TestAddressesOfEdgesHaveHalfOfThePlaces opens unauthenticated connections from many addresses, more than there are
// slots, and keeps them as long as possible. An edge whose address has presented a certificate connects at the first
// attempt.
func TestAddressesOfEdgesHaveHalfOfThePlaces(t *testing.T) {
	const places = 32
	from := func(i int) string { return fmt.Sprintf("203.0.%d.%d:1", i/200, 1+i%200) } // one connection from each
	for name, known := range map[string]bool{"that it knows": true, "that it does not know": false} {
		t.Run("an edge of an address "+name, func(t *testing.T) {
			b := newTestbed(t, controlchannel.Bounds{
				Public: places, PerAddress: 8, Handshake: patience, Unauthenticated: patience, Fair: patience,
			})
			identity := ptr(b.identity(t, edge, time.Hour))
			if known {
				if err := fetch(t, b.dial(t, identity, "198.51.100.1:1"), edge); err != nil {
					t.Fatal(err)
				}
			}
			b.silence(t, 3*places, from)
			eventually.True(t, patience, "the flood having all places", func() error {
				if held := b.Held(); held < places {
					return fmt.Errorf("it has %d", held)
				}
				return nil
			})
			err := fetch(t, b.dial(t, identity, "198.51.100.1:2"), edge)
			if known != (err == nil) {
				t.Errorf("the edge: %v", err)
			}
		})
	}
}

func TestOneEdgeOpensAFewReservedSlots(t *testing.T) {
	b := newTestbed(
		t, controlchannel.Bounds{Public: 64, PerAddress: 8, Handshake: patience, Unauthenticated: patience, Fair: patience},
	)
	from := func(int) string { return "203.0.113.1:1" }
	if err := fetch(t, b.dial(t, ptr(b.identity(t, edge, time.Hour)), from(0)), edge); err != nil {
		t.Fatal(err)
	}
	before := b.Held()
	b.silence(t, 40, from)
	eventually.True(t, patience, "the places of one address being taken", func() error {
		if n := b.Held() - before; n != 8+4 {
			return fmt.Errorf("%d are, want 12", n)
		}
		return nil
	})
}

// TestARejectedConnectionIsReset: after an ordinary close the gateway's Envoy would keep its side until the caller
// closes too, and a hostile caller does not.
func TestARejectedConnectionIsReset(t *testing.T) {
	b := newTestbed(t, controlchannel.Bounds{Public: 4, PerAddress: 1, Handshake: 2 * time.Second})
	hello := clientHello(t)
	// The end waits until a connection ends, and returns how. A reset that arrives before the hello is sent is reported
	// by the write, and only by it.
	open := func(from string) (end func() error) {
		conn, err := b.raw(t.Context(), from)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, written := conn.Write(hello)
		return func() error {
			if written != nil {
				return written
			}
			_ = conn.SetReadDeadline(time.Now().Add(patience))
			_, err := io.Copy(io.Discard, conn)
			return err
		}
	}
	silent := open("203.0.113.1:1")
	eventually.True(t, patience, "the first one being in its handshake", func() error {
		if n := b.Held(); n != 1 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	for name, end := range map[string]func() error{
		"one too many":                open("203.0.113.1:2"),
		"one that sends nothing more": silent,
	} {
		if err := end(); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s ends with %v", name, err)
		}
	}
}
