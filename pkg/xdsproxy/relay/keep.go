package relay

import (
	"maps"
	"slices"
)

const (
	// restFactor is the ratio of the pause after a write to the duration of the write: a gateway whose Envoy clusters
	// change all the time writes for a twentieth of the time. A pause is at most Times.MaxRest, however slow the disk is.
	restFactor = 20
	// smallFile is the size up to which a file is always rewritten, because extending it would not be cheaper.
	smallFile = 256 << 10
	// maxChanges is the size of the later sections from which a file is rewritten, because files may be in memory.
	maxChanges = 32 << 20
)

// file is the known state of a file on disk. A file that existed at the start is rewritten first, because another
// program may have changed it.
type file struct {
	due            bool            // its content has changed
	known          bool            // the last write succeeded
	first, changes int64           // size of the first section, and of the later sections
	names          map[string]bool // that have changed since the last write began; nil: all may differ
}

// change records that a resource of the content has changed.
func (f *file) change(name string) {
	f.due = true
	if f.names != nil {
		f.names[name] = true
	}
}

// whole reports whether the file must be written as a whole: it is small, its changes are as large as its first section
// or as maxChanges, or most of its resources have changed. In the long run that writes two bytes for each changed byte,
// and more in a file larger than maxChanges. A file has at most half more than its resources take, and maxChanges.
func (f *file) whole(resources int) bool {
	return !f.known || f.first <= smallFile || f.changes >= min(f.first, maxChanges) || 2*len(f.names) > resources
}

func (c *upstream) isWriting() bool { return c.writing != 0 }

// due reports whether a file must be written.
func (c *upstream) due() bool {
	return slices.ContainsFunc(c.shares[:], func(s *share) bool {
		return s.whole && slices.ContainsFunc(s.files[:], func(f file) bool { return f.due })
	})
}

// save emits a Write for each upstream with something to write that has rested since the last one, or for each.
func (r *Relay) save(all bool) {
	for _, c := range r.sorted() {
		if c.isWriting() || !all && r.now.Before(c.rest) || !c.due() {
			continue
		}
		r.writes++
		c.writing, c.wrote = r.writes, r.now
		write := Write{Upstream: c.name, ID: c.writing}
		for _, s := range c.shares {
			for g := range s.files {
				if f := &s.files[g]; s.whole && f.due {
					write.Files = append(write.Files, s.content(Generation(g)))
					f.due, f.names = false, map[string]bool{}
				}
			}
		}
		r.emit(write)
	}
}

// content returns what has to be written of a generation.
func (s *share) content(g Generation) File {
	held, f := s.accepted, &s.files[g]
	out := File{Kind: s.kind, Generation: g, Set: Set{}}
	if g == Good {
		held = s.good
	} else {
		out.Rejected = s.afterCrash()
	}
	if out.Whole = f.whole(len(held)); out.Whole {
		out.Set = maps.Clone(held)
		return out
	}
	for name := range f.names {
		out.Set[name] = held[name]
	}
	return out
}

// afterCrash returns everything that was rejected after crashes, with the reason of the first; nil: nothing.
func (s *share) afterCrash() *Rejection {
	all := Rejection{Versions: map[string]string{}}
	for _, name := range slices.Sorted(maps.Keys(s.rejected)) {
		if why := s.rejected[name]; why.Crash {
			if all.Message == "" {
				all.Code, all.Message, all.Crash = why.Code, why.Message, true
			}
			all.Versions[name] = why.Versions[name]
		}
	}
	if len(all.Versions) == 0 {
		return nil
	}
	return &all
}

// apply takes the result of a Write. The first of several consecutive failures is logged. Envoy continues with the
// resources in memory.
func (e Written) apply(r *Relay) {
	c := r.upstreams[e.Upstream]
	if c == nil || c.writing != e.ID {
		return
	}
	c.writing = 0
	for i, size := range e.Sizes {
		e.Files[i].apply(c, size)
	}
	c.rest = r.now.Add(max(r.Times.Rest, min(r.Times.MaxRest, restFactor*r.now.Sub(c.wrote))))
	switch {
	case e.Err != "":
		c.rest = r.now.Add(r.Times.Retry)
		if !c.failing {
			r.log.Error("cannot write resources to disk, retrying: without the xds-server Envoy would not start with them",
				"upstream", c.name, "error", e.Err)
		}
	case c.failing:
		r.log.Info("resources are written to disk again", "upstream", c.name)
	}
	c.failing = e.Err != ""
}

// apply records that a file has some bytes more; negative: writing it failed.
func (out File) apply(c *upstream, size int64) {
	f := &c.shares[out.Kind].files[out.Generation]
	switch {
	case size < 0:
		*f = file{due: true}
	case out.Whole:
		f.known, f.first, f.changes = true, size, 0
	default:
		f.changes += size
	}
}

// apply has everything written now, whether or not it has rested.
func (Flushed) apply(r *Relay) { r.save(true) }

func (Ticked) apply(*Relay) {}
