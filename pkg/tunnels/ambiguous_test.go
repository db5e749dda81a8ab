package tunnels

import (
	"errors"
	"net"
	"testing"

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
