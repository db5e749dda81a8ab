package xdsproxy

import (
	"maps"
	"slices"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// next is what Envoy is to be sent now; nil: nothing, until something wakes the session.
func (s *session) next() *discoveryv3.DeltaDiscoveryResponse {
	r := s.proxy
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.session != s {
		return nil
	}
	k, b := s.choose()
	for b != nil && !s.dares(k, b) {
		k, b = s.choose()
	}
	if b == nil {
		return nil
	}
	return s.send(k, b)
}

// choose returns the next batch; nil: there is none. What is added goes in the order of types, so that an Envoy cluster is
// there before the listener that refers to it; what is removed, the other way round.
func (s *session) choose() (kind, *batch) {
	for k, t := range s.tables {
		if t == nil {
			continue
		}
		if t.flight != nil || !t.answered && !s.ready(kind(k)) {
			return 0, nil
		}
		if b := s.part(kind(k)); b != nil {
			return kind(k), b
		}
		if b := s.additions(kind(k)); b != nil || !t.answered {
			if b == nil {
				b = &batch{} // Envoy waits for an answer, even if it has everything
			}
			return kind(k), b
		}
	}
	for k, t := range slices.Backward(s.tables[:]) {
		if t == nil {
			continue
		}
		if b := s.removals(kind(k)); b != nil {
			return kind(k), b
		}
	}
	return 0, nil
}

// held says whether Envoy keeps what it has under a name of an upstream that has not answered yet. An Envoy that outlived its
// agent may have something newer than the disk. What is known to be refused it does not keep.
func (t *table) held(o *share, name string) bool {
	have, has := t.have[name]
	if !has || o.asked || bare(have) == o.offered[name].version() {
		return false // in the last case only its form is another
	}
	r := o.refused[name]
	return r == nil || r.version != bare(have)
}

// outdated says whether Envoy has other versions than those that it accepted last as far as is known here.
func (s *share) outdated() bool {
	t := s.of.proxy.table(s.kind)
	if t == nil || s.asked {
		return false
	}
	for name, res := range s.accepted {
		if have, has := t.have[name]; has && bare(have) != res.version() {
			return true
		}
	}
	return false
}

// ready says whether there is enough for a first answer. Envoy waits for it without a limit, and takes what is not in it for
// not there. So it waits for every upstream that is known, but not for ever: a few seconds are enough for one that lives,
// and one that does not must not keep Envoy from the others. For the first of all it waits as long as it takes.
func (s *session) ready(k kind) bool {
	r, t := s.proxy, s.tables[k]
	if len(r.contributions) == 0 {
		return r.forgot && len(t.have) > 0 // to be removed
	}
	some, all := false, true
	for _, c := range r.contributions {
		some, all = some || c.ready(k), all && c.ready(k)
	}
	return all || some && time.Since(s.began) >= r.times.first
}

// part is the next part of what Envoy refused, as it is now.
func (s *session) part(k kind) *batch {
	t := s.tables[k]
	for len(t.parts) > 0 {
		b := t.parts[0]
		t.parts = t.parts[1:]
		if b.share != nil && b.share.of.forgotten {
			continue
		}
		names := b.names
		b.names, b.changes = nil, set{}
		for _, name := range names {
			var want *resource
			if b.share != nil {
				want = b.share.offered[name]
			}
			if s.proxy.shown(name, want) != t.have[name] {
				b.add(name, want)
			}
		}
		if len(b.names) > 0 {
			return b
		}
	}
	return nil
}

func (b *batch) add(name string, res *resource) {
	b.names = append(b.names, name)
	b.changes[name] = res
}

// additions are what one upstream has that Envoy does not, or in another version; nil: there is none.
func (s *session) additions(k kind) *batch {
	t := s.tables[k]
	byShare := map[*share][]string{}
	for name := range t.todo {
		o := s.proxy.owners[k][name]
		if o == nil || o.offered[name] == nil {
			continue // a removal, if anything
		}
		if s.proxy.shown(name, o.offered[name]) == t.have[name] {
			delete(t.todo, name)
		} else if o.of.ready(k) && !t.held(o, name) {
			byShare[o] = append(byShare[o], name)
		}
	}
	return first(byShare)
}

// removals are what Envoy has that an upstream has no more, or nobody has; nil: there is none. What is nobody's may be that
// of an upstream which has not answered yet, and stays until all have; unless it was that of one that is forgotten.
func (s *session) removals(k kind) *batch {
	r, t := s.proxy, s.tables[k]
	complete, asked := r.complete(k), r.asked(k)
	byShare := map[*share][]string{}
	for name := range t.todo {
		o := r.owners[k][name]
		if o != nil && o.offered[name] != nil {
			continue
		}
		if _, has := t.have[name]; !has {
			delete(t.todo, name)
		} else if o != nil && o.of.ready(k) && !t.held(o, name) || o == nil && complete && (asked || r.dropped[k][name]) {
			byShare[o] = append(byShare[o], name)
		}
	}
	return first(byShare)
}

// complete says whether every upstream is known: what none of them has is nobody's.
func (r *Proxy) complete(k kind) bool {
	for _, c := range r.contributions {
		if !c.ready(k) {
			return false
		}
	}
	return len(r.contributions) > 0 || r.forgot
}

// asked says whether every upstream has answered since the start of the agent.
func (r *Proxy) asked(k kind) bool {
	for _, c := range r.contributions {
		if !c.shares[k].asked {
			return false
		}
	}
	return true
}

// first makes a batch of the changes of one upstream: the first by name.
func first(byShare map[*share][]string) *batch {
	if len(byShare) == 0 {
		return nil
	}
	chosen := slices.MinFunc(slices.Collect(maps.Keys(byShare)), func(a, b *share) int { return strings.Compare(a.upstream(), b.upstream()) })
	b := &batch{share: chosen, changes: set{}}
	slices.Sort(byShare[chosen])
	for _, name := range byShare[chosen] {
		var res *resource
		if chosen != nil {
			res = chosen.offered[name]
		}
		b.add(name, res)
	}
	return b
}
