package xdsproxy

import (
	"maps"
	"slices"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// next returns the next response to Envoy; nil: none until the session is notified.
func (s *session) next() *discoveryv3.DeltaDiscoveryResponse {
	r := s.proxy
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.session != s {
		return nil
	}
	k, b := s.choose()
	for b != nil && !s.canSend(k, b) {
		k, b = s.choose()
	}
	if b == nil {
		return nil
	}
	return s.send(k, b)
}

// choose returns the next batch; nil: there is none. Additions go in the order of types, so that an Envoy cluster
// exists before the listener that refers to it. Removals go in the reverse order.
func (s *session) choose() (kind, *batch) {
	for k, t := range s.tables {
		if t == nil {
			continue
		}
		if kind(k) == scopes && t.flight == nil && !t.answered && !s.ready(scopes) {
			continue // an xds-server without scopes must not delay listeners
		}
		if t.flight != nil || !t.answered && !s.ready(kind(k)) {
			return 0, nil
		}
		if b := s.part(kind(k)); b != nil {
			return kind(k), b
		}
		if b := s.additions(kind(k)); b != nil || !t.answered {
			if b == nil {
				b = &batch{} // Envoy waits for an answer even if it has everything
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

// held reports whether Envoy keeps its version of a resource of an upstream that has not answered yet. An Envoy that
// outlived its agent may have something newer than the disk. It does not keep a version that is known to be rejected.
func (t *table) held(o *share, name string) bool {
	have, has := t.have[name]
	if !has || o.asked || o.yielded[name] || bare(have) == o.offered[name].version() {
		return false // in the last case only the form differs
	}
	r := o.rejected[name]
	return r == nil || r.version != bare(have)
}

// outdated reports whether Envoy has other versions than the proxy recorded as accepted.
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

// ready reports whether a first answer can be sent. Envoy waits for it without a limit, and assumes that resources
// missing from it do not exist. So the proxy waits for every known upstream, but only for a few seconds: that is
// enough for one that works, and one that does not must not delay the others. Before the first upstream is known at
// all, it waits without a limit.
func (s *session) ready(k kind) bool {
	r, t := s.proxy, s.tables[k]
	if len(r.contributions) == 0 {
		return r.removedAny && len(t.have) > 0 // there are resources to remove
	}
	some, all := false, true
	for _, c := range r.contributions {
		some, all = some || c.ready(k), all && c.ready(k)
	}
	return all || some && time.Since(s.began) >= r.times.first
}

// part returns the next part of a batch that Envoy rejected, with the present resources.
func (s *session) part(k kind) *batch {
	t := s.tables[k]
	for len(t.parts) > 0 {
		b := t.parts[0]
		t.parts = t.parts[1:]
		if b.share != nil && b.share.of.removed {
			continue
		}
		names := b.names
		b.names, b.changes = nil, set{}
		for _, name := range names {
			var want *resource
			if b.share != nil {
				want = b.share.offered[name]
			}
			if s.proxy.shown(k, name, want) != t.have[name] {
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

// additions returns the resources of one upstream that Envoy lacks or has in another version; nil: there are none.
func (s *session) additions(k kind) *batch {
	t := s.tables[k]
	byShare := map[*share][]string{}
	for name := range t.todo {
		o := s.proxy.owners[k][name]
		if o == nil || o.offered[name] == nil {
			continue // at most a removal
		}
		if s.proxy.shown(k, name, o.offered[name]) == t.have[name] {
			delete(t.todo, name)
		} else if o.of.ready(k) && !t.held(o, name) && !t.blocked(s.proxy, k, name) {
			byShare[o] = append(byShare[o], name)
		}
	}
	return first(byShare)
}

// removals returns the resources of Envoy that their upstream no longer has, or that belong to no upstream; nil: there
// are none. A resource without an upstream may belong to one that has not answered yet: it is kept until all have
// answered, unless its upstream was removed.
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

// complete reports whether every upstream is known, so that a resource that none of them has belongs to none.
func (r *Proxy) complete(k kind) bool {
	for _, c := range r.contributions {
		if !c.ready(k) {
			return false
		}
	}
	return len(r.contributions) > 0 || r.removedAny
}

// asked reports whether every upstream has answered since the agent started.
func (r *Proxy) asked(k kind) bool {
	for _, c := range r.contributions {
		if !c.shares[k].asked {
			return false
		}
	}
	return true
}

// first returns a batch with the changes of one upstream, the first by name.
func first(byShare map[*share][]string) *batch {
	if len(byShare) == 0 {
		return nil
	}
	chosen := slices.MinFunc(
		slices.Collect(maps.Keys(byShare)), func(a, b *share) int { return strings.Compare(a.upstream(), b.upstream()) },
	)
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
