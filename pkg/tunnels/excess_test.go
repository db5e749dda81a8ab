package tunnels

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
)

func TestCloseEndsTheTunnelsWithAKey(t *testing.T) {
	needsRight(t)
	first, second, at := accepted(t)
	b := newBed(t, t.TempDir())
	b.run(t)
	for _, conn := range []net.Conn{first, second} {
		b.write(t, line(eventSetup, conn.LocalAddr().String(), at.String(), "edge-1", idA, noon))
	}
	deadline := time.Now().Add(10 * time.Second)
	for len(b.Places()) < 2 {
		if time.Now().After(deadline) {
			t.Fatalf("the table has %v", b.Places())
		}
		time.Sleep(10 * time.Millisecond)
	}
	remote := netip.MustParseAddrPort(first.LocalAddr().String())
	if !b.Has(remote, at) || b.Has(netip.AddrPortFrom(remote.Addr(), 1), at) {
		t.Error("it does not know which tunnels there are")
	}
	for _, p := range b.Places() {
		if p.From != remote.Addr() || p.Node != "edge-1" {
			t.Errorf("a tunnel is at %v", p)
		}
	}
	if n, err := b.Close([]string{key(remote, at), "no such key"}); n != 1 || err != nil {
		t.Fatalf("%d were closed, %v", n, err)
	}
	_ = first.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := first.Read(make([]byte, 1)); err == nil {
		t.Error("the tunnel is open")
	} else if timeout, ok := err.(net.Error); ok && timeout.Timeout() { //nolint:errorlint // bare
		t.Error("the tunnel is open")
	}
	if _, err := second.Write([]byte("x")); err != nil {
		t.Errorf("the other tunnel: %v", err)
	}
}

// accepted makes two connections to one listener.
func accepted(t *testing.T) (first, second net.Conn, at netip.AddrPort) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			go func() { _, _ = io.Copy(io.Discard, conn) }()
		}
	}()
	at = listener.Addr().(*net.TCPAddr).AddrPort()
	for _, conn := range []*net.Conn{&first, &second} {
		if *conn, err = net.Dial("tcp", at.String()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = (*conn).Close() })
		if _, err := (*conn).Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	return first, second, at
}
