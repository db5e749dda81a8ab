package relay

import (
	"maps"
	"slices"
)

func (e Restored) apply(r *Relay) {
	for _, f := range e.Files {
		s := r.upstream(f.Upstream).shares[f.Kind]
		s.files[f.Generation].due = f.Torn
		if f.Generation == Good {
			s.good = maps.Clone(f.Set)
			continue
		}
		s.accepted, s.source, s.whole = maps.Clone(f.Set), disk, true
		if f.Rejected != nil {
			for name := range f.Rejected.Versions {
				s.rejected[name] = f.Rejected
			}
		}
	}
	for _, c := range r.sorted() {
		c.restore()
		r.scoped = r.scoped || c.shares[Scopes].source == disk
	}
	t := &r.trials
	t.count = min(e.Trials, crashLimit)
	t.recorded, t.attempted = t.count, t.count
	if e.Unusable {
		t.recorded = unrecorded
	}
	if t.count > 0 {
		r.log.Info("Envoy ended early with its newest resources", "times", t.count)
	}
}

// restore offers Envoy what was loaded.
func (c *upstream) restore() {
	r := c.relay
	for _, s := range c.shares {
		if s.source == none && s.good != nil {
			// the newer generation was not usable
			s.accepted, s.source, s.whole, s.files[Accepted].due = maps.Clone(s.good), disk, true, true
		}
		for _, name := range slices.Sorted(maps.Keys(s.accepted)) {
			res := s.accepted[name]
			if s.owners()[name] != nil {
				r.log.Error(
					"ignoring cached resource, another xds-server has one of this name", "upstream", c.name, "name", name,
				)
				delete(s.accepted, name)
				continue
			}
			s.offered[name] = res
			s.owners()[name] = s
			r.place(s.kind, res)
		}
		c.unproven = c.unproven || len(differing(s.good, s.accepted)) > 0
	}
	r.log.Info("loaded the resources that Envoy accepted last", "upstream", c.name,
		"clusters", len(c.shares[Clusters].accepted), "scopes", len(c.shares[Scopes].accepted),
		"listeners", len(c.shares[Listeners].accepted))
}
