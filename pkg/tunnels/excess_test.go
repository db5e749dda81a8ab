package tunnels

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
)

// TestSilentConnectionsOfOneSourceAreBounded has eight connections of which the server has answered two.
func TestSilentConnectionsOfOneSourceAreBounded(t *testing.T) {
	needsRight(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var clients []net.Conn
	for i := range 8 {
		client, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		clients = append(clients, client)
		server, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		if i >= 2 {
			continue
		}
		if _, err := server.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(client, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
	}
	at := netip.MustParseAddrPort(listener.Addr().String())
	one := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
	deadline := time.Now().Add(10 * time.Second)
	for closed := 0; closed < 3; { // what was read is acknowledged a moment later
		n, err := CloseSilent(at, one, func(netip.Prefix) int { return 3 })
		if err != nil {
			t.Fatal(err)
		}
		if closed += n; time.Now().After(deadline) {
			t.Fatalf("%d were closed", closed)
		}
	}
	open := 0
	for i, client := range clients {
		_ = client.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err := client.Read(make([]byte, 1))
		timeout, ok := err.(net.Error) //nolint:errorlint // the net package returns it bare
		if ok && timeout.Timeout() {
			open++
		} else if i < 2 {
			t.Errorf("a connection that is in use is closed: %v", err)
		}
	}
	if open != 2+3 {
		t.Errorf("%d connections are open, want the two in use and three", open)
	}
}

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
