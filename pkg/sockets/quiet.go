package sockets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// INET_DIAG_INFO of the kernel's include/uapi/linux/inet_diag.h, and the offsets in struct tcp_info of the
// milliseconds since data was last sent and received.
const (
	diagInfo       = 2
	lastDataSentAt = 44
	lastDataRecvAt = 52
)

// withInfo requests the kernel's struct tcp_info with each socket.
const withInfo = 1 << (diagInfo - 1)

// CloseQuiet closes the connections that were accepted at the given addresses and had no data in either direction for
// the duration quiet. It returns the number of closed connections. An address may be unspecified. The other ends
// receive a reset. It requires the capability that Permitted checks.
func CloseQuiet(listeners []netip.AddrPort, quiet time.Duration) (closed int, err error) {
	var k Kernel
	defer k.Close()
	for _, s := range []byte{unix.AF_INET, unix.AF_INET6} {
		var found []Socket
		body := request(s, 1<<stateEstablished, Socket{})
		body[2] = withInfo
		if err := k.call(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, body, func(c Socket) {
			if c.family == s && c.inode != noInode && c.quiet >= quiet && AcceptedAt(listeners, c.Local) {
				found = append(found, c)
			}
		}); err != nil {
			return closed, fmt.Errorf("reading quiet connections from the kernel: %w", err)
		}
		for _, c := range found {
			switch err := k.Destroy(c); {
			case err == nil:
				closed++
			case !errors.Is(err, ErrGone):
				return closed, err
			}
		}
	}
	return closed, nil
}

// AcceptedAt reports whether local is the address of one of the listeners. A listener's address may be unspecified.
func AcceptedAt(listeners []netip.AddrPort, local netip.AddrPort) bool {
	return slices.ContainsFunc(listeners, func(l netip.AddrPort) bool {
		return l.Port() == local.Port() && (l.Addr().IsUnspecified() || l.Addr().Unmap() == local.Addr())
	})
}

// tcpInfo returns the kernel's struct tcp_info from the attributes of an answer; nil if there is none.
func tcpInfo(attributes []byte) []byte {
	for len(attributes) >= unix.SizeofRtAttr {
		size, kind := int(binary.NativeEndian.Uint16(attributes)), binary.NativeEndian.Uint16(attributes[2:])
		if size < unix.SizeofRtAttr || size > len(attributes) {
			return nil
		}
		if kind == diagInfo {
			return attributes[unix.SizeofRtAttr:size]
		}
		attributes = attributes[min(len(attributes), (size+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1)):]
	}
	return nil
}

// sinceOf returns the time since data was last sent or received, which a struct tcp_info has at an offset in
// milliseconds; 0 if it does not have it.
func sinceOf(info []byte, at int) time.Duration {
	if len(info) < at+4 {
		return 0
	}
	return time.Duration(binary.NativeEndian.Uint32(info[at:])) * time.Millisecond
}
