package ledger

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/pkg/sockets"
)

// sock returns a socket of the public port that no kernel has.
func sock(n int) sockets.Socket {
	s := sockets.Socket{
		Local:  netip.MustParseAddrPort("192.0.2.2:1"),
		Remote: netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)}), 40000),
	}
	s.Cookie[0], s.Cookie[1] = byte(n), byte(n>>8)
	return s
}

func socks(from, to int) (all []sockets.Socket) {
	for n := from; n < to; n++ {
		all = append(all, sock(n))
	}
	return all
}

// event is a record of a connection of the socket with this number.
type event struct {
	ends       bool
	socket     int
	connection string
}

func started(n int, connection string) event { return event{false, n, connection} }
func ended(n int, connection string) event   { return event{true, n, connection} }

func (e event) record(l *Ledger) {
	key := Key(sock(e.socket).Remote, sock(e.socket).Local)
	if e.ends {
		l.End(key, e.connection)
		return
	}
	l.Start(key, Owned{Owner: "relay", Connection: e.connection})
}

func noTunnels(sockets.Socket) bool { return false }

func TestAComparisonClosesConnectionsWithoutAnOwnerForTooLong(t *testing.T) {
	l := New()
	started(1, "1").record(&l)
	for i := range Comparisons {
		if unknown := l.Compare(socks(0, 2), noTunnels); len(unknown) != 0 {
			t.Fatalf("look %d closes %v", i+1, unknown)
		}
		if why := l.Incomplete(); why != "" {
			t.Fatalf("a handshake makes the record incomplete: %s", why)
		}
	}
	unknown := l.Compare(socks(0, 2), noTunnels)
	if len(unknown) != 1 || unknown[0].Cookie != sock(0).Cookie {
		t.Fatalf("it closes %v", unknown)
	}
	if l.Incomplete() == "" {
		t.Error("the record is complete with an unknown connection")
	}
	if unknown := l.Compare(socks(1, 2), noTunnels); len(unknown) != 0 || l.Incomplete() != "" {
		t.Errorf("once it is closed: %v, %q", unknown, l.Incomplete())
	}
}

func TestAComparisonClosesALimitedNumberOfConnections(t *testing.T) {
	l := New()
	for range Comparisons {
		l.Compare(socks(0, 10*closesPerComparison), noTunnels)
	}
	if n := len(l.Compare(socks(0, 10*closesPerComparison), noTunnels)); n != closesPerComparison {
		t.Errorf("%d are closed", n)
	}
}

func TestNoConnectionIsClosedAfterAGap(t *testing.T) {
	l := New()
	l.Compare(socks(0, 1), noTunnels)
	l.Lost("a test says so")
	if l.Incomplete() == "" {
		t.Error("the record is complete before the next look")
	}
	for i := range 3 * Comparisons { // socket 3 is added later
		if unknown := l.Compare(append(socks(0, 2), socks(3, 3+min(i, 1))...), noTunnels); len(unknown) != 0 {
			t.Fatalf("look %d closes %v", i, unknown)
		}
		if why := l.Incomplete(); !strings.Contains(why, "2 connections") || !strings.Contains(why, "a test says so") {
			t.Fatalf("look %d: %q", i, why)
		}
	}
	started(0, "1").record(&l) // one socket has an owner after all, and the other one ends
	if unknown := l.Compare(append(socks(0, 1), sock(3)), noTunnels); len(unknown) != 1 ||
		unknown[0].Cookie != sock(3).Cookie {
		t.Errorf("once no connection is doubtful it closes %v", unknown)
	}
	l.Compare(socks(0, 1), noTunnels)
	if why := l.Incomplete(); why != "" {
		t.Errorf("it stays incomplete: %s", why)
	}
}

// TestADenialEndsDoubtfulConnections: one of them may be the denied node's.
func TestADenialEndsDoubtfulConnections(t *testing.T) {
	for name, steps := range map[string]struct{ before, after bool }{
		"after the gap is noticed": {after: true}, "before the gap is noticed": {before: true},
	} {
		l := New()
		l.Denied(true)
		l.Compare(socks(0, 1), noTunnels)
		if steps.before {
			l.Denied(true)
		}
		started(0, "1").record(&l)
		for range 3 { // its records are lost
			l.Lost("a test says so")
			if closed := l.Compare(socks(0, 3), noTunnels); len(closed) != 0 {
				t.Errorf("%s: while records are lost %v are closed", name, closed)
			}
		}
		if closed := l.Compare(socks(0, 3), noTunnels); (len(closed) == 2) != steps.before {
			t.Errorf("%s: %v are closed", name, closed)
		}
		if steps.after {
			l.Denied(true)
		}
		if closed := l.Compare(socks(0, 3), noTunnels); len(closed) != 2 || closed[0].Cookie != sock(1).Cookie {
			t.Errorf("%s: %v are closed", name, closed)
		}
		l.Compare(socks(0, 1), noTunnels)
		l.Lost("a test says so")
		l.Compare(socks(0, 4), noTunnels)
		if closed := l.Compare(socks(0, 4), noTunnels); len(closed) != 0 || l.Incomplete() == "" {
			t.Errorf("%s: after another gap %v are closed: %q", name, closed, l.Incomplete())
		}
	}
}

func TestTimeWithoutComparisonsDoesNotCount(t *testing.T) {
	l := New()
	for range Comparisons {
		l.Compare(socks(0, 1), noTunnels)
	}
	l.Blind("Envoy is frozen")
	if l.Incomplete() != "Envoy is frozen" {
		t.Errorf("got %q", l.Incomplete())
	}
	if unknown := l.Compare(socks(0, 1), noTunnels); len(unknown) != 0 {
		t.Errorf("it closes %v", unknown)
	}
}

// TestTheEndOfAConnectionKeepsANewerOne has two connections with equal addresses, as behind one NAT. The records
// of two workers arrive in any order.
func TestTheEndOfAConnectionKeepsANewerOne(t *testing.T) {
	for name, events := range map[string][]event{
		"in order":         {started(0, "1"), ended(0, "1"), started(0, "2")},
		"the end is late":  {started(0, "1"), started(0, "2"), ended(0, "1")},
		"the end is twice": {started(0, "1"), ended(0, "1"), started(0, "2"), ended(0, "1")},
	} {
		t.Run(name, func(t *testing.T) {
			l := New()
			for _, e := range events {
				e.record(&l)
			}
			for range 2 * Comparisons {
				if unknown := l.Compare(socks(0, 1), noTunnels); len(unknown) != 0 {
					t.Fatal("the newer one is closed")
				}
			}
			ended(0, "2").record(&l)
			if len(l.owned) != 0 {
				t.Errorf("owned: %v", l.owned)
			}
		})
	}
}

func TestARecordWithoutASocketIsRemoved(t *testing.T) {
	l := New()
	started(0, "1").record(&l)
	l.Compare(nil, noTunnels)
	if len(l.owned) != 1 {
		t.Error("the record of a connection that may have begun after the look is forgotten")
	}
	l.Compare(nil, noTunnels)
	if len(l.owned) != 0 {
		t.Error("it is kept for ever")
	}
}
