// Package sockets reads the TCP sockets of this network namespace from the kernel by sock_diag(7), and closes
// connections. Input: addresses. Output: sockets, round-trip times, and closed connections. It does not know what a
// connection is used for.
package sockets

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

	// Connected are the states of a connection that may still carry data.
	Connected = 1<<stateEstablished | 1<<stateFinWait1 | 1<<stateFinWait2 | 1<<stateCloseWait
	// Listening is the state of a socket that accepts connections.
	Listening = 1 << stateListen
)

// Messages of sock_diag(7), for which x/sys has no types. struct inet_diag_req_v2 is 8 bytes and an inet_diag_sockid;
// struct inet_diag_msg is 4 bytes, an inet_diag_sockid, and 20 more. The addresses in a sockid are in network byte
// order, the rest is in host byte order.
const (
	sockIDSize  = 48
	requestSize = 8 + sockIDSize
	messageSize = 4 + sockIDSize + 20
	inodeAt     = messageSize - 4
	// idiag_timer, its value while data waits for an acknowledgement, and idiag_retrans.
	timerAt, retransmitTimer, retransmitsAt = 2, 1, 3
	// The inode of a socket that no process holds any longer is 0.
	noInode = 0
)

// kernelTime bounds one answer, in seconds. A kernel answers in microseconds.
const kernelTime = 2

// ErrGone is returned if socket not found.
var ErrGone = errors.New("socket not found")

// Cookie identifies one socket until the machine restarts.
type Cookie [8]byte

// Socket is one TCP socket of this network namespace. Its addresses are in the form of Plain.
type Socket struct {
	family        byte
	state         byte
	inode         uint32
	id            [sockIDSize]byte
	Cookie        Cookie
	Local, Remote netip.AddrPort
	// RTT is the round-trip time, smoothed by the kernel, and Received the time since data was last received, within
	// 10 ms; 0 if not requested: see Inspect.
	RTT, Received time.Duration
	quiet         time.Duration // time since the last data in either direction; 0 if not requested
	silent        bool          // nothing was sent on it yet; false if not requested
	// Unanswered is how often in succession the kernel has sent data again that the other end does not acknowledge. Data
	// for which the other end has no room does not count.
	Unanswered int
}

// Inode returns the inode of the socket: see the function Inode.
func (s Socket) Inode() uint32 { return s.inode }

// Kernel is a connection to sock_diag(7). Its zero value is ready. It is not safe for concurrent use.
type Kernel struct {
	fd     int
	seq    uint32
	buffer []byte
}

// Dump returns all sockets that are in one of the states: IPv4, IPv6, and IPv4 over an IPv6 socket.
func (k *Kernel) Dump(states uint32) (all []Socket, err error) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		err := k.call(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, request(family, states, Socket{}), func(s Socket) {
			if s.family == family && (s.inode != noInode || s.state == stateListen) {
				all = append(all, s)
			}
		})
		if err != nil {
			return nil, fmt.Errorf("reading sockets from the kernel: %w", err)
		}
	}
	return all, nil
}

// Get returns the socket of a connection, or ErrGone if there is none.
func (k *Kernel) Get(local, remote netip.AddrPort) (Socket, error) { return k.lookup(local, remote, 0) }

// Inspect is Get with the round-trip time and the time since data was last received.
func (k *Kernel) Inspect(local, remote netip.AddrPort) (Socket, error) {
	return k.lookup(local, remote, withInfo)
}

// lookup is Get with further attributes, given as bits.
func (k *Kernel) lookup(local, remote netip.AddrPort, more byte) (Socket, error) {
	var found []Socket
	// An IPv6 socket with an IPv4 connection is found by its IPv4 addresses.
	want := Socket{family: unix.AF_INET}
	if remote.Addr().Is6() {
		want.family = unix.AF_INET6
	}
	putAddress(want.id[0:2], want.id[4:20], local)
	putAddress(want.id[2:4], want.id[20:36], remote)
	putNoCookie(want.id[40:48])
	body := request(want.family, Connected, want)
	body[2] = more
	err := k.call(unix.SOCK_DIAG_BY_FAMILY, 0, body, func(s Socket) {
		// If there is no connection, the kernel returns the listening socket.
		if s.state != stateListen && 1<<s.state&Connected != 0 && s.inode != noInode && s.Local == local &&
			s.Remote == remote {
			found = append(found, s)
		}
	})
	if errors.Is(err, unix.ENOENT) || err == nil && len(found) == 0 {
		return Socket{}, ErrGone
	}
	if err != nil {
		return Socket{}, fmt.Errorf("reading a socket from the kernel: %w", err)
	}
	return found[0], nil
}

// Destroy closes a connection regardless of its process. That process receives an error on its next use of the socket,
// the other end a reset. Destroy closes exactly this socket, and not another one that has its addresses now; it
// returns ErrGone if the socket no longer exists. It requires the capability that Permitted checks.
func (k *Kernel) Destroy(s Socket) error {
	err := k.call(unix.SOCK_DESTROY, unix.NLM_F_ACK, request(s.family, Connected, s), func(Socket) {})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE) {
		return ErrGone
	}
	if err != nil {
		return fmt.Errorf("destroying a socket: %w", err)
	}
	return nil
}

func request(family byte, states uint32, s Socket) []byte {
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

// putNoCookie writes INET_DIAG_NOCOOKIE, which matches any socket with these addresses.
func putNoCookie(cookie []byte) {
	for i := range cookie {
		cookie[i] = 0xff
	}
}

// parseSocket parses a struct inet_diag_msg.
func parseSocket(m []byte) (Socket, bool) {
	if len(m) < messageSize {
		return Socket{}, false
	}
	s := Socket{family: m[0], state: m[1], inode: binary.NativeEndian.Uint32(m[inodeAt:]), id: [sockIDSize]byte(m[4:])}
	size := 4
	if s.family == unix.AF_INET6 {
		size = 16
	}
	s.Local = address(s.id[0:2], s.id[4:4+size])
	s.Remote = address(s.id[2:4], s.id[20:20+size])
	s.Cookie = Cookie(s.id[40:48])
	if m[timerAt] == retransmitTimer {
		s.Unanswered = int(m[retransmitsAt])
	}
	info := tcpInfo(m[messageSize:])
	s.RTT, s.Received = roundTripOf(info), sinceOf(info, lastDataRecvAt)
	s.quiet, s.silent = min(s.Received, sinceOf(info, lastDataSentAt)), sentNothing(info)
	return s, true
}

func address(port, addr []byte) netip.AddrPort {
	a, _ := netip.AddrFromSlice(addr) // 4 or 16 bytes
	return Plain(netip.AddrPortFrom(a, binary.BigEndian.Uint16(port)))
}

// Plain returns the canonical form of an address: without a zone, which the kernel does not report, and with
// IPv4-mapped IPv6 as IPv4.
func Plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
