package tunnels

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// rttAt is where the kernel's struct tcp_info has the smoothed round-trip time, in microseconds.
const rttAt = 68

// few is up to how many sockets are asked for one by one: more cost less in one answer with all.
const few = 64

// Measured is a tunnel with the round-trip time of its TCP connection. Where a load balancer ends connections of edges, that is
// the way to the load balancer.
type Measured struct {
	Tunnel
	RTT time.Duration // smoothed, by the kernel; 0: not known
}

// Measure returns the tunnels with some ids, or all of them for nil, in no order. Unlike what else it does with sockets, this takes no rights.
func (t *Table) Measure(ids map[string]bool) ([]Measured, error) {
	type wanted struct {
		Tunnel
		local, remote netip.AddrPort
	}
	var list []wanted
	t.mu.Lock()
	for _, e := range t.live {
		if ids == nil || ids[e.ID] {
			list = append(list, wanted{e.Tunnel, e.Local, e.Remote})
		}
	}
	t.mu.Unlock()
	var k kernel // not that of Run, which is of its goroutine alone
	defer k.close()
	all := make([]Measured, len(list))
	var failed error
	var found map[[2]netip.AddrPort]time.Duration
	if len(list) > few {
		found, failed = k.roundTrips()
	}
	for i, w := range list {
		all[i].Tunnel = w.Tunnel
		switch {
		case found != nil:
			all[i].RTT = found[[2]netip.AddrPort{w.local, w.remote}]
		case failed == nil && w.local.IsValid():
			all[i].RTT, failed = k.roundTrip(w.local, w.remote)
		}
	}
	return all, failed
}

// roundTrips asks for all sockets, by their local and remote addresses.
func (k *kernel) roundTrips() (map[[2]netip.AddrPort]time.Duration, error) {
	all := map[[2]netip.AddrPort]time.Duration{}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		body := request(family, connected, socket{})
		body[2] = 1 << (diagInfo - 1)
		if err := k.call(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, body, func(s socket) {
			if s.family == family && s.inode != noInode {
				all[[2]netip.AddrPort{s.local, s.remote}] = s.rtt
			}
		}); err != nil {
			return nil, fmt.Errorf("asking the kernel for round-trip times: %w", err)
		}
	}
	return all, nil
}

// roundTrip asks for one socket; 0 if there is none.
func (k *kernel) roundTrip(local, remote netip.AddrPort) (time.Duration, error) {
	s, err := k.lookup(local, remote, 1<<(diagInfo-1))
	switch {
	case err == errGone: //nolint:errorlint // it is never wrapped
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("asking the kernel for a round-trip time: %w", err)
	}
	return s.rtt, nil
}

// roundTripOf is in a struct tcp_info; 0 if it is not.
func roundTripOf(info []byte) time.Duration {
	if len(info) < rttAt+4 {
		return 0
	}
	return time.Duration(binary.NativeEndian.Uint32(info[rttAt:])) * time.Microsecond
}
