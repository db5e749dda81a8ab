package xdsproxy

import (
	"maps"
	"slices"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// resource is one as it came. It is never changed.
type resource struct {
	message *discoveryv3.Resource
	fault   error // why Envoy may not see it
}

// version is empty for nil, which stands for a resource that is not there. No resource has an empty version.
func (r *resource) version() string {
	if r == nil {
		return ""
	}
	return r.message.GetVersion()
}

// set is resources by name. In a set of changes nil stands for a removal.
type set map[string]*resource

// differing are the names whose versions are not the same in two sets, in order.
func differing(a, b set) []string {
	var names []string
	for name, res := range a {
		if b[name].version() != res.version() {
			names = append(names, name)
		}
	}
	for name := range b {
		if _, both := a[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// share is what one upstream gives of one type. The proxy's lock guards it.
type share struct {
	of    *contribution
	kind  kind
	known bool // it was on disk, or the xds-server has answered: that there is nothing, perhaps
	asked bool // the xds-server has answered since the start of the agent
	whole bool // Envoy has had a whole answer, or what was on disk: a part of it is not worth writing

	newest   set                 // what the xds-server believes that is here; nil: no answer yet
	base     set                 // what it was told at the start of the stream; nil: it has answered since
	offered  set                 // what Envoy is to have: the newest, but what is refused
	accepted set                 // what Envoy accepted last: what is on disk
	refused  map[string]*refusal // by name
	pending  pending
	nonce    string // of the last response

	unwritten     bool // accepted or what is refused for good differs from what is on disk
	goodUnwritten bool
	files         map[string]*file // by ending
}

// refusal is a version of one resource that Envoy does not get.
type refusal struct {
	*group
	version string    // empty: that there is none
	instead *resource // what Envoy keeps; nil: nothing
}

// group is what was refused together. A change of any of them is a reason to try them all again.
type group struct {
	names  []string
	why    *statusv1.Status
	crashy bool // Envoy ended with it: to be remembered on disk
}

// pending is what the xds-server waits for.
type pending struct {
	nonces  []string          // of responses that are not answered; more than one if it does not wait
	waiting map[string]string // versions that Envoy has not accepted yet, by name; empty: a removal
	errs    []*statusv1.Status
}

func newShare(c *contribution, k kind) *share {
	return &share{
		of: c, kind: k, offered: set{}, accepted: set{}, refused: map[string]*refusal{},
		pending: pending{waiting: map[string]string{}}, files: map[string]*file{acceptedEnding: {}, goodEnding: {}},
	}
}

// upstream is whose it is; empty for nil: nobody's.
func (s *share) upstream() string {
	if s == nil {
		return ""
	}
	return s.of.name
}

func (s *share) owners() map[string]*share { return s.of.proxy.owners[s.kind] }

// offer says what Envoy is to have under a name; nil: nothing.
func (s *share) offer(name string, res *resource) {
	if res == nil {
		delete(s.offered, name)
	} else {
		s.offered[name] = res
		s.owners()[name] = s
	}
	if t := s.of.proxy.table(s.kind); t != nil {
		t.todo[name] = true
	}
	s.disown(name)
}

// accept records what Envoy has under a name; nil: nothing.
func (s *share) accept(name string, res *resource) {
	if owner := s.owners()[name]; s.of.forgotten || owner != nil && owner != s {
		return
	}
	if s.accepted[name].version() != res.version() {
		if res == nil {
			delete(s.accepted, name)
		} else {
			s.accepted[name] = res
			s.owners()[name] = s
		}
		s.unwritten = true
		s.of.unproven, s.of.accepted = true, time.Now()
		poke(s.of.wake)
	}
	if version, ok := s.pending.waiting[name]; ok && version == res.version() {
		delete(s.pending.waiting, name)
	}
	s.disown(name)
}

// disown gives up a name of which nothing is left, so that another upstream may have it.
func (s *share) disown(name string) {
	if s.offered[name] == nil && s.accepted[name] == nil && s.refused[name] == nil && s.owners()[name] == s {
		delete(s.owners(), name)
	}
}

// agree records as accepted what Envoy has already.
func (s *share) agree(t *table, name string) {
	have, has := t.have[name]
	if want := s.offered[name]; has == (want != nil) && bare(have) == want.version() {
		s.accept(name, want)
	}
}

// refuse gives up changes; Envoy is to have something else instead.
func (s *share) refuse(changes set, why *statusv1.Status, crashy bool, instead set) {
	why = detailed(why, s.kind, changes.versions(), timestamppb.Now())
	g := &group{names: slices.Sorted(maps.Keys(changes)), why: why, crashy: crashy}
	for _, name := range g.names {
		s.refused[name] = &refusal{group: g, version: changes[name].version(), instead: instead[name]}
		delete(s.pending.waiting, name)
		s.offer(name, instead[name])
	}
	if crashy {
		s.unwritten = true
		poke(s.of.wake)
	}
	s.object(why)
}

// object tells the xds-server of a refusal, with the answer that it waits for or with one more.
func (s *share) object(why *statusv1.Status) {
	if len(s.pending.nonces) > 0 {
		s.pending.errs = append(s.pending.errs, why)
	} else if st := s.of.stream; st != nil && s.nonce != "" {
		st.answer(s.kind, s.nonce, why)
	}
	s.of.proxy.signal()
}

// finish answers the xds-server if nothing is left to wait for.
func (s *share) finish() {
	p := &s.pending
	if len(p.waiting) > 0 || len(p.nonces) == 0 {
		return
	}
	if st := s.of.stream; st != nil {
		for _, nonce := range p.nonces {
			st.answer(s.kind, nonce, join(p.errs))
		}
	}
	p.nonces, p.errs = nil, nil
	if !s.whole {
		s.whole, s.unwritten = true, true
		poke(s.of.wake)
	}
}

// maxReasons bounds the reasons that one NACK puts together.
const maxReasons = 32

// join puts reasons together; nil if there is none.
func join(errs []*statusv1.Status) *statusv1.Status {
	if len(errs) == 0 {
		return nil
	}
	var reasons []string
	for _, err := range errs {
		if reason := err.GetMessage(); !slices.Contains(reasons, reason) && len(reasons) < maxReasons {
			reasons = append(reasons, reason)
		}
	}
	return &statusv1.Status{Code: errs[0].GetCode(), Message: bounded(strings.Join(reasons, "; ")), Details: details(errs)}
}

// newStatus is what a NACK says.
func newStatus(code codes.Code, message string) *statusv1.Status {
	return &statusv1.Status{Code: int32(code), Message: bounded(message)}
}
