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

// places holds the addresses of versions of listeners, by name and version: until Envoy answers, it may have the
// previous version of a listener or the one that it was sent.
type places map[string]map[string]string

// place records the address of a resource that Envoy may have.
func (r *Relay) place(k Kind, res *Resource) {
	if k != Listeners || res == nil || res.Address == "" {
		return
	}
	if r.places[res.Name] == nil {
		r.places[res.Name] = map[string]string{}
	}
	r.places[res.Name][res.Version] = res.Address
}

// keep records that Envoy has this version of a listener and no other one; empty: none.
func (p places) keep(name, version string) {
	maps.DeleteFunc(p[name], func(other, _ string) bool { return other != version })
	if len(p[name]) == 0 {
		delete(p, name)
	}
}

// at returns the owners of the other listeners that are offered at the address of a listener, by name.
func (r *Relay) at(res *Resource) map[string]*share {
	all := map[string]*share{}
	for name, owner := range r.owners[Listeners] {
		if offered := owner.offered[name]; offered != nil && res.Address != "" && offered.Address == res.Address &&
			name != res.Name {
			all[name] = owner
		}
	}
	return all
}

// displace makes the listeners of other upstreams with the same address yield to one that is offered.
func (s *share) displace(res *Resource) {
	if s.kind != Listeners {
		return
	}
	rivals := s.of.relay.at(res)
	for _, name := range slices.Sorted(maps.Keys(rivals)) {
		owner := rivals[name]
		if owner == s {
			continue
		}
		s.of.relay.log.Info(
			"listener yields its address to another xds-server", "upstream", owner.of.name, "name", name, "to", s.of.name,
		)
		delete(owner.pending.waiting, name)
		owner.offer(name, nil)
		owner.yielded[name] = true
		owner.finish()
	}
}

// blocked reports whether Envoy still has a listener at the address of another one, which is about to be removed, or to
// be replaced at another address because its upstream was removed and another one has its name.
func (r *Relay) blocked(k Kind, res *Resource) bool {
	if k != Listeners || res.Address == "" {
		return false
	}
	for name, version := range r.session.tables[k].have {
		if name == res.Name || r.places[name][version] != res.Address {
			continue
		}
		var offered *Resource
		if owner := r.owners[k][name]; owner != nil {
			offered = owner.offered[name]
		}
		if _, dropped := r.dropped[k][name]; offered == nil || dropped && offered.Address != res.Address {
			return true
		}
	}
	return false
}

// restoreYielded offers Envoy the listeners that have yielded to an upstream that no longer has the address or no
// longer answers, if theirs does.
func (r *Relay) restoreYielded() {
	for _, c := range r.sorted() {
		s := c.shares[Listeners]
		if !c.connected {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(s.yielded)) {
			if res := s.newest[name]; res != nil && s.rejected[name] == nil && !r.answersAt(res) {
				s.admit(map[string]bool{name: true})
			}
		}
	}
}

// answersAt reports whether an upstream that answers offers another listener with the address of a listener.
func (r *Relay) answersAt(res *Resource) bool {
	for _, owner := range r.at(res) {
		if owner.of.connected {
			return true
		}
	}
	return false
}
