package tunnels

import (
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// withoutCapabilities runs a function on a thread that has none, and ends the thread.
func withoutCapabilities(do func() error) error {
	runtime.LockOSThread() // and never unlocked
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return err
	}
	return do()
}

// dialFrom dials from an address, or any: one that has a connection from here to another server already will do.
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
