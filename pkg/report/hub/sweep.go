package hub

import (
	"time"
)

// sweep removes agents that are away for longer than keep, at most once in a sixtieth of it.
func (h *Hub) sweep() {
	now := h.now()
	if now.Sub(h.swept) < h.times.Keep/60 {
		return
	}
	h.swept = now
	for key, e := range h.edges {
		if e.old(now, h.times.Keep) {
			h.dropEdge(key)
		}
	}
	for name, g := range h.gateways {
		if g.old(now, h.times.Keep) {
			delete(h.gateways, name)
		}
	}
}

// old returns whether the agent is away for longer than keep.
func (p presence) old(now time.Time, keep time.Duration) bool {
	return !p.connected && now.Sub(p.since) > keep
}

// forget makes room by removing the entry that is away for longest. It returns false if none is away.
func forget[K comparable, V any](all map[K]V, of func(V) presence) bool {
	longest, ok := longestAway(all, of)
	delete(all, longest)
	return ok
}

// longestAway returns the entry that is away for longest; false: none is away.
func longestAway[K comparable, V any](all map[K]V, of func(V) presence) (longest K, ok bool) {
	var since time.Time
	for key, v := range all {
		if p := of(v); !p.connected && (since.IsZero() || p.since.Before(since)) {
			longest, since = key, p.since
		}
	}
	return longest, !since.IsZero()
}
