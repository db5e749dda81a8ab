// Package conntest makes TCP connections on loopback for tests of sockets. Its output is connections whose other ends
// read everything and answer nothing, and listeners that answer no SYN. It does not know how the sockets are changed.
package conntest

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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

// BlackHole listens at an address of IPv4 and answers no SYN, until it is closed or the test ends: the kernel drops
// them while the queue of a listener is full.
func BlackHole(t testing.TB, address string) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	raw, err := listener.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var listening error // a second listen(2) changes the length of the queue
	if err := raw.Control(func(fd uintptr) { listening = unix.Listen(int(fd), 0) }); err != nil || listening != nil {
		t.Fatal(err, listening)
	}
	for range 8 {
		conn, err := net.DialTimeout("tcp4", listener.Addr().String(), 100*time.Millisecond)
		if err != nil {
			return listener
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	t.Fatal("the queue of a listener is never full")
	return nil
}
