package xdsproxy

import (
	"maps"
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
)

// Envoy listens at an address once. Two upstreams have a listener for the same address while a tunnel moves from one
// installation to another: both serve the socket of the apiserver beside this Envoy, or the address at which machines
// reach theirs. The one that was offered last gets the address, because an installation offers it when the Cluster
// arrives there, and the other one does not withdraw it: it only ends its stream. If the upstream that has the address
// ends its stream, or is removed, one that still answers gets the address back.

// address returns what identifies the address of a listener; empty: it has none.
func (r *resource) address() string {
	l := &listenerv3.Listener{}
	if r == nil || r.message.GetResource().UnmarshalTo(l) != nil {
		return ""
	}
	key, err := proto.MarshalOptions{Deterministic: true}.Marshal(l.GetAddress())
	if err != nil {
		return "" // Envoy rejects it too
	}
	return string(key)
}

// place records the address of a resource that is offered to Envoy.
func (s *share) place(name string, res *resource) {
	if s.kind != listeners {
		return
	}
	delete(s.yielded, name)
	if at := res.address(); at != "" {
		s.of.proxy.places[name] = at
	} else {
		delete(s.of.proxy.places, name)
	}
}

// neighbours returns the names of the other listeners with the address of a listener.
func (r *Proxy) neighbours(name string) (names []string) {
	at, ok := r.places[name]
	for other, place := range r.places {
		if ok && other != name && place == at {
			names = append(names, other)
		}
	}
	return names
}

// displace makes the listeners of other upstreams with the same address yield to one that is offered.
func (s *share) displace(name string) {
	if s.kind != listeners {
		return
	}
	for _, other := range s.of.proxy.neighbours(name) {
		owner := s.owners()[other]
		if owner == nil || owner.of == s.of || owner.offered[other] == nil {
			continue
		}
		s.of.proxy.log.Info(
			"listener yields its address to another xds-server", "upstream", owner.of.name, "name", other,
			"to", s.of.name,
		)
		delete(owner.pending.waiting, other)
		owner.offer(other, nil)
		owner.yielded[other] = true
		owner.finish()
	}
}

// blocked reports whether Envoy still has a listener at the address of another one, which is about to be removed.
func (t *table) blocked(r *Proxy, k kind, name string) bool {
	if k != listeners {
		return false
	}
	return slices.ContainsFunc(r.neighbours(name), func(other string) bool {
		_, has := t.have[other]
		owner := r.owners[k][other]
		return has && (owner == nil || owner.offered[other] == nil)
	})
}

// restoreYielded offers Envoy the listeners that have yielded to an upstream that no longer answers, if theirs does.
func (r *Proxy) restoreYielded(ended *contribution) {
	for _, c := range r.sorted() {
		s := c.shares[listeners]
		if c == ended || !c.connected {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(s.yielded)) {
			if s.newest[name] != nil && s.rejected[name] == nil && !r.answersAt(name) {
				s.admit(map[string]bool{name: true})
			}
		}
	}
	r.notifySession()
}

// answersAt reports whether an upstream that answers offers another listener with the address of a listener.
func (r *Proxy) answersAt(name string) bool {
	return slices.ContainsFunc(r.neighbours(name), func(other string) bool {
		owner := r.owners[listeners][other]
		return owner != nil && owner.of.connected && owner.offered[other] != nil
	})
}
