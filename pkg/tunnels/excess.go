package tunnels

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Placed is a tunnel with the address that its edge dialled from.
type Placed struct {
	Tunnel
	From netip.Addr
}

// Places returns all tunnels, in no order.
func (t *Table) Places() []Placed {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]Placed, 0, len(t.live))
	for _, e := range t.live {
		all = append(all, Placed{e.Tunnel, e.Remote.Addr()})
	}
	return all
}

// Has says whether the table has the tunnel on a connection.
func (t *Table) Has(remote, local netip.AddrPort) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live[key(remote, local)] != nil
}

// Close ends the tunnels with some keys, and returns how many. The edges see a reset. It takes the right of Permitted.
func (t *Table) Close(keys []string) (closed int, err error) {
	t.mu.Lock()
	var found []*entry
	for _, key := range keys {
		if e := t.live[key]; e != nil {
			found = append(found, &entry{tunnel: e.tunnel}) // the socket of e belongs to the goroutine of Run
		}
	}
	t.mu.Unlock()
	var k kernel
	defer k.close()
	find := finder{kernel: &k}
	for _, e := range found {
		switch err := find.destroy(e); {
		case err == nil:
			closed++
		case !errors.Is(err, errGone):
			return closed, err
		}
	}
	return closed, nil
}

// bytesAckedAt is where the kernel's struct tcp_info has how many bytes the other side has acknowledged.
const bytesAckedAt = 120

// sentNothing says, by the struct tcp_info of an accepted connection, that nothing was sent on it.
func sentNothing(info []byte) bool {
	return len(info) >= bytesAckedAt+8 && binary.NativeEndian.Uint64(info[bytesAckedAt:]) == 0
}

// CloseSilent ends connections that were accepted at an address and on which nothing was sent yet, so far as one source has more
// than so many of them, and returns how many. Nothing is sent until the peer has sent all of its first message of TLS.
// sourceOf groups addresses, most is how many a source may have. It takes the right of Permitted.
func CloseSilent(at netip.AddrPort, sourceOf func(netip.Addr) netip.Prefix, most func(netip.Prefix) int) (closed int, err error) {
	var k kernel
	defer k.close()
	silent := map[netip.Prefix][]socket{}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		body := request(family, 1<<stateEstablished, socket{})
		body[2] = 1 << (diagInfo - 1)
		if err := k.call(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, body, func(s socket) {
			if s.family == family && s.inode != noInode && s.silent && acceptedAt([]netip.AddrPort{at}, s.local) {
				from := sourceOf(s.remote.Addr())
				silent[from] = append(silent[from], s)
			}
		}); err != nil {
			return 0, fmt.Errorf("asking the kernel for silent connections: %w", err)
		}
	}
	for from, sockets := range silent {
		for _, s := range sockets[min(len(sockets), most(from)):] {
			switch err := k.destroy(s); {
			case err == nil:
				closed++
			case !errors.Is(err, errGone):
				return closed, err
			}
		}
	}
	return closed, nil
}
