package relay

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
)

// source is where the resources of a share are from.
type source int

const (
	none   source = iota // not known yet
	disk                 // they were on disk
	server               // the xds-server has answered since the agent started, possibly without resources
)

func (s source) String() string { return [...]string{"not known", "disk", "xds-server"}[s] }

// share holds one upstream's resources of one kind.
type share struct {
	of         *upstream
	kind       Kind
	source     source
	subscribed bool // requested on the open stream
	whole      bool // Envoy has had a complete answer, or what was on disk; a part is not worth writing

	newest   Set                   // what the xds-server assumes here; nil: no answer yet
	base     Set                   // versions named at the start of the stream; nil: the xds-server has answered since
	offered  Set                   // what Envoy is to have: newest without the rejected resources
	accepted Set                   // what Envoy accepted last, as on disk
	good     Set                   // what Envoy has run with; nil: not known
	rejected map[string]*Rejection // by name
	yielded  map[string]bool       // listeners that are not offered, because another upstream has their address
	pending  pending
	nonce    string // of the last response
	files    [Generations]file
}

// pending is what the xds-server's answer waits for.
type pending struct {
	nonces     []string          // of unanswered responses; more than one if the xds-server does not wait
	waiting    map[string]string // versions that Envoy has not accepted yet, by name; empty: a removal
	rejections []*Rejection
}

// maxRejections bounds the rejections in one NACK.
const maxRejections = 32

func newShare(c *upstream, k Kind) *share {
	return &share{
		of: c, kind: k, offered: Set{}, accepted: Set{}, rejected: map[string]*Rejection{}, yielded: map[string]bool{},
		pending: pending{waiting: map[string]string{}},
	}
}

func (s *share) owners() map[string]*share { return s.of.relay.owners[s.kind] }

// offer sets what Envoy is to have under a name; nil: nothing. It does not take a name from another upstream: one that
// is rolled back may have had it once.
func (s *share) offer(name string, res *Resource) {
	owner := s.owners()[name]
	if owner != nil && owner != s {
		res = nil
	}
	s.offered.put(name, res)
	if res != nil && owner == nil {
		s.own(name)
	}
	delete(s.yielded, name)
	if t := s.of.relay.table(s.kind); t != nil {
		t.todo[name] = true
	}
	s.disown(name)
}

// own takes a name that no upstream has. One that had it before waits no longer for its removal.
func (s *share) own(name string) {
	s.owners()[name] = s
	s.of.relay.gone(s.kind, name)
}

// gone answers the upstreams that wait for the removal of a resource that is no longer theirs.
func (r *Relay) gone(k Kind, name string) {
	for _, c := range r.sorted() {
		s := c.shares[k]
		if version, waits := s.pending.waiting[name]; waits && version == "" {
			delete(s.pending.waiting, name)
			s.finish()
		}
	}
}

// accept records what Envoy has under a name; nil: nothing.
func (s *share) accept(name string, res *Resource) {
	if version, ok := s.pending.waiting[name]; ok && version == res.version() {
		delete(s.pending.waiting, name)
	}
	if owner := s.owners()[name]; s.of.removed() || owner != nil && owner != s {
		return
	}
	if s.accepted[name].version() != res.version() {
		s.accepted.put(name, res)
		if res != nil {
			s.owners()[name] = s
		}
		s.files[Accepted].change(name)
		s.of.unproven, s.of.accepted = true, s.of.relay.now
	}
	s.disown(name)
}

// setGood records what Envoy has run with under a name; nil: nothing.
func (s *share) setGood(name string, res *Resource) {
	s.good.put(name, res)
	s.files[Good].change(name)
}

// disown releases a name without any resource, so that another upstream may use it.
func (s *share) disown(name string) {
	if s.offered[name] == nil && s.accepted[name] == nil && s.rejected[name] == nil && s.owners()[name] == s {
		delete(s.owners(), name)
	}
}

// agree records as accepted what Envoy already has.
func (s *share) agree(t *table, name string) {
	if want := s.offered[name]; t.have[name] == want.version() {
		s.of.relay.place(s.kind, want)
		s.accept(name, want)
	}
}

// reject rejects changes and offers Envoy something else instead.
func (s *share) reject(changes Set, why Rejection, instead Set) {
	why.Versions, why.At = changes.versions(), s.of.relay.now
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		s.rejected[name] = &why
		delete(s.pending.waiting, name)
		s.offer(name, instead[name])
	}
	if why.Crash {
		s.files[Accepted].due = true
	}
	s.object(&why)
}

// object sends the xds-server a rejection, with the answer that it waits for or with an additional one.
func (s *share) object(why *Rejection) {
	p := &s.pending
	switch {
	case len(p.nonces) == 0 && s.nonce != "":
		s.answer(s.nonce, []*Rejection{why})
	case len(p.nonces) > 0 && len(p.rejections) < maxRejections && !slices.Contains(p.rejections, why):
		p.rejections = append(p.rejections, why)
	}
	s.of.relay.emit(Notify{})
}

// finish answers the xds-server if nothing is left to wait for.
func (s *share) finish() {
	p := &s.pending
	if len(p.waiting) > 0 || len(p.nonces) == 0 {
		return
	}
	for _, nonce := range p.nonces {
		s.answer(nonce, p.rejections)
	}
	p.nonces, p.rejections = nil, nil
	if !s.whole {
		s.whole, s.files[Accepted].due = true, true
	}
}

func (s *share) answer(nonce string, why []*Rejection) {
	s.of.relay.emit(Answer{s.of.name, s.of.stream, s.kind, nonce, why})
}

// receive applies a response of the xds-server, and answers it if nothing has to wait for Envoy.
func (s *share) receive(changes Set, nonce string) {
	touched := s.take(changes)
	s.source, s.nonce = server, nonce
	s.pending.nonces = append(s.pending.nonces, nonce)
	s.release(touched)
	s.admit(touched)
	if t := s.of.relay.table(s.kind); t != nil {
		for name := range touched {
			s.agree(t, name)
		}
	}
	s.finish()
}

// take updates the state that the xds-server assumes here, and returns the names to compare. The first answer on a
// stream starts again from the versions that the request named, so every resource may differ from what Envoy is
// offered since the previous stream.
func (s *share) take(changes Set) map[string]bool {
	first := s.base != nil
	if first {
		s.newest, s.base = s.base, nil
	}
	touched := make(map[string]bool, len(changes))
	for name, res := range changes {
		touched[name] = true
		s.newest.put(name, res)
	}
	if first {
		for _, name := range differing(s.newest, s.offered) {
			touched[name] = true
		}
	}
	return touched
}

// release lifts the rejection of resources that the xds-server has changed, and of all resources rejected together
// with them.
func (s *share) release(touched map[string]bool) {
	for name, why := range s.rejected {
		if s.newest[name].version() == why.Versions[name] {
			continue
		}
		for name := range why.Versions {
			if s.rejected[name] == why {
				delete(s.rejected, name)
				touched[name] = true
				s.files[Accepted].due = s.files[Accepted].due || why.Crash
			}
		}
	}
}

// admit offers Envoy the changes, unless one of them has a fault.
func (s *share) admit(touched map[string]bool) {
	changes, instead := Set{}, Set{}
	var faults []string
	for _, name := range slices.Sorted(maps.Keys(touched)) {
		if why := s.rejected[name]; why != nil {
			s.object(why)
			continue
		}
		if owner := s.owners()[name]; s.newest[name] == nil && owner != nil && owner != s {
			continue // the xds-server removes a rejected resource, which Envoy does not have
		}
		changes[name] = s.newest[name]
		if fault := s.fault(name); fault != "" {
			faults = append(faults, fault)
		}
		if old := s.offered[name]; old != nil {
			instead[name] = old
		}
	}
	if len(faults) > 0 {
		maps.DeleteFunc(changes, func(name string, res *Resource) bool { return res.version() == instead[name].version() })
		why := strings.Join(faults[:min(len(faults), maxRejections)], "\n")
		s.of.relay.log.Error(
			"resources rejected before Envoy", "upstream", s.of.name, "type_url", s.kind.TypeURL(), "error", why,
		)
		s.reject(changes, Rejection{Code: codes.InvalidArgument, Message: Bounded(why, maxDetail)}, instead)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		res := changes[name]
		s.pending.waiting[name] = res.version()
		s.offer(name, res)
		if res != nil {
			s.displace(res)
		}
	}
}

// fault returns why the newest version of a resource must not be sent to Envoy; empty: it may be.
func (s *share) fault(name string) string {
	res := s.newest[name]
	if res == nil {
		return ""
	}
	if owner := s.owners()[name]; owner != nil && owner != s {
		return fmt.Sprintf("resource %q belongs to another xds-server of this Envoy", name)
	}
	return res.Fault
}
