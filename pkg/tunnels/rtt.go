package tunnels

import (
	"net/netip"
	"time"

	"github.com/fairlead/fairlead/pkg/sockets"
)

// few is the number of sockets up to which each is requested separately. Above it, one request for all sockets costs
// less.
const few = 64

// Measured is a tunnel with the round-trip time of its TCP connection. Where a load balancer ends the connections of
// edges, the time covers only the path to the load balancer.
type Measured struct {
	Tunnel
	RTT time.Duration // smoothed by the kernel; 0: not known
}

// Measure returns the tunnels with the given ids in no particular order; nil selects all tunnels. It requires no
// capability. On error, the tunnels are returned without the times that are not known.
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
	var k sockets.Kernel // Run's kernel is used only by its goroutine
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
