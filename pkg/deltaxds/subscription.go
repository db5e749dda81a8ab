package deltaxds

import (
	"slices"
	"strconv"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// Wildcard is the name by which a client subscribes to all resources of a type.
const Wildcard = "*"

// subscription is the state of one type on one stream. There may be 20,000 of them, so it is small.
type subscription struct {
	known []known             // what the client has, or was sent last, in name order
	names map[string]struct{} // what the client subscribes to by name; nil: nothing
	sent  uint64              // number of the response that awaits its answer; 0: none does

	asked    bool // a request has come
	wildcard bool // the client subscribes to all resources
	owed     bool // a response is sent in any case, even an empty one
	changed  bool // what the client is to have may have changed since the last response
	urgent   bool // and the client has requested it, so it does not wait for the answer to the last response
	whole    bool // only an offer of all resources can be compared with known
	removes  bool // only removals are left to send, after the changes of later types
	parts    bool // the last response lacked resources that did not fit
	ended    bool // known may have resources to which the client no longer subscribes
}

// known is a resource that a client has, or was sent last.
type known struct {
	name    string
	version version
}

// Claims are the resources that a client has by its first request for a type. The Stream that gets them keeps them.
type Claims []known // in name order

// ClaimsOf returns the claims of a request. It hashes versions, so it should be called without a lock.
func ClaimsOf(r *discoveryv3.DeltaDiscoveryRequest) Claims {
	all := make(Claims, 0, len(r.GetInitialResourceVersions()))
	for name, text := range r.GetInitialResourceVersions() {
		all = append(all, known{name, versionOf(text)})
	}
	slices.SortFunc(all, byName)
	return all
}

func byName(a, b known) int { return strings.Compare(a.name, b.name) }

// Answer is what a request says about a response.
type Answer int

// A request may be no answer, an ACK, a NACK, or an answer with a nonce that is not the one of the last response.
const (
	NoAnswer Answer = iota
	ACK
	NACK
	Outdated
)

// apply updates the subscription with a request.
func (s *subscription) apply(r *discoveryv3.DeltaDiscoveryRequest, have Claims) Answer {
	answer := s.answer(r)
	subscribe, unsubscribe := r.GetResourceNamesSubscribe(), r.GetResourceNamesUnsubscribe()
	if !s.asked {
		s.asked = true
		// A client that has never named a resource subscribes to all, as if by the wildcard.
		s.wildcard = len(subscribe) == 0
		s.first(subscribe, have)
		subscribe = nil
	}
	for _, name := range subscribe {
		s.subscribe(name)
	}
	for _, name := range unsubscribe {
		s.unsubscribe(name)
	}
	return answer
}

// answer ends the wait for the answer to the last response, if this is it. Other nonces are ignored: the answer to the
// last response will come.
func (s *subscription) answer(r *discoveryv3.DeltaDiscoveryRequest) Answer {
	switch nonce := r.GetResponseNonce(); {
	case nonce == "":
		return NoAnswer
	case s.sent == 0 || nonce != formatNonce(s.sent):
		return Outdated
	}
	s.sent = 0
	s.forget()
	if r.GetErrorDetail() != nil {
		return NACK
	}
	return ACK
}

// first begins a subscription of a client that may have resources from an earlier stream.
func (s *subscription) first(subscribe []string, have Claims) {
	for _, name := range subscribe {
		if name == Wildcard {
			s.wildcard = true
		} else {
			s.name(name)
		}
	}
	s.known = slices.DeleteFunc(have, func(k known) bool { return !s.wants(k.name) })
	var more []known
	for name := range s.names {
		if _, has := s.find(name); !has {
			more = append(more, known{name, unknown})
		}
	}
	if len(more) > 0 {
		s.known = append(s.known, more...)
		slices.SortFunc(s.known, byName)
	}
	s.owed = s.wildcard // the client waits for it with its own start
	s.compare()
}

func (s *subscription) name(name string) {
	if s.names == nil {
		s.names = map[string]struct{}{}
	}
	s.names[name] = struct{}{}
}

// subscribe adds a name. Its resource is sent even if the client was sent the same version before: it may have
// discarded it. If there is none, the client is told so.
func (s *subscription) subscribe(name string) {
	if name == Wildcard {
		if !s.wildcard {
			s.wildcard, s.owed = true, true
			s.compare()
		}
		return
	}
	s.name(name)
	s.set(name, unknown)
	s.compare()
}

// unsubscribe removes a name. While the client subscribes to all resources, it may continue to receive this one, so it
// is sent again, or removed.
func (s *subscription) unsubscribe(name string) {
	if name == Wildcard {
		s.wildcard, s.ended = false, true
		for i := range s.known {
			if !s.wants(s.known[i].name) {
				s.known[i].version = unknown
			}
		}
		s.forget()
		return
	}
	_, named := s.names[name]
	delete(s.names, name)
	at, has := s.find(name)
	switch {
	case s.wildcard && (has || named):
		s.set(name, unknown)
		s.compare()
	case has && s.sent == 0:
		s.known = slices.Delete(s.known, at, at+1)
	case has:
		s.known[at].version, s.ended = unknown, true
	}
}

// forget removes the resources to which the client no longer subscribes. Until its answer to the last response it may
// have subscribed to all again before it applied that one, and then has what was in it.
func (s *subscription) forget() {
	if s.ended && s.sent == 0 {
		s.known = slices.DeleteFunc(s.known, func(k known) bool { return !s.wants(k.name) })
		s.ended = false
	}
}

// compare has all resources compared with what the client has, now.
func (s *subscription) compare() { s.changed, s.urgent, s.whole, s.removes = true, true, true, false }

// wants reports whether the client subscribes to a name.
func (s *subscription) wants(name string) bool {
	_, named := s.names[name]
	return s.wildcard || named
}

// due reports whether there may be something to send now.
func (s *subscription) due() bool {
	return s.changed && (s.sent == 0 || s.urgent) && (s.wildcard || len(s.names) > 0)
}

// inParts reports whether resources are left to send that did not fit into the last response.
func (s *subscription) inParts() bool { return s.parts && (s.wildcard || len(s.names) > 0) }

func (s *subscription) find(name string) (at int, has bool) {
	return slices.BinarySearchFunc(s.known, name, func(k known, name string) int { return strings.Compare(k.name, name) })
}

func (s *subscription) set(name string, v version) {
	at, has := s.find(name)
	if !has {
		s.known = slices.Insert(s.known, at, known{name: name})
	}
	s.known[at].version = v
}

// difference is what a client does not have yet.
type difference struct {
	resources []*discoveryv3.Resource
	removed   []string
	held      bool // there are removals that are left for later
	left      bool // there are resources that are left for later
	size      int  // of resources, in bytes
	most      int  // bound of size if there is more than one resource; 0: none
}

// add adds a resource if it fits, and all before it did.
func (d *difference) add(r *Resource) bool {
	if d.most > 0 {
		d.size += r.size
		d.left = d.left || len(d.resources) > 0 && d.size > d.most
	}
	if !d.left {
		d.resources = append(d.resources, r.message)
	}
	return !d.left
}

// merge compares an offer of all resources with what the client has, and records that the client has it. With hold it
// leaves removals for later.
func (s *subscription) merge(d *difference, all []*Resource, hold bool) {
	before := s.known
	size := len(all)
	if !s.wildcard {
		size = min(size, len(s.names))
	}
	s.known = make([]known, 0, size) // exactly what is needed, because it stays
	gone := func(k known) {
		switch {
		case !s.wants(k.name):
			s.known = append(s.known, k)
		case hold:
			s.known, d.held = append(s.known, k), true
		default:
			d.removed = append(d.removed, k.name)
		}
	}
	for _, r := range all {
		name := r.Name()
		if !s.wants(name) {
			continue
		}
		for len(before) > 0 && before[0].name < name {
			gone(before[0])
			before = before[1:]
		}
		has := len(before) > 0 && before[0].name == name
		now := known{name, r.version}
		sent := has && before[0].version == r.version && r.version != unknown || d.add(r)
		if !sent && has {
			now = before[0]
		}
		if has {
			before = before[1:]
		}
		if sent || has {
			s.known = append(s.known, now)
		}
	}
	for _, k := range before {
		gone(k)
	}
}

// update does what merge does, with an offer of some resources.
func (s *subscription) update(d *difference, some Offer, hold bool) {
	for _, r := range some.resources {
		at, has := s.find(r.Name())
		switch {
		case !s.wants(r.Name()), has && s.known[at].version == r.version && r.version != unknown, !d.add(r):
			continue
		case !has:
			s.known = slices.Insert(s.known, at, known{name: r.Name()})
		}
		s.known[at].version = r.version
	}
	for _, name := range some.gone {
		at, has := s.find(name)
		switch {
		case !has, !s.wants(name):
		case hold:
			d.held = true
		default:
			s.known = slices.Delete(s.known, at, at+1)
			d.removed = append(d.removed, name)
		}
	}
}

// keep takes the removals out of a response.
func (s *subscription) keep(d *difference) {
	if len(d.removed) == 0 {
		return
	}
	for _, name := range d.removed {
		s.known = append(s.known, known{name: name, version: unknown})
	}
	slices.SortFunc(s.known, byName)
	d.removed, d.held = nil, true
}

func formatNonce(number uint64) string { return strconv.FormatUint(number, 10) }
