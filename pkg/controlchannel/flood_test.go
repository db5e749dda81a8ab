package controlchannel_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controlchannel"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
)

// occupy opens unauthenticated connections with a call that never ends.
func (b *testbed) occupy(t *testing.T, n int, from func(i int) string) {
	t.Helper()
	call := openStreams(t, 1)
	for i := range n {
		raw, err := b.raw(t.Context(), from(i))
		if err != nil {
			t.Fatal(err)
		}
		conn := tls.Client(raw, b.clientTLS(t, nil))
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := conn.Write(call); err != nil {
			t.Logf("connection %d: %v", i, err) // rejected by now
		}
	}
}

// The flood takes every slot, from many addresses, each with as many connections as it may have.
func TestAFloodFromManyAddressesDoesNotAffectNewEdges(t *testing.T) {
	const places, each = 32, 8
	fromIPv4 := func(i int) string { return fmt.Sprintf("203.0.113.%d:%d", 1+i/each, 1000+i) }
	// a /64 for each, all of one /48
	fromIPv6 := func(i int) string { return fmt.Sprintf("[2001:db8:0:%x::1]:%d", i, 1000+i) }
	tests := map[string]func(t *testing.T, b *testbed){
		"of handshakes that do not end":                    func(t *testing.T, b *testbed) { b.silence(t, places, fromIPv4) },
		"of handshakes that do not end, from one /48":      func(t *testing.T, b *testbed) { b.silence(t, places, fromIPv6) },
		"of strangers whose calls never end":               func(t *testing.T, b *testbed) { b.occupy(t, places, fromIPv4) },
		"of strangers whose calls never end, from one /48": func(t *testing.T, b *testbed) { b.occupy(t, places, fromIPv6) },
		"of handshakes and strangers, as many as both hold": func(t *testing.T, b *testbed) {
			b.occupy(t, places, fromIPv4)
			b.silence(t, places, fromIPv6)
		},
	}
	for name, flood := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newTestbed(
				t,
				controlchannel.Bounds{
					Public:          places,
					PerAddress:      each,
					Handshake:       patience,
					Unauthenticated: patience,
					Message:         patience,
					Fair:            patience,
				},
			)
			token := b.newToken(t, c1, 8)
			flood(t, b)
			eventually.True(t, patience, "the flood having all places", func() error {
				if held := b.Held(); held < places {
					return fmt.Errorf("it has %d", held)
				}
				return nil
			})
			for i := range 4 { // each at the first attempt
				from := fmt.Sprintf("198.51.100.%d:1", i)
				newcomer := enrolv1.NewEnrolmentClient(b.dial(t, nil, from))
				if _, err := newcomer.EnrolEdge(t.Context(), &enrolv1.EnrolEdgeRequest{Token: token, Csr: csr(t)}); err != nil {
					t.Errorf("enrolling: %v", err)
				}
				if err := fetch(t, b.dial(t, ptr(b.identity(t, edge, time.Hour)), from), edge); err != nil {
					t.Errorf("an edge: %v", err)
				}
			}
			if held := b.Held(); held > 2*places+8 {
				t.Errorf("%d connections are held", held)
			}
		})
	}
}

func TestACallerWithALeafTakesNoUnauthenticatedSlot(t *testing.T) {
	b := newTestbed(t, controlchannel.Bounds{Public: 4, PerAddress: 4, PerNode: 32})
	for range 16 {
		if err := fetch(t, b.dial(t, ptr(b.identity(t, edge, time.Hour)), "203.0.113.1:1"), edge); err != nil {
			t.Fatal(err)
		}
	}
	token := b.newToken(t, c1, 1)
	newcomer := enrolv1.NewEnrolmentClient(b.dial(t, nil, "203.0.113.1:1"))
	if _, err := newcomer.EnrolEdge(t.Context(), &enrolv1.EnrolEdgeRequest{Token: token, Csr: csr(t)}); err != nil {
		t.Errorf("enrolling beside 16 edges at one address: %v", err)
	}
}

func TestTheCallRateOfOneCertificateIsLimited(t *testing.T) {
	for name, is := range map[string]model.Subject{"an edge": edge, "a gateway": gateway} {
		t.Run(name, func(t *testing.T) {
			b := newTestbed(t, controlchannel.Bounds{})
			identity := ptr(b.identity(t, is, time.Hour))
			served, begin := 0, time.Now()
			for i := range 300 {
				conn := b.dial(t, identity, "")
				err := send(t.Context(), conn, []string{ads, reportEdge}[i%2])
				if status.Code(err) != codes.ResourceExhausted {
					served++
				} else if wait := retry.RequestedWait(err); wait <= 0 || wait > time.Second {
					t.Errorf("it is asked to wait %s: %v", wait, err)
				}
				_ = conn.Close()
			}
			if most := 101 + int(5*time.Since(begin).Seconds()); served > most || served < 100 {
				t.Errorf("%d of its calls were served, want 100 to %d", served, most)
			}
			other := model.Subject{Role: model.RoleEdge, Node: edge.Node, ID: c2.ID} // with the same name
			if err := fetch(t, b.dial(t, ptr(b.identity(t, other, time.Hour)), ""), other); err != nil {
				t.Errorf("another edge: %v", err)
			}
			if _, err := enrolv1.NewEnrolmentClient(b.dial(t, identity, "")).Renew(t.Context(), &enrolv1.RenewRequest{Csr: csr(
				t)}); err != nil {
				t.Errorf("its own renewal: %v", err)
			}
			eventually.True(t, patience, "its being served again", func() error { return fetch(t, b.dial(t, identity, ""), is) })
		})
	}
}

// TestTheRateOfEnrolmentsIsLimited: every call costs the decoding of its message and a lookup of its token.
func TestTheRateOfEnrolmentsIsLimited(t *testing.T) {
	const calls = 5000
	tests := map[string]struct {
		is    *model.Subject
		burst int
		every time.Duration // between two calls beyond the burst
	}{
		"of a caller without a certificate": {burst: 400, every: 5 * time.Millisecond},
		"of an edge":                        {is: &edge, burst: 100, every: 200 * time.Millisecond},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := newTestbed(t, controlchannel.Bounds{})
			var identity *certs.Identity
			if tc.is != nil {
				identity = ptr(b.identity(t, *tc.is, time.Hour))
			}
			client, begin := enrolv1.NewEnrolmentClient(b.dial(t, identity, "203.0.113.1:1")), time.Now()
			request := &enrolv1.EnrolEdgeRequest{Token: "fl1.unknown", Csr: make([]byte, 30<<10)}
			var limited error
			for range calls {
				if _, err := client.EnrolEdge(t.Context(), request); retry.RequestedWait(err) > 0 {
					limited = err
				}
			}
			b.mu.Lock()
			lookups := b.lookups
			b.mu.Unlock()
			most := tc.burst + int(time.Since(begin)/tc.every) + 1
			if lookups < tc.burst || lookups > most || limited == nil {
				t.Errorf("%d of %d calls were served, want %d to %d; limited: %v", lookups, calls, tc.burst, most, limited)
			}
			b.alive(t)
		})
	}
}

// TestRejectedCallsLeaveNothing: a caller chooses the deadline of its calls, and may choose one in years.
func TestRejectedCallsLeaveNothing(t *testing.T) {
	const calls = 3000
	b := newTestbed(t, controlchannel.Bounds{AddressCalls: calls})
	conn := b.dial(t, nil, "203.0.113.1:1")
	objects := func() int {
		var stats runtime.MemStats
		runtime.GC()
		runtime.GC() // the first one clears the victims of pools
		runtime.ReadMemStats(&stats)
		return int(stats.HeapObjects)
	}
	before := objects()
	for range calls {
		ctx, cancel := context.WithTimeout(t.Context(), 10_000*time.Hour)
		if err := conn.Invoke(ctx, renew, &enrolv1.RenewRequest{}, &enrolv1.Certificate{}); err == nil {
			t.Fatal("a call without permission was answered")
		}
		cancel()
	}
	must(t, conn.Close())
	eventually.True(t, patience, "the calls leaving nothing", func() error {
		if left := objects() - before; left > calls/2 {
			return fmt.Errorf("%d objects are left of %d calls", left, calls)
		}
		return nil
	})
}
