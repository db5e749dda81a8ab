package tunnels

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
)

func TestAnAddressWithSeveralConnectionsIsNotGuessed(t *testing.T) {
	needsRight(t)
	one, two := newEcho(t, "tcp", "127.0.0.1:0"), newEcho(t, "tcp", "127.0.0.2:0")
	first := one.dial(t, one.Addr().String())
	conn := dialFrom(t, first.remote, two.Addr().String())
	second := wire{Conn: conn, server: <-two.accepted}
	t.Cleanup(func() { _ = second.server.Close() })
	b := newBed(t, t.TempDir())
	b.write(t, line(eventSetup, first.remote.String(), "", "edge-1", idA, noon))
	b.poll(noon)
	b.publish()
	b.Deny(model.Denied{Edges: []model.EdgeRef{{Node: "edge-1", ID: idA}}})
	if left := b.closeDenied(); left != 1 || b.Stats().CutFails != 1 {
		t.Errorf("%d are still to be cut, %+v", left, b.Stats())
	}
	if err := errors.Join(first.answers(), second.answers()); err != nil {
		t.Errorf("a connection was cut: %v", err)
	}
	// Once Envoy reports which connection it is.
	b.write(t, first.event(eventSetup, "edge-1", idA))
	b.poll(noon)
	b.closeDenied()
	isCut(t, first)
	b.closeDenied()
	if err := second.answers(); err != nil {
		t.Errorf("the wrong one was cut: %v", err)
	}
	b.has(t, map[string]string{})
}

// TestTheLastOfSeveralIsNotGuessed has two connections, one of them the tunnel according to no event, and ends one.
func TestTheLastOfSeveralIsNotGuessed(t *testing.T) {
	needsRight(t)
	one, two := newEcho(t, "tcp", "127.0.0.1:0"), newEcho(t, "tcp", "127.0.0.2:0")
	first := one.dial(t, one.Addr().String())
	conn := dialFrom(t, first.remote, two.Addr().String())
	second := wire{Conn: conn, server: <-two.accepted}
	t.Cleanup(func() { _ = second.server.Close() })
	b := newBed(t, t.TempDir())
	b.write(t, line(eventSetup, first.remote.String(), "", "edge-1", idA, noon))
	b.poll(noon)
	b.publish()
	b.bind()
	_ = first.Conn.(*net.TCPConn).SetLinger(0) // no TIME_WAIT
	_ = first.Close()
	_ = first.server.Close()
	b.Deny(model.Denied{Edges: []model.EdgeRef{{Node: "edge-1", ID: idA}}})
	b.closeDenied()
	if err := second.answers(); err != nil {
		t.Errorf("the one that is left was cut: %v", err)
	}
}

// TestAFailedRepairIsNoFailedRevocation: if CutFails increases, an alert says that a revoked edge may be connected.
func TestAFailedRepairIsNoFailedRevocation(t *testing.T) {
	one, two := newEcho(t, "tcp", "127.0.0.1:0"), newEcho(t, "tcp", "127.0.0.2:0")
	first := one.dial(t, one.Addr().String())
	_ = dialFrom(t, first.remote, two.Addr().String())
	server := <-two.accepted
	t.Cleanup(func() { _ = server.Close() })
	b := newBed(t, t.TempDir())
	b.repairs = newRepairs(rules{workers: 2})
	// All tunnels are on one worker. The oldest is the one to close, and it is ambiguous.
	b.write(t, line(eventSetup, first.remote.String(), "", "edge-1", idA, noon.Add(-time.Hour)))
	for range 2*atLeast - 1 {
		b.write(t, one.dial(t, one.Addr().String()).event(eventSetup, "edge-1", idA))
	}
	b.poll(noon)
	b.publish()
	b.repair(noon)
	if n := b.log.Count("cannot close tunnel so that its edge dials it again"); n != 1 {
		t.Fatalf("closing a tunnel failed %d times", n)
	}
	if s := b.Stats(); s.CutFails != 0 || s.Moved != 0 {
		t.Errorf("a failed repair counts as a failed revocation: %+v", s)
	}
}
