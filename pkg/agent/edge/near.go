package edge

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/pkg/envoy"
)

const (
	// nearFile is there while the gateways are near.
	nearFile = "near"
	// stillNear is the round trip up to which who was near stays so, because each change costs all tunnels.
	stillNear = 5 * envoy.NearBelow
)

// nearness is whether there is no slow uplink between an edge and its gateways, for which the edge is told to buffer less than is good for
// throughput.
type nearness struct {
	path string // of nearFile; empty: nothing is kept
}

// look decides by the round trip to the gateways. Where it is not known nothing changes.
func (n nearness) look(trip time.Duration, log *slog.Logger) bool {
	_, err := os.Stat(n.path)
	was := err == nil
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
	if near {
		err = disk.Replace(n.path, nil)
	} else if err = os.Remove(n.path); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		log.Warn("cannot persist gateway round-trip times: the next start decides again", "error", err)
	}
	log.Info("tunnel buffer size follows the round-trip time to the gateways", "round_trip", trip, "near", near)
	return near
}
