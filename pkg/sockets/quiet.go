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

// INET_DIAG_INFO of the kernel's include/uapi/linux/inet_diag.h, and where its struct tcp_info has the milliseconds
// since data was sent and received last.
const (
	diagInfo       = 2
	lastDataSentAt = 44
	lastDataRecvAt = 52
)

// CloseQuiet ends the connections that were accepted at some addresses, if for so long nothing has been sent on them
// either way, and returns how many. An address may be unspecified. The other ends see a reset. It takes the right of
// Permitted.
func CloseQuiet(listeners []netip.AddrPort, quiet time.Duration) (closed int, err error) {
	var k Kernel
	defer k.Close()
	for _, s := range []byte{unix.AF_INET, unix.AF_INET6} {
		var found []Socket
		body := request(s, 1<<stateEstablished, Socket{})
		body[2] = 1 << (diagInfo - 1)
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

// AcceptedAt returns whether a local address is one of some listeners', which may be unspecified.
func AcceptedAt(listeners []netip.AddrPort, local netip.AddrPort) bool {
	return slices.ContainsFunc(listeners, func(l netip.AddrPort) bool {
		return l.Port() == local.Port() && (l.Addr().IsUnspecified() || l.Addr().Unmap() == local.Addr())
	})
}

// tcpInfo is the kernel's struct tcp_info of a socket, in the attributes that follow it in the kernel's answer; nil if
// it was not asked for.
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

// quietFor returns for how long a socket has had no data, by its struct tcp_info; 0 if that does not have it.
func quietFor(info []byte) time.Duration {
	if len(info) < lastDataRecvAt+4 {
		return 0
	}
	return time.Duration(min(binary.NativeEndian.Uint32(info[lastDataSentAt:]),
		binary.NativeEndian.Uint32(info[lastDataRecvAt:]))) * time.Millisecond
}
