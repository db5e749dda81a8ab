package tunnels

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// States of a TCP socket, from the kernel's include/net/tcp_states.h.
const (
	stateEstablished = 1
	stateFinWait1    = 4
	stateFinWait2    = 5
	stateCloseWait   = 8
	stateListen      = 10

	// connected are the states in which Envoy may hold a tunnel.
	connected = 1<<stateEstablished | 1<<stateFinWait1 | 1<<stateFinWait2 | 1<<stateCloseWait
	listening = 1 << stateListen
)

// Messages of sock_diag(7), which x/sys has no types for: struct inet_diag_req_v2 is 8 bytes and an inet_diag_sockid, struct
// inet_diag_msg is 4 bytes, an inet_diag_sockid, and 20 more. The addresses in a sockid are as on the wire, the rest is the machine's.
const (
	sockIDSize  = 48
	requestSize = 8 + sockIDSize
	messageSize = 4 + sockIDSize + 20
	inodeAt     = messageSize - 4
	// inodes of sockets that no process holds any more are 0.
	noInode = 0
)

// kernelTime bounds one answer: a kernel answers in microseconds.
const kernelTime = 2

var (
	// errGone says that there is no such socket.
	errGone = errors.New("there is no such socket")
	// errAmbiguous says that an address has several connections, and that it is not known which is meant.
	errAmbiguous = errors.New("the address has several connections, and the log does not say which is the tunnel")
)

// socket is one TCP socket of this network namespace. The cookie in its id is of this socket alone, for as long as the
// machine runs.
type socket struct {
	family        byte
	state         byte
	inode         uint32
	id            [sockIDSize]byte
	local, remote netip.AddrPort
	quiet, rtt    time.Duration // for how long it has had no data, and its round-trip time; 0 where they were not asked for
	silent        bool          // nothing was sent on it yet; false where that was not asked for
}

func (s socket) cookie() [8]byte { return [8]byte(s.id[40:48]) }

// kernel asks for sockets, and destroys them. Its zero value is ready. It is not safe for concurrent use.
type kernel struct {
	fd     int
	seq    uint32
	buffer []byte
}

// dump returns all sockets in some states: of IPv4, of IPv6, and of IPv4 by a socket of IPv6.
func (k *kernel) dump(states uint32) (all []socket, err error) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		err := k.call(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, request(family, states, socket{}), func(s socket) {
			if s.family == family && (s.inode != noInode || s.state == stateListen) {
				all = append(all, s)
			}
		})
		if err != nil {
			return nil, fmt.Errorf("asking the kernel for sockets: %w", err)
		}
	}
	return all, nil
}

// get returns the socket of a connection; errGone if there is none.
func (k *kernel) get(local, remote netip.AddrPort) (socket, error) { return k.lookup(local, remote, 0) }

// lookup is get with more of what the kernel knows, as bits.
func (k *kernel) lookup(local, remote netip.AddrPort, more byte) (socket, error) {
	var found []socket
	// A socket of IPv6 that has a connection of IPv4 is found by its IPv4 addresses.
	want := socket{family: unix.AF_INET}
	if remote.Addr().Is6() {
		want.family = unix.AF_INET6
	}
	putAddress(want.id[0:2], want.id[4:20], local)
	putAddress(want.id[2:4], want.id[20:36], remote)
	putNoCookie(want.id[40:48])
	body := request(want.family, connected, want)
	body[2] = more
	err := k.call(unix.SOCK_DIAG_BY_FAMILY, 0, body, func(s socket) {
		// Where there is no connection the kernel returns the socket that listens there.
		if s.state != stateListen && 1<<s.state&connected != 0 && s.inode != noInode && s.local == local && s.remote == remote {
			found = append(found, s)
		}
	})
	if errors.Is(err, unix.ENOENT) || err == nil && len(found) == 0 {
		return socket{}, errGone
	}
	if err != nil {
		return socket{}, fmt.Errorf("asking the kernel for a socket: %w", err)
	}
	return found[0], nil
}

// destroy ends a connection, whatever its process does: that sees an error on its next use of the socket, the other end a reset.
// It is exactly this socket that is meant, and not another one that has its addresses by now; errGone if it is not there any more.
func (k *kernel) destroy(s socket) error {
	err := k.call(unix.SOCK_DESTROY, unix.NLM_F_ACK, request(s.family, connected, s), func(socket) {})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE) {
		return errGone
	}
	if err != nil {
		return fmt.Errorf("destroying a socket: %w", err)
	}
	return nil
}

func request(family byte, states uint32, s socket) []byte {
	r := make([]byte, requestSize)
	r[0], r[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(r[4:8], states)
	copy(r[8:], s.id[:])
	return r
}

func putAddress(port, addr []byte, a netip.AddrPort) {
	binary.BigEndian.PutUint16(port, a.Port())
	copy(addr, a.Addr().AsSlice())
}

// putNoCookie is INET_DIAG_NOCOOKIE: any socket with these addresses.
func putNoCookie(cookie []byte) {
	for i := range cookie {
		cookie[i] = 0xff
	}
}

// parseSocket reads a struct inet_diag_msg.
func parseSocket(m []byte) (socket, bool) {
	if len(m) < messageSize {
		return socket{}, false
	}
	s := socket{family: m[0], state: m[1], inode: binary.NativeEndian.Uint32(m[inodeAt:]), id: [sockIDSize]byte(m[4:])}
	size := 4
	if s.family == unix.AF_INET6 {
		size = 16
	}
	s.local = address(s.id[0:2], s.id[4:4+size])
	s.remote = address(s.id[2:4], s.id[20:20+size])
	info := tcpInfo(m[messageSize:])
	s.quiet, s.rtt, s.silent = quietFor(info), roundTripOf(info), sentNothing(info)
	return s, true
}

func address(port, addr []byte) netip.AddrPort {
	a, _ := netip.AddrFromSlice(addr) // 4 or 16 bytes
	return plain(netip.AddrPortFrom(a, binary.BigEndian.Uint16(port)))
}
