package xdsproxy

import (
	"context"
	"fmt"
	"maps"
	"time"
)

// restFactor is the ratio of the pause after a write to the duration of the write: a gateway whose Envoy clusters
// change all the time writes for a twentieth of the time. A pause is at most times.maxRest, however slow the disk is.
const restFactor = 20

// keep writes what Envoy has accepted and proves resources good until ctx ends. Then it writes once more.
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
		var timer <-chan time.Time // nil if nothing is being proven
		if again > 0 {
			timer = time.After(again)
		}
		select {
		case <-ctx.Done():
			c.write()
			return
		case <-c.notified:
		case <-timer:
		}
	}
}

// write writes what differs from the files, and returns whether that succeeded. It logs the first of several
// consecutive failures. Envoy continues with the resources in memory.
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
	if !*flag || !s.whole || s.of.removed {
		r.mu.Unlock()
		return nil
	}
	*flag = false
	out := content{upstream: s.of.name, kind: s.kind, rejected: map[string]string{}}
	if ending == acceptedEnding {
		for name, rejection := range s.rejected {
			if rejection.afterCrash {
				out.rejected[name], out.why = rejection.version, rejection.why.GetMessage()
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
