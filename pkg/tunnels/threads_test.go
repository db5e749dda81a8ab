package tunnels

import (
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// dialFrom dials from an address. With a port that already has a connection to another server, it still succeeds.
func dialFrom(t testing.TB, local netip.AddrPort, address string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{}, Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if outer := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		}); outer != nil {
			return outer
		}
		return err
	}}
	if local.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(local)
	}
	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
