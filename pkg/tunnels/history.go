package tunnels

// maxHistory is the number of changes that are kept. A reader that is further behind needs a snapshot, which is not
// much larger.
const maxHistory = 8192

// history holds the keys of the most recent changes, in order.
type history struct {
	version uint64   // of the newest change; 0: nothing is known yet
	keys    []string // the change of keys[i] has the version version-len(keys)+1+i
	changed chan struct{}
}

func newHistory() history { return history{changed: make(chan struct{})} }

// add records changes. The first call makes a new version even without keys: it records that there are no tunnels.
func (h *history) add(keys []string) {
	if len(keys) == 0 && h.version > 0 {
		return
	}
	if h.version == 0 {
		h.version = 1
	}
	h.version += uint64(len(keys))
	if h.keys = append(h.keys, keys...); len(h.keys) > 2*maxHistory {
		h.keys = append([]string(nil), h.keys[len(h.keys)-maxHistory:]...) // a copy, to release the rest
	}
	close(h.changed)
	h.changed = make(chan struct{})
}

// since returns the keys that changed after a version, without duplicates. ok is false if the history no longer has
// that version.
func (h *history) since(version uint64) (keys []string, ok bool) {
	switch {
	case version == h.version:
		return nil, true
	case version == 0 || version > h.version || h.version-version > uint64(len(h.keys)):
		return nil, false
	}
	after := h.keys[len(h.keys)-int(h.version-version):]
	seen := make(map[string]bool, len(after))
	for _, key := range after {
		if !seen[key] {
			seen[key] = true
			keys = append(keys, key)
		}
	}
	return keys, true
}
