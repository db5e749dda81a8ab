package report

import "time"

// sweep forgets who is away for long, from time to time.
func (h *Hub) sweep() {
	now := h.now()
	if now.Sub(h.swept) < keepTime/60 {
		return
	}
	h.swept = now
	for key, e := range h.edges {
		if e.old(now) {
			h.dropEdge(key)
		}
	}
	for name, g := range h.gateways {
		if g.old(now) {
			delete(h.gateways, name)
		}
	}
}

// old says whether somebody is away for so long that nobody has to know any more.
func (p presence) old(now time.Time) bool { return !p.connected && now.Sub(p.since) > keepTime }

// forget makes room for one more by forgetting who is away for longest. Without one it returns false.
func forget[K comparable, V any](all map[K]V, of func(V) presence) bool {
	longest, ok := longestAway(all, of)
	delete(all, longest)
	return ok
}

// longestAway is who is away for longest; false: all are here.
func longestAway[K comparable, V any](all map[K]V, of func(V) presence) (longest K, ok bool) {
	var since time.Time
	for key, v := range all {
		if p := of(v); !p.connected && (since.IsZero() || p.since.Before(since)) {
			longest, since = key, p.since
		}
	}
	return longest, !since.IsZero()
}
