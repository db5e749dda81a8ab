package edge

import (
	"log/slog"
	"time"

	"github.com/fairlead/fairlead/pkg/envoy"
)

const (
	// nearFile exists while the gateways are near.
	nearFile = "near"
	// stillNear is the round-trip time up to which near gateways stay near. It exceeds NearBelow, because each change
	// costs all tunnels.
	stillNear = 5 * envoy.NearBelow
)

// nearness records whether there is no slow uplink between an edge and its gateways. The edge then gets smaller
// buffers, which a slow uplink would need for throughput.
type nearness struct {
	path mark // of nearFile; empty: not persisted
}

// update decides by the round-trip time to the gateways, and returns whether they are near. If the time is not known
// (0), nothing changes.
func (n nearness) update(trip time.Duration, log *slog.Logger) bool {
	was := n.path.is()
	near := was
	switch {
	case trip == 0:
	case was:
		near = trip < stillNear
	default:
		near = trip < envoy.NearBelow
	}
	if near == was || n.path == "" {
		return near
	}
	if err := n.path.set(near); err != nil {
		log.Warn("cannot persist gateway round-trip times: the next start decides again", "error", err)
	}
	log.Info("tunnel buffer size follows the round-trip time to the gateways", "round_trip", trip, "near", near)
	return near
}
