package sockets

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// rttAt is the offset in the kernel's struct tcp_info of the smoothed round-trip time, in microseconds.
const rttAt = 68

// RoundTrips returns the round-trip times of all connections, by their local and remote addresses.
func (k *Kernel) RoundTrips() (map[[2]netip.AddrPort]time.Duration, error) {
	all := map[[2]netip.AddrPort]time.Duration{}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		body := request(family, Connected, Socket{})
		body[2] = withInfo
		if err := k.call(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, body, func(s Socket) {
			if s.family == family && s.inode != noInode {
				all[[2]netip.AddrPort{s.Local, s.Remote}] = s.RTT
			}
		}); err != nil {
			return nil, fmt.Errorf("reading round-trip times from the kernel: %w", err)
		}
	}
	return all, nil
}

// RoundTrip returns the round-trip time of one connection; 0 if there is no such connection.
func (k *Kernel) RoundTrip(local, remote netip.AddrPort) (time.Duration, error) {
	s, err := k.Inspect(local, remote)
	switch {
	case err == ErrGone: //nolint:errorlint // it is never wrapped
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("reading a round-trip time from the kernel: %w", err)
	}
	return s.RTT, nil
}

// roundTripOf returns the round-trip time from a struct tcp_info; 0 if it does not have it.
func roundTripOf(info []byte) time.Duration {
	if len(info) < rttAt+4 {
		return 0
	}
	return time.Duration(binary.NativeEndian.Uint32(info[rttAt:])) * time.Microsecond
}
