// Package deltaxds is the server's side of the incremental xDS protocol, as a state machine. In go a client's requests
// and offers of resources; out come the responses that are to be sent. It does not know how requests arrive, where
// resources come from, which client may have them, or what they mean.
//
// The rules are those of https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol and of the comments in
// Envoy's discovery.proto. pkg/deltaxds/conformance has them as a table of exchanges.
//
// Trade-offs. A Stream has no lock, no goroutine and no clock. Its owner holds a lock while it calls it, so no method
// encodes, measures or hashes anything: that was done when the Resource and the Claims were made. Methods compare names
// and versions. A Stream keeps no resources, only names and versions. What was sent counts as what the client has,
// whether the client accepts or rejects it. So a rejected version is not sent again, but another one is, even the one
// before. A client that applies a part of a rejected response, as Envoy does, states what it has at the begin of its
// next stream.
//
// A type with more resources than fit into a response is sent in parts, each after the answer to the one before. Later
// types wait for the last part, because they may refer to it, and so do the removals of earlier types.
package deltaxds

import (
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// Stream is the state of one stream of a client, for some types. Types are numbers from 0, in the order in which
// resources refer to each other: those of a type refer to resources of types with lower numbers. It is not safe for
// concurrent use.
type Stream struct {
	types []subscription
	most  int    // bytes of resources in a response; 0: any number
	last  uint64 // number of the last response
}

// NewStream returns the state of a stream without requests. A response of Respond contains resources of at most so many
// bytes, or a single one; 0: of any number. Then each resource must have a version. A response contains any number of
// names of removed resources.
func NewStream(types, most int) Stream { return Stream{types: make([]subscription, types), most: most} }

// Request applies a request for a type, and returns what it says about the last response for this type. have are its
// claims, if it is the first request for this type; those of later ones have no effect. The caller has checked how many
// names it lists: a Stream keeps the ones to which the client subscribes, and those which the client claims to have
// until its next response.
func (s *Stream) Request(kind int, r *discoveryv3.DeltaDiscoveryRequest, have Claims) Answer {
	return s.types[kind].apply(r, have)
}

// Changed records that what the client is to have of a type may have changed. It does nothing before the first request.
func (s *Stream) Changed(kind int) {
	if t := &s.types[kind]; t.asked {
		t.changed, t.removes = true, false
	}
}

// Asked reports whether there was a request for a type.
func (s *Stream) Asked(kind int) bool { return s.types[kind].asked }

// Due reports whether there may be something to send now.
func (s *Stream) Due() bool {
	_, ok := s.next()
	return ok
}

// Next returns the type that may have to be sent next, and whether its offer has to be of all resources. It returns
// false if there is none. The caller makes an offer that contains every change up to now, which may take a while, and
// calls Respond.
func (s *Stream) Next() (kind int, whole, ok bool) {
	if kind, ok = s.next(); !ok {
		return 0, false, false
	}
	t := &s.types[kind]
	t.changed = false
	return kind, t.whole, true
}

// next returns the type that may have to be sent next.
func (s *Stream) next() (kind int, ok bool) {
	for i := range s.types {
		t := &s.types[i]
		if t.due() && !t.removes {
			return i, true
		}
		if t.inParts() { // the next part waits for an answer
			return 0, false
		}
	}
	for i := range slices.Backward(s.types) {
		if s.types[i].due() {
			return i, true
		}
	}
	return 0, false
}

// Respond returns the response for a type by an offer, and records that it is sent. It returns nil if the client has
// everything. It leaves removals for later, and rest is true, while there may be changes of later types to send: what
// is removed may be in use until then. It leaves resources for later, and rest is true, if not all of them fit. Such a
// response removes nothing: the client may remove only after later types, which wait for the last part. Then Next
// returns this type again, and the next offer must contain at least what this one contained. An offer of some resources
// has no effect if all are needed, because of a request that came after Next.
func (s *Stream) Respond(kind int, offer Offer) (response *discoveryv3.DeltaDiscoveryResponse, rest bool) {
	t := &s.types[kind]
	if t.whole && !offer.whole {
		t.changed = true
		return nil, true
	}
	hold := slices.ContainsFunc(s.types[kind+1:], func(later subscription) bool { return later.due() || later.inParts() })
	d := difference{most: s.most}
	if offer.whole {
		t.merge(&d, offer.resources, hold)
	} else {
		t.update(&d, offer, hold)
	}
	if d.left {
		t.keep(&d)
	}
	rest = d.held || d.left
	t.whole = offer.whole && rest
	t.removes = rest && !d.left && !t.changed
	t.parts = d.left
	t.changed = t.changed || rest
	if len(d.resources)+len(d.removed) == 0 && !t.owed {
		t.urgent = t.urgent && rest
		return nil, rest
	}
	return s.send(t, d), rest
}

func (s *Stream) send(t *subscription, d difference) *discoveryv3.DeltaDiscoveryResponse {
	t.owed, t.urgent = false, false
	s.last++
	t.sent = s.last
	return &discoveryv3.DeltaDiscoveryResponse{
		Nonce: formatNonce(s.last), SystemVersionInfo: formatNonce(s.last),
		Resources: d.resources, RemovedResources: d.removed,
	}
}

// Idle reports whether the client has answered, with an ACK or a NACK, everything that it is to have of a type.
func (s *Stream) Idle(kind int) bool {
	t := &s.types[kind]
	return t.asked && !t.changed && t.sent == 0
}

// Has reports whether the client has this version of a resource, or was sent it last.
func (s *Stream) Has(kind int, r *Resource) bool {
	t := &s.types[kind]
	at, has := t.find(r.Name())
	return has && t.known[at].version == r.version
}
