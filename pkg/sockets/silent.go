package sockets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// bytesAckedAt is the offset in the kernel's struct tcp_info of the number of bytes that the peer has acknowledged.
const bytesAckedAt = 120

// sentNothing reports whether nothing was sent on an accepted connection, from a struct tcp_info.
func sentNothing(info []byte) bool {
	return len(info) >= bytesAckedAt+8 && binary.NativeEndian.Uint64(info[bytesAckedAt:]) == 0
}

// CloseSilent closes connections that were accepted at an address and on which nothing was sent yet, if a source has
// too many of them. It returns the number of closed connections. A server sends nothing until it has received the
// peer's complete ClientHello. sourceOf groups addresses; most returns how many such connections a source may have. It
// requires the capability that Permitted checks.
func CloseSilent(at netip.AddrPort, sourceOf func(netip.Addr) netip.Prefix, most func(netip.Prefix) int) (closed int,
	err error,
) {
	var k Kernel
	defer k.Close()
	silent := map[netip.Prefix][]Socket{}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		body := request(family, 1<<stateEstablished, Socket{})
		body[2] = withInfo
		if err := k.call(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, body, func(s Socket) {
			if s.family == family && s.inode != noInode && s.silent && AcceptedAt([]netip.AddrPort{at}, s.Local) {
				from := sourceOf(s.Remote.Addr())
				silent[from] = append(silent[from], s)
			}
		}); err != nil {
			return 0, fmt.Errorf("reading silent connections from the kernel: %w", err)
		}
	}
	for from, sockets := range silent {
		for _, s := range sockets[min(len(sockets), most(from)):] {
			switch err := k.Destroy(s); {
			case err == nil:
				closed++
			case !errors.Is(err, ErrGone):
				return closed, err
			}
		}
	}
	return closed, nil
}
