package tunnels

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"time"

	"github.com/fairlead/fairlead/pkg/sockets"
)

const (
	// stalledAfter, and stalledRoundTrips round-trip times of its TCP connection, is how long an edge may leave the first
	// data in a tunnel without an answer. That data is the start of the TLS handshake inside the tunnel, which the edge's
	// Envoy answers at once.
	stalledAfter, stalledRoundTrips = time.Second, 2
	// stalledWithin is how long a tunnel is looked at after its first use. Envoy gives up the handshake after 2 s.
	stalledWithin = 4 * time.Second
	// stalledPrecision exceeds the error of the kernel's time since data was received.
	stalledPrecision = 50 * time.Millisecond
	// stalledPause is the minimum time between two closings of the waiting tunnels of one path.
	stalledPause = 5 * time.Second
)

// path is the way of tunnels of one workload cluster to this gateway, as far as this gateway knows it.
type path struct {
	id  string     // Tunnel.spec.id
	hop netip.Addr // where the TCP connections come from: an edge, a NAT, a load balancer or a gateway that relays
}

// stalledPaths are the paths whose waiting tunnels were closed, with the time. Only the goroutine of enforce uses them.
type stalledPaths map[path]time.Time

// use is the first use of a tunnel.
type use struct {
	*entry
	at time.Time
}

// path returns the path of a tunnel. Its socket must be known.
func (e *entry) path() path { return path{e.ID, e.socket.Remote.Addr()} }

// stalled reports whether the edge has sent nothing since the first use of its tunnel, though it had the time. Its
// kernel, or that of a gateway that relays, acknowledges data for an Envoy that hangs.
func (u use) stalled(s sockets.Socket) bool {
	used := time.Since(u.at)
	return used > stalledAfter+stalledRoundTrips*s.RTT && used < stalledWithin && s.Received > used+stalledPrecision
}

// closeWaiting closes the tunnels that wait on stalled paths, so that no further clients wait for them. stalled has the
// latest use without an answer of each path: tunnels that were opened later are kept. An edge that still runs dials
// again within 0.5 s, which fails as long as the path is stalled.
func (t *Table) closeWaiting(stalled map[path]time.Time) {
	now := time.Now()
	maps.DeleteFunc(t.stalled, func(_ path, closed time.Time) bool { return now.Sub(closed) >= stalledPause })
	for p := range stalled {
		if _, recently := t.stalled[p]; recently {
			delete(stalled, p)
			continue
		}
		t.stalled[p] = now
	}
	if len(stalled) == 0 {
		return
	}
	t.mu.Lock()
	var waiting []*entry
	for _, e := range t.live {
		if e.Used.IsZero() && e.socket != nil && e.Since.Before(stalled[e.path()]) {
			waiting = append(waiting, e)
		}
	}
	t.mu.Unlock()
	closed := 0
	for _, e := range waiting {
		switch err := t.kernel.Destroy(*e.socket); {
		case err == nil:
			closed++
		case !errors.Is(err, sockets.ErrGone):
			t.logOnce(slog.LevelWarn, "cannot close tunnels on a path without answers", err)
			return
		}
	}
	t.config.Logger.Info("closed waiting tunnels on paths without answers", "paths", len(stalled), "tunnels", closed)
}
