package sockets

import "net"

// HasIPv6 reports whether this machine has IPv6, so that a socket can listen on ::. A kernel can be started without it
// (ipv6.disable=1).
func HasIPv6() bool {
	listener, err := net.Listen("tcp6", "[::]:0")
	if err != nil {
		return false
	}
	_ = listener.Close()
	return true
}
