package policy

import "sync"

// acceptedCache is a cache of encoded messages that the policy allows: much of the content of 10,000 Envoy clusters is
// equal in all of them. It is safe for concurrent use.
type acceptedCache struct {
	mu    sync.RWMutex
	known map[string]bool
}

// The cache of each place in the policy is bounded: a few variants of a few hundred bytes.
const maxCached, maxCachedSize = 16, 4 << 10

func (r *acceptedCache) has(encoded []byte) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.known[string(encoded)]
}

func (r *acceptedCache) add(encoded []byte) {
	if len(encoded) > maxCachedSize {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil {
		r.known = map[string]bool{}
	}
	if len(r.known) < maxCached {
		r.known[string(encoded)] = true
	}
}
