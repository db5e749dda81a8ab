package edge

import (
	"log/slog"
	"sync"
	"time"

	"github.com/fairlead/fairlead/pkg/envoy"
)

const (
	// nearFile exists while the gateways are near.
	nearFile = "near"
	// stillNear is the round-trip time up to which near gateways stay near. It exceeds NearBelow, because each change
	// costs all tunnels.
	stillNear = 5 * envoy.NearBelow
	// changeAfter is for how long all measurements must contradict a decision before it changes. The round trip is
	// measured when the control channel opens, often in a network that has just lost packets.
	changeAfter = time.Hour
)

// nearness records whether there is no slow uplink between an edge and its gateways. The edge then gets larger buffers,
// in which requests would wait in front of a slow uplink. It is safe for concurrent use.
type nearness struct {
	path mark // of nearFile

	mu      sync.Mutex
	decided bool      // by a measurement, or by an earlier agent
	near    bool      // the decision
	since   time.Time // since when all measurements contradict it; zero: the last one agreed
}

// update decides by the round-trip time to the gateways, and returns whether they are near. The first measurement
// decides; after it, the decision changes only when all measurements of changeAfter contradict it. If the time is not
// known (0), nothing changes.
func (n *nearness) update(trip time.Duration, now time.Time, log *slog.Logger) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.decided && n.path.is() {
		n.decided, n.near = true, true
	}
	near := trip < envoy.NearBelow || n.near && trip < stillNear
	switch {
	case trip == 0:
		return n.near
	case near == n.near:
		n.decided, n.since = true, time.Time{}
		return n.near
	case n.decided && n.since.IsZero():
		n.since = now
		return n.near
	case n.decided && now.Sub(n.since) < changeAfter:
		return n.near
	}
	n.decided, n.near, n.since = true, near, time.Time{}
	if err := n.path.set(near); err != nil {
		log.Warn("cannot persist gateway round-trip times: the next start decides again", "error", err)
	}
	log.Info("tunnel buffer size follows the round-trip time to the gateways", "round_trip", trip, "near", near)
	return near
}
