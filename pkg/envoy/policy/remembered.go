package policy

import "sync"

// remembered are encoded messages that are within the policy: much of what 10,000 Envoy clusters are made of is the same in all of them. It is safe
// for concurrent use.
type remembered struct {
	mu    sync.RWMutex
	known map[string]bool
}

// What is kept for each place is bounded: a few variants of a few hundred bytes.
const maxRemembered, maxRememberedSize = 16, 4 << 10

func (r *remembered) has(encoded []byte) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.known[string(encoded)]
}

func (r *remembered) add(encoded []byte) {
	if len(encoded) > maxRememberedSize {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil {
		r.known = map[string]bool{}
	}
	if len(r.known) < maxRemembered {
		r.known[string(encoded)] = true
	}
}
