package tunnels

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/sockets"
)

// passed returns a record of a connection that Envoy forwards.
func passed(owner, event, peer, local string, connection int) string {
	return fmt.Sprintf(
		`{"connection":%d,"event":%q,"local":%q,"owner":%q,"peer":%q,"time":"2026-01-01T12:00:00.000Z"}`+"\n",
		connection,
		event,
		local,
		owner,
		peer,
	)
}

// sock returns a socket of the public port that no kernel has.
func sock(n int) sockets.Socket {
	s := sockets.Socket{Local: netip.MustParseAddrPort(nowhere), Remote: netip.MustParseAddrPort(peerAt(n))}
	s.Cookie[0], s.Cookie[1] = byte(n), byte(n>>8)
	return s
}

func socks(from, to int) (all []sockets.Socket) {
	for n := from; n < to; n++ {
		all = append(all, sock(n))
	}
	return all
}

func started(n, connection int) event { return passedEvent(eventStart, n, connection) }
func ended(n, connection int) event   { return passedEvent(eventEnd, n, connection) }

func passedEvent(name string, n, connection int) event {
	e, err := parseEvent(domain, []byte(passed("relay", name, peerAt(n), nowhere, connection)))
	if err != nil {
		panic(err)
	}
	return e
}

func noTunnels(sockets.Socket) bool { return false }

func TestAComparisonClosesConnectionsWithoutAnOwnerForTooLong(t *testing.T) {
	l := newLedger()
	l.record(started(1, 1))
	for i := range unownedComparisons {
		if unknown := l.compare(socks(0, 2), noTunnels); len(unknown) != 0 {
			t.Fatalf("look %d closes %v", i+1, unknown)
		}
		if why := l.incomplete(); why != "" {
			t.Fatalf("a handshake makes the record incomplete: %s", why)
		}
	}
	unknown := l.compare(socks(0, 2), noTunnels)
	if len(unknown) != 1 || unknown[0].Cookie != sock(0).Cookie {
		t.Fatalf("it closes %v", unknown)
	}
	if l.incomplete() == "" {
		t.Error("the record is complete with an unknown connection")
	}
	if unknown := l.compare(socks(1, 2), noTunnels); len(unknown) != 0 || l.incomplete() != "" {
		t.Errorf("once it is closed: %v, %q", unknown, l.incomplete())
	}
}

func TestAComparisonClosesALimitedNumberOfConnections(t *testing.T) {
	l := newLedger()
	for range unownedComparisons {
		l.compare(socks(0, 10*closesPerComparison), noTunnels)
	}
	if n := len(l.compare(socks(0, 10*closesPerComparison), noTunnels)); n != closesPerComparison {
		t.Errorf("%d are closed", n)
	}
}

func TestNoConnectionIsClosedAfterAGap(t *testing.T) {
	l := newLedger()
	l.compare(socks(0, 1), noTunnels)
	l.lost("a test says so")
	if l.incomplete() == "" {
		t.Error("the record is complete before the next look")
	}
	for i := range 3 * unownedComparisons { // socket 3 is added later
		if unknown := l.compare(append(socks(0, 2), socks(3, 3+min(i, 1))...), noTunnels); len(unknown) != 0 {
			t.Fatalf("look %d closes %v", i, unknown)
		}
		if why := l.incomplete(); !strings.Contains(why, "2 connections") || !strings.Contains(why, "a test says so") {
			t.Fatalf("look %d: %q", i, why)
		}
	}
	l.record(started(0, 1)) // one socket has an owner after all, and the other one ends
	if unknown := l.compare(append(socks(0, 1), sock(3)), noTunnels); len(unknown) != 1 ||
		unknown[0].Cookie != sock(3).Cookie {
		t.Errorf("once no connection is doubtful it closes %v", unknown)
	}
	l.compare(socks(0, 1), noTunnels)
	if why := l.incomplete(); why != "" {
		t.Errorf("it stays incomplete: %s", why)
	}
}

func TestTimeWithoutComparisonsDoesNotCount(t *testing.T) {
	l := newLedger()
	for range unownedComparisons {
		l.compare(socks(0, 1), noTunnels)
	}
	l.blind("Envoy is frozen")
	if l.incomplete() != "Envoy is frozen" {
		t.Errorf("got %q", l.incomplete())
	}
	if unknown := l.compare(socks(0, 1), noTunnels); len(unknown) != 0 {
		t.Errorf("it closes %v", unknown)
	}
}

// TestTheEndOfAConnectionKeepsANewerOne has two connections with equal addresses, as behind one NAT. The records
// of two workers arrive in any order.
func TestTheEndOfAConnectionKeepsANewerOne(t *testing.T) {
	for name, events := range map[string][]event{
		"in order":         {started(0, 1), ended(0, 1), started(0, 2)},
		"the end is late":  {started(0, 1), started(0, 2), ended(0, 1)},
		"the end is twice": {started(0, 1), ended(0, 1), started(0, 2), ended(0, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger()
			for _, e := range events {
				l.record(e)
			}
			for range 2 * unownedComparisons {
				if unknown := l.compare(socks(0, 1), noTunnels); len(unknown) != 0 {
					t.Fatal("the newer one is closed")
				}
			}
			l.record(ended(0, 2))
			if len(l.owned) != 0 {
				t.Errorf("owned: %v", l.owned)
			}
		})
	}
}

func TestARecordWithoutASocketIsRemoved(t *testing.T) {
	l := newLedger()
	l.record(started(0, 1))
	l.compare(nil, noTunnels)
	if len(l.owned) != 1 {
		t.Error("the record of a connection that may have begun after the look is forgotten")
	}
	l.compare(nil, noTunnels)
	if len(l.owned) != 0 {
		t.Error("it is kept for ever")
	}
}

// TestALateEndOfATunnelDoesNotEndANewerOne has an edge that resets a connection and dials again from the same port.
func TestALateEndOfATunnelDoesNotEndANewerOne(t *testing.T) {
	b := newBed(t, t.TempDir())
	with := func(s, fd string) string { return strings.Replace(s, `"fd":35`, `"fd":`+fd, 1) }
	b.write(t, with(setup(0, "edge-1"), "35"))
	b.poll(time.Now())
	b.write(t, with(setup(0, "edge-1"), "36"), with(closed(0, "edge-1"), "35")) // in one batch
	b.poll(time.Now())
	if len(b.live) != 1 {
		t.Fatal("the newer tunnel is not in the table")
	}
	b.write(t, with(closed(0, "edge-1"), "35"), closed(0, "edge-2")) // and in separate batches
	b.poll(time.Now())
	if len(b.live) != 1 {
		t.Fatal("the newer tunnel is not in the table any more")
	}
	b.write(t, with(closed(0, "edge-1"), "36"))
	b.poll(time.Now())
	if len(b.live) != 0 {
		t.Error("it does not end")
	}
}

// TestLostEventsMakeTheRecordIncomplete also restarts the agent at each step: the next one reads the gap from the
// state.
func TestLostEventsMakeTheRecordIncomplete(t *testing.T) {
	for name, tt := range map[string]struct {
		do   func(t *testing.T, b *bed)
		want bool
	}{
		"nothing": {func(*testing.T, *bed) {}, false},
		"records": {func(t *testing.T, b *bed) {
			b.write(t, setup(1, "edge-1"), passed("relay", eventStart, peerAt(2), nowhere, 1), closed(1, "edge-1"))
		}, false},
		"a line that is no record": {func(t *testing.T, b *bed) { b.write(t, "{}\n") }, true},
		"a line that is too long":  {func(t *testing.T, b *bed) { b.write(t, strings.Repeat("x", MaxLine+1)+"\n") }, true},
		"a log that is truncated": {func(t *testing.T, b *bed) {
			b.write(t, setup(1, "edge-1"))
			b.poll(time.Now())
			if err := os.Truncate(b.path, 0); err != nil {
				t.Fatal(err)
			}
		}, true},
		"a state that is lost": {func(t *testing.T, b *bed) {
			if err := os.Remove(b.statePath()); err != nil {
				t.Fatal(err)
			}
			b.closeFiles() // the agent restarts
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			b := newBed(t, dir)
			if err := b.Fresh(); err != nil {
				t.Fatal(err)
			}
			if err := b.open(t.Context()); err != nil { // an Envoy that starts creates its log
				t.Fatal(err)
			}
			b.poll(time.Now())
			tt.do(t, b)
			b.poll(time.Now())
			if got := b.ledger.why() != ""; got != tt.want {
				t.Errorf("a gap is %v: %q", got, b.ledger.why())
			}
			b.closeFiles()
			again := newBed(t, dir)
			again.poll(time.Now())
			if got := again.ledger.why() != ""; got != tt.want {
				t.Errorf("for the next agent a gap is %v: %q", got, again.ledger.why())
			}
			if name == "records" && len(again.ledger.owned) != 1 {
				t.Errorf("the next agent knows %v", again.ledger.owned)
			}
		})
	}
}

// TestOwnersOutliveTheLog replaces the log: its records are in the state.
func TestOwnersOutliveTheLog(t *testing.T) {
	b := newBed(t, t.TempDir())
	if err := b.Fresh(); err != nil {
		t.Fatal(err)
	}
	if err := b.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.write(t, passed("control", eventStart, peerAt(1), nowhere, 5))
	b.maxLog, b.reopenEvery = 1, 0
	b.poll(time.Now()) // moves it away
	if err := b.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.poll(time.Now())
	b.poll(time.Now())
	if files := fmt.Sprint(b.files(t)); strings.Contains(files, ".old") {
		t.Fatalf("files: %s", files)
	}
	b.closeFiles()
	again := newBed(t, t.TempDir())
	again.config.Log, again.Table.log.path = b.path, b.path
	again.poll(time.Now())
	if o := again.ledger.owned[peerAt(1)+">"+nowhere]; o.Owner != "control" || o.Connection != "5" {
		t.Errorf("owned: %v", again.ledger.owned)
	}
}
