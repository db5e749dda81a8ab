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

// resource is a resource as it came. It is immutable.
type resource struct {
	message *discoveryv3.Resource
	fault   error // why Envoy must not get it
}

// version returns the version; empty for nil, which is an absent resource. No resource has an empty version.
func (r *resource) version() string {
	if r == nil {
		return ""
	}
	return r.message.GetVersion()
}

// set holds resources by name. In a set of changes nil is a removal.
type set map[string]*resource

// differing returns the names whose versions differ between two sets, in order.
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

// share holds one upstream's resources of one type. The proxy's lock guards it.
type share struct {
	of    *contribution
	kind  kind
	known bool // it was on disk, or the xds-server has answered, possibly without resources
	asked bool // the xds-server has answered since the agent started
	open  bool // requested on the open stream
	whole bool // Envoy has had a complete answer, or what was on disk; a part is not worth writing

	newest   set                   // what the xds-server assumes here; nil: no answer yet
	base     set                   // versions named at the start of the stream; nil: the xds-server has answered since
	offered  set                   // what Envoy is to have: newest without the rejected resources
	accepted set                   // what Envoy accepted last, as on disk
	rejected map[string]*rejection // by name
	yielded  map[string]bool       // listeners that are not offered, because another upstream has their address
	pending  pending
	nonce    string // of the last response

	unwritten     bool // accepted, or what is rejected after crashes, differs from the disk
	goodUnwritten bool
	files         map[string]*file // by extension
}

// rejection is a rejected version of one resource.
type rejection struct {
	*group
	version string    // empty: the removal is rejected
	instead *resource // what Envoy keeps; nil: nothing
}

// group is a set of resources that were rejected together. A change of any of them makes the proxy try them all again.
type group struct {
	names      []string
	why        *statusv1.Status
	afterCrash bool // Envoy ended with it; saved on disk
}

// pending is what the xds-server's answer waits for.
type pending struct {
	nonces  []string          // of unanswered responses; more than one if the xds-server does not wait
	waiting map[string]string // versions that Envoy has not accepted yet, by name; empty: a removal
	errs    []*statusv1.Status
}

func newShare(c *contribution, k kind) *share {
	return &share{
		of: c, kind: k, offered: set{}, accepted: set{}, rejected: map[string]*rejection{},
		yielded: map[string]bool{},
		pending: pending{waiting: map[string]string{}}, files: map[string]*file{acceptedEnding: {}, goodEnding: {}},
	}
}

// upstream returns the name of the upstream; empty for nil.
func (s *share) upstream() string {
	if s == nil {
		return ""
	}
	return s.of.name
}

func (s *share) owners() map[string]*share { return s.of.proxy.owners[s.kind] }

// offer sets what Envoy is to have under a name; nil: nothing.
func (s *share) offer(name string, res *resource) {
	if res == nil {
		delete(s.offered, name)
	} else {
		s.offered[name] = res
		s.owners()[name] = s
		s.place(name, res)
	}
	if t := s.of.proxy.table(s.kind); t != nil {
		t.todo[name] = true
	}
	s.disown(name)
}

// accept records what Envoy has under a name; nil: nothing.
func (s *share) accept(name string, res *resource) {
	if owner := s.owners()[name]; s.of.removed || owner != nil && owner != s {
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
		notify(s.of.notified)
	}
	if version, ok := s.pending.waiting[name]; ok && version == res.version() {
		delete(s.pending.waiting, name)
	}
	s.disown(name)
}

// disown releases a name without any resource, so that another upstream may use it.
func (s *share) disown(name string) {
	if s.offered[name] == nil && s.accepted[name] == nil && s.rejected[name] == nil && s.owners()[name] == s {
		delete(s.owners(), name)
	}
}

// agree records as accepted what Envoy already has.
func (s *share) agree(t *table, name string) {
	have, has := t.have[name]
	if want := s.offered[name]; has == (want != nil) && bare(have) == want.version() {
		s.accept(name, want)
	}
}

// reject rejects changes and offers Envoy something else instead.
func (s *share) reject(changes set, why *statusv1.Status, afterCrash bool, instead set) {
	why = detailed(why, s.kind, changes.versions(), timestamppb.Now())
	g := &group{names: slices.Sorted(maps.Keys(changes)), why: why, afterCrash: afterCrash}
	for _, name := range g.names {
		s.rejected[name] = &rejection{group: g, version: changes[name].version(), instead: instead[name]}
		delete(s.pending.waiting, name)
		s.offer(name, instead[name])
	}
	if afterCrash {
		s.unwritten = true
		notify(s.of.notified)
	}
	s.object(why)
}

// object sends the xds-server a rejection, with the answer that it waits for or with an additional one.
func (s *share) object(why *statusv1.Status) {
	if len(s.pending.nonces) > 0 {
		s.pending.errs = append(s.pending.errs, why)
	} else if st := s.of.stream; st != nil && s.nonce != "" {
		st.answer(s.kind, s.nonce, why)
	}
	s.of.proxy.notifyChanged()
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
		notify(s.of.notified)
	}
}

// maxReasons bounds the reasons in one NACK.
const maxReasons = 32

// join combines reasons; nil if there is none.
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

// newStatus returns the error of a NACK.
func newStatus(code codes.Code, message string) *statusv1.Status {
	return &statusv1.Status{Code: int32(code), Message: bounded(message)}
}
