package relay

import (
	"maps"
	"slices"
)

// Envoy listens at an address once. Two upstreams have a listener for the same address while a tunnel moves from one
// installation to another: both serve the socket of the apiserver beside this Envoy, or the address at which machines
// reach theirs. The one that was offered last gets the address, because an installation offers it when the Cluster
// arrives there, and the other one does not withdraw it: it only ends its stream. If the upstream that has the address
// ends its stream, or is removed, one that still answers gets the address back.

// minPlaces is the number of addresses up to which none is forgotten.
const minPlaces = 256

// place records the address of a resource that is offered to Envoy.
func (s *share) place(name string, res *Resource) {
	if s.kind != Listeners {
		return
	}
	r := s.of.relay
	delete(s.yielded, name)
	if res.Address == "" {
		delete(r.places, name)
		return
	}
	r.places[name] = res.Address
	if len(r.places) > max(minPlaces, 2*len(r.owners[Listeners])) {
		maps.DeleteFunc(r.places, func(name, _ string) bool { return !r.placed(name) })
	}
}

// placed reports whether the address of a listener still matters: an upstream has it, possibly without offering it, or
// Envoy may have it.
func (r *Relay) placed(name string) bool {
	if t := r.table(Listeners); r.owners[Listeners][name] != nil || t != nil && t.sent(name) {
		return true
	}
	for _, c := range r.upstreams {
		if c.shares[Listeners].yielded[name] {
			return true
		}
	}
	return false
}

// neighbours returns the names of the other listeners with the address of a listener, in order.
func (r *Relay) neighbours(name string) (names []string) {
	at, ok := r.places[name]
	for other, place := range r.places {
		if ok && other != name && place == at {
			names = append(names, other)
		}
	}
	slices.Sort(names)
	return names
}

// displace makes the listeners of other upstreams with the same address yield to one that is offered.
func (s *share) displace(name string) {
	if s.kind != Listeners {
		return
	}
	for _, other := range s.of.relay.neighbours(name) {
		owner := s.owners()[other]
		if owner == nil || owner.of == s.of || owner.offered[other] == nil {
			continue
		}
		s.of.relay.log.Info(
			"listener yields its address to another xds-server", "upstream", owner.of.name, "name", other,
			"to", s.of.name,
		)
		delete(owner.pending.waiting, other)
		owner.yielded[other] = true
		owner.offer(other, nil)
		owner.finish()
	}
}

// blocked reports whether Envoy still has a listener at the address of another one, which is about to be removed.
func (r *Relay) blocked(k Kind, name string) bool {
	return k == Listeners && slices.ContainsFunc(r.neighbours(name), func(other string) bool {
		_, has := r.session.tables[k].have[other]
		owner := r.owners[k][other]
		return has && (owner == nil || owner.offered[other] == nil)
	})
}

// restoreYielded offers Envoy the listeners that have yielded to an upstream that no longer answers, if theirs does.
func (r *Relay) restoreYielded() {
	for _, c := range r.sorted() {
		s := c.shares[Listeners]
		if !c.connected {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(s.yielded)) {
			if s.newest[name] != nil && s.rejected[name] == nil && !r.answersAt(name) {
				s.admit(map[string]bool{name: true})
			}
		}
	}
}

// answersAt reports whether an upstream that answers offers another listener with the address of a listener.
func (r *Relay) answersAt(name string) bool {
	return slices.ContainsFunc(r.neighbours(name), func(other string) bool {
		owner := r.owners[Listeners][other]
		return owner != nil && owner.of.connected && owner.offered[other] != nil
	})
}
