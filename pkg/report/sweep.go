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
			delete(h.edges, key)
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
	var longest K
	var since time.Time
	for key, v := range all {
		if p := of(v); !p.connected && (since.IsZero() || p.since.Before(since)) {
			longest, since = key, p.since
		}
	}
	delete(all, longest)
	return !since.IsZero()
}
