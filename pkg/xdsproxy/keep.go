package xdsproxy

import (
	"context"
	"fmt"
	"maps"
	"time"
)

// restFactor is how much longer than a write the rest after it is, so that a gateway whose Envoy clusters change all the
// time writes for a twentieth of the time. It ends after times.maxRest, however slow the disk is.
const restFactor = 20

// keep writes what Envoy has accepted, and finds out what is good, until ctx ends. Then it writes the last.
func (c *contribution) keep(ctx context.Context) {
	for {
		began := time.Now()
		ok := c.write()
		rest := max(c.proxy.times.rest, min(c.proxy.times.maxRest, restFactor*time.Since(began)))
		if !ok {
			rest = c.proxy.times.retry
		}
		select {
		case <-ctx.Done():
			c.write()
			return
		case <-time.After(rest):
		}
		c.proxy.mu.Lock()
		again := c.prove()
		c.proxy.mu.Unlock()
		c.proxy.record()
		if !ok {
			continue
		}
		var timer <-chan time.Time // none, if nothing is to be proven
		if again > 0 {
			timer = time.After(again)
		}
		select {
		case <-ctx.Done():
			c.write()
			return
		case <-c.wake:
		case <-timer:
		}
	}
}

// write writes what differs from what is on disk, and returns whether that worked. That it does not is logged once, until it
// works again; Envoy goes on with what is in memory.
func (c *contribution) write() bool {
	c.proxy.disk.Lock()
	defer c.proxy.disk.Unlock()
	var failed error
	for _, s := range c.shares {
		for _, ending := range []string{acceptedEnding, goodEnding} {
			if err := s.write(ending); err != nil {
				failed = err
			}
		}
	}
	r := c.proxy
	switch {
	case failed != nil && !c.diskFails:
		r.log.Error("cannot write resources to disk, retrying: without the xds-server Envoy would not start with them",
			"upstream", c.name, "error", failed)
	case failed == nil && c.diskFails:
		r.log.Info("resources are written to disk again", "upstream", c.name)
	}
	c.diskFails = failed != nil
	return failed == nil
}

// write writes a generation if it has changed.
func (s *share) write(ending string) error {
	r := s.of.proxy
	f := s.files[ending]
	r.mu.Lock()
	flag, held := &s.unwritten, s.accepted
	if ending == goodEnding {
		flag, held = &s.goodUnwritten, s.of.good[s.kind]
	}
	if !*flag || !s.whole || s.of.forgotten {
		r.mu.Unlock()
		return nil
	}
	*flag = false
	out := content{upstream: s.of.name, kind: s.kind, refused: map[string]string{}}
	if ending == acceptedEnding {
		for name, refusal := range s.refused {
			if refusal.crashy {
				out.refused[name], out.why = refusal.version, refusal.why.GetMessage()
			}
		}
	}
	anew := f.anew()
	if anew {
		out.set = maps.Clone(held)
	} else {
		out.set = f.differs(held)
	}
	r.mu.Unlock()
	path := r.file(s.of.name, s.kind, ending)
	var err error
	if anew {
		err = f.replace(path, out)
	} else {
		err = f.extend(path, out)
	}
	if err != nil {
		r.mu.Lock()
		*flag = true
		r.mu.Unlock()
		return fmt.Errorf("writing cache of resources: %w", err)
	}
	return nil
}
