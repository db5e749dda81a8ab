package sockets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// bytesAckedAt is where the kernel's struct tcp_info has how many bytes the other side has acknowledged.
const bytesAckedAt = 120

// sentNothing returns whether nothing was sent on an accepted connection, by its struct tcp_info.
func sentNothing(info []byte) bool {
	return len(info) >= bytesAckedAt+8 && binary.NativeEndian.Uint64(info[bytesAckedAt:]) == 0
}

// CloseSilent ends connections that were accepted at an address and on which nothing was sent yet, so far as one source
// has more than so many of them, and returns how many. Nothing is sent until the peer has sent all of its first message
// of TLS. sourceOf groups addresses, most is how many a source may have. It takes the right of Permitted.
func CloseSilent(at netip.AddrPort, sourceOf func(netip.Addr) netip.Prefix, most func(netip.Prefix) int) (closed int,
	err error,
) {
	var k Kernel
	defer k.Close()
	silent := map[netip.Prefix][]Socket{}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		body := request(family, 1<<stateEstablished, Socket{})
		body[2] = 1 << (diagInfo - 1)
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
