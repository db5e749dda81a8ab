package tunnels

// maxHistory is how many changes are remembered: a reader that is further behind needs a snapshot, which is not much larger.
const maxHistory = 8192

// history is which keys changed in which order, the newest of them.
type history struct {
	version uint64   // of the newest change; 0: nothing is known yet
	keys    []string // the change of keys[i] has the version version-len(keys)+1+i
	changed chan struct{}
}

func newHistory() history { return history{changed: make(chan struct{})} }

// add records changes. Even none makes a new version, if it is the first: then it is known that there is nothing.
func (h *history) add(keys []string) {
	if len(keys) == 0 && h.version > 0 {
		return
	}
	if h.version == 0 {
		h.version = 1
	}
	h.version += uint64(len(keys))
	if h.keys = append(h.keys, keys...); len(h.keys) > 2*maxHistory {
		h.keys = append([]string(nil), h.keys[len(h.keys)-maxHistory:]...) // a copy: the rest would be kept with it
	}
	close(h.changed)
	h.changed = make(chan struct{})
}

// since returns the keys that changed after a version, each once, and false if that is not known.
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
