package hub

import (
	"google.golang.org/protobuf/proto"

	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// SetProfiles replaces what the hub's server announces of profiles to those that watch. What is equal is not sent
// again. It must not be changed afterwards.
func (h *Hub) SetProfiles(state *reportv1.ProfileState) {
	h.mu.Lock()
	before := h.profiles
	h.mu.Unlock()
	if proto.Equal(before, state) { // without the lock: it may have 200 nodes, and those of a first wave
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.profiles = state
	h.changed(changeKey{kind: kindProfiles})
}
