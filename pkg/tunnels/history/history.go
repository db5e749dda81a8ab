// Package history records which keys of a table have changed, in order: in go the keys of each change, out come those
// that changed after a version. It does not know what the keys are of.
package history

// Max is the number of changes that are kept. A reader that is further behind needs a snapshot, which is not much
// larger.
const Max = 8192

// History holds the keys of the most recent changes, in order. It is not safe for concurrent use.
type History struct {
	Version uint64        // of the newest change; 0: nothing is known yet
	Changed chan struct{} // closed by the next change
	keys    []string      // the change of keys[i] has the version Version-len(keys)+1+i
}

// New returns an empty history.
func New() History { return History{Changed: make(chan struct{})} }

// Add records changes. The first call makes a new version even without keys: it records that there is nothing.
func (h *History) Add(keys []string) {
	if len(keys) == 0 && h.Version > 0 {
		return
	}
	if h.Version == 0 {
		h.Version = 1
	}
	h.Version += uint64(len(keys))
	if h.keys = append(h.keys, keys...); len(h.keys) > 2*Max {
		h.keys = append([]string(nil), h.keys[len(h.keys)-Max:]...) // a copy, to release the rest
	}
	close(h.Changed)
	h.Changed = make(chan struct{})
}

// Since returns the keys that changed after a version, without duplicates. ok is false if the history no longer has
// that version.
func (h *History) Since(version uint64) (keys []string, ok bool) {
	switch {
	case version == h.Version:
		return nil, true
	case version == 0 || version > h.Version || h.Version-version > uint64(len(h.keys)):
		return nil, false
	}
	after := h.keys[len(h.keys)-int(h.Version-version):]
	seen := make(map[string]bool, len(after))
	for _, key := range after {
		if !seen[key] {
			seen[key] = true
			keys = append(keys, key)
		}
	}
	return keys, true
}

// Len returns how many changes are kept.
func (h *History) Len() int { return len(h.keys) }
