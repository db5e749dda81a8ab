// Package conntest makes TCP connections on loopback for tests of sockets. Its output is connections whose other ends
// read everything and answer nothing. It does not know how the sockets are changed.
package conntest

import (
	"io"
	"net"
	"net/netip"
	"testing"
)

// Two makes two connections to one listener, and sends a byte on each. The test closes all of them when it ends.
func Two(t testing.TB) (first, second net.Conn, at netip.AddrPort) {
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
