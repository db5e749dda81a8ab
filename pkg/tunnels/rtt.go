package tunnels

import (
	"net/netip"
	"time"

	"github.com/fairlead/fairlead/pkg/sockets"
)

// few is up to how many sockets are asked for one by one: more cost less in one answer with all.
const few = 64

// Measured is a tunnel with the round-trip time of its TCP connection. Where a load balancer ends connections of edges,
// that is the way to the load balancer.
type Measured struct {
	Tunnel
	RTT time.Duration // smoothed, by the kernel; 0: not known
}

// Measure returns the tunnels with some ids, or all of them for nil, in no order. Unlike what else it does with
// sockets, this takes no rights.
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
	var k sockets.Kernel // not that of Run, which is of its goroutine alone
	defer k.Close()
	all := make([]Measured, len(list))
	var failed error
	var found map[[2]netip.AddrPort]time.Duration
	if len(list) > few {
		found, failed = k.RoundTrips()
	}
	for i, w := range list {
		all[i].Tunnel = w.Tunnel
		switch {
		case found != nil:
			all[i].RTT = found[[2]netip.AddrPort{w.local, w.remote}]
		case failed == nil && w.local.IsValid():
			all[i].RTT, failed = k.RoundTrip(w.local, w.remote)
		}
	}
	return all, failed
}
