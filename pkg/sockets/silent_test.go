package sockets

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
)

// TestSilentConnectionsOfOneSourceAreBounded has eight connections; the server has answered on two.
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
	for closed := 0; closed < 3; { // data that was read is acknowledged a moment later
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
