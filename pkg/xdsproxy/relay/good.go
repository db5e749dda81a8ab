package relay

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

// maxNames bounds the rolled-back resources that the reason names.
const maxNames = 5

// proof is what Envoy had at a time. It becomes good if Envoy keeps running with it.
type proof struct {
	sets [Kinds]Set
	at   time.Time
}

// apply counts a crash. After several consecutive crashes since new resources came, it rolls back to the last good ones
// and rejects the new ones upstream. It ignores the end of an Envoy that got no resources since the previous end.
func (Crashed) apply(r *Relay) {
	r.cut(ErrGone)
	if !r.served {
		return
	}
	r.served = false
	suspects := r.suspects()
	if len(suspects) == 0 {
		r.trials.open = false
		return
	}
	if !r.trials.open {
		r.trials.begin(r.now) // for example if the Envoy that ended was started by another agent
	}
	r.trials.open = false
	if r.trials.count < crashLimit {
		return
	}
	r.trials.over()
	r.rollBack(suspects)
	r.emit(RolledBack{})
}

// apply makes the resources good that Envoy has had for long enough. Without Ran, resources become good after Envoy has
// had them for longer.
func (Ran) apply(r *Relay) {
	if !r.trials.open || r.now.Sub(r.trials.began) >= r.Times.Settled {
		r.trials.over()
	}
	for _, c := range r.upstreams {
		if c.unproven && c.stable() && r.now.Sub(c.accepted) >= r.Times.Settled {
			c.promote(c.snapshot())
		}
	}
}

func (Ended) apply(r *Relay) {
	r.cut(ErrGone)
	r.served = false
	r.trials.over() // nothing is at fault
}

// disprove discards the resources that are being proven, because Envoy may not have kept running.
func (r *Relay) disprove() {
	for _, c := range r.upstreams {
		c.proving = nil
	}
}

// prove makes resources good that Envoy has had for long enough without Ran.
func (r *Relay) prove() {
	for _, c := range r.upstreams {
		if p := c.proving; p != nil && !r.now.Before(p.at.Add(r.Times.Proof)) {
			if t := &r.trials; !t.open || !p.at.Before(t.began) {
				t.over()
			}
			c.promote(p)
		}
		if c.unproven && c.proving == nil && c.stable() {
			c.proving = c.snapshot()
		}
	}
}

func (c *upstream) snapshot() *proof {
	p := &proof{at: c.relay.now}
	for k, s := range c.shares {
		p.sets[k] = maps.Clone(s.accepted)
	}
	return p
}

func (c *upstream) promote(p *proof) {
	for k, s := range c.shares {
		names := differing(s.good, p.sets[k])
		for _, name := range names {
			s.files[Good].change(name)
		}
		if s.good == nil || len(names) > 0 {
			s.good, s.files[Good].due = p.sets[k], true
		}
	}
	c.unproven, c.proving = c.accepted.After(p.at), nil
}

// stable reports whether there is an Envoy that is not in the middle of a change. During a change it could have the
// Envoy clusters and not yet the listeners.
func (c *upstream) stable() bool {
	changing := func(s *share) bool {
		return !s.whole && (s.source != none || s.kind != Scopes) || len(s.pending.waiting) > 0 || s.outdated()
	}
	return c.relay.session != nil && !slices.ContainsFunc(c.shares[:], changing)
}

// outdated reports whether Envoy has other versions than the relay recorded as accepted.
func (s *share) outdated() bool {
	t := s.of.relay.table(s.kind)
	if t == nil || s.source == server {
		return false
	}
	for name, res := range s.accepted {
		if have, has := t.have[name]; has && have != res.Version {
			return true
		}
	}
	return false
}

// suspects returns the upstreams that Envoy may not be able to run with, and what each can be rolled back to.
func (r *Relay) suspects() map[*upstream][Kinds]Set {
	suspects := map[*upstream][Kinds]Set{}
	for _, c := range r.upstreams {
		if to, ok := c.fallback(); ok {
			suspects[c] = to
		}
	}
	return suspects
}

// fallback returns the resources to roll back to if Envoy cannot run with what is offered, and whether they differ
// from it: the good ones, or else the accepted ones. An upstream that never had anything good falls back to nothing if
// other upstreams have, because they suffer from it. Without others, nothing is lost by further attempts.
func (c *upstream) fallback() (to [Kinds]Set, ok bool) {
	for k, s := range c.shares {
		to[k] = s.accepted
		if s.good != nil {
			to[k] = s.good
		}
		ok = ok || len(differing(to[k], s.offered)) > 0
	}
	if !ok && !c.proven() && c.othersProven() {
		return [Kinds]Set{{}, {}, {}}, true
	}
	return to, ok
}

func (c *upstream) othersProven() bool {
	for _, other := range c.relay.upstreams {
		if other != c && other.proven() {
			return true
		}
	}
	return false
}

// proven reports whether Envoy has ever run with resources of the upstream.
func (c *upstream) proven() bool {
	return slices.ContainsFunc(c.shares[:], func(s *share) bool { return s.good != nil })
}

// rollBack offers Envoy other sets, and rejects what it was offered.
func (r *Relay) rollBack(suspects map[*upstream][Kinds]Set) {
	for _, c := range r.sorted() {
		to, ok := suspects[c]
		if !ok {
			continue
		}
		for k, s := range c.shares {
			s.rollBack(to[k])
		}
	}
}

func (s *share) rollBack(to Set) {
	names := differing(to, s.offered)
	if len(names) == 0 {
		return
	}
	changes := Set{}
	for _, name := range names {
		changes[name] = s.offered[name]
	}
	why := fmt.Sprintf(
		"Envoy ended %d times in a row with the newest %s; its previous ones are restored (rolled back: %d, such as %s)",
		crashLimit, s.kind, len(names), strings.Join(names[:min(len(names), maxNames)], ", "),
	)
	s.of.relay.log.Error("resources rolled back", "upstream", s.of.name, "type_url", s.kind.TypeURL(), "error", why)
	s.reject(changes, Rejection{Code: codes.Aborted, Message: Bounded(why, maxDetail), Crash: true}, to)
	for _, name := range names {
		s.accept(name, to[name])
	}
	s.finish()
}
