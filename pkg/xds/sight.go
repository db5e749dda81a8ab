package xds

import (
	"cmp"
	"maps"
	"strings"
	"sync"
	"time"
	"unicode"
	"unique"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
)

const (
	// maxRefusals is how many refused resources of one type are remembered of one node, and maxRefusal how much of a reason.
	maxRefusals, maxRefusal = 32, 1 << 10
	// maxAgent is how much of a version is shown.
	maxAgent = 64
)

// sight is what people are told of one type on one stream: what waits for an answer, and what is refused. What was accepted is all the rest,
// so a stream on which all is well has nothing here.
type sight struct {
	mu       sync.Mutex
	began    int64  // when it was asked for first, as all times here in Unix ns; 0: it was not
	sent     int64  // when something was sent last; 0: nothing was
	nonce    string // of what was sent last
	pending  []string
	refusals map[string]*refusals // by name; nil: none
	agent    unique.Handle[string]
}

// refusals are those of resources that were refused together. Each has its own version.
type refusals struct {
	versions map[string]string // by name
	why      string
	since    time.Time
}

// response notes what is sent. It gives what was refused another chance where it has changed, and what was refused with it: as pkg/xdsproxy does.
func (s *sight) response(r *discoveryv3.DeltaDiscoveryResponse, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent, s.nonce = now.UnixNano(), r.GetNonce()
	s.pending = make([]string, 0, len(r.GetResources())+len(r.GetRemovedResources()))
	for _, resource := range r.GetResources() {
		s.pending = append(s.pending, resource.GetName())
	}
	s.pending = append(s.pending, r.GetRemovedResources()...)
	for _, name := range s.pending {
		s.pardon(name)
	}
}

func (s *sight) pardon(name string) {
	if group := s.refusals[name]; group != nil {
		maps.DeleteFunc(s.refusals, func(_ string, other *refusals) bool { return other == group })
	}
}

// request notes what a request says.
func (s *sight) request(r *discoveryv3.DeltaDiscoveryRequest, now time.Time) {
	detail := r.GetErrorDetail()
	var groups []*statusv3.ClientConfig // decoded before the lock is taken: what lists nodes waits for it
	for _, packed := range detail.GetDetails()[:min(len(detail.GetDetails()), maxRefusals)] {
		group := &statusv3.ClientConfig{}
		if packed.UnmarshalTo(group) == nil {
			groups = append(groups, group)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.began == 0 {
		s.began = now.UnixNano()
	}
	if node := r.GetNode(); node != nil {
		s.agent = unique.Make(printable(node.GetUserAgentVersion(), maxAgent))
	}
	if r.GetResponseNonce() == "" {
		return
	}
	names := s.pending
	if r.GetResponseNonce() == s.nonce {
		s.pending = nil
	} else {
		names = nil
	}
	if detail == nil {
		return
	}
	for _, group := range groups {
		s.refuse(group, now)
	}
	if len(groups) == 0 { // an agent that does not say which
		group := &refusals{versions: map[string]string{}, why: printable(detail.GetMessage(), maxRefusal), since: now}
		for _, name := range names {
			s.add(name, "", group)
		}
	}
}

// refuse remembers what was refused together.
func (s *sight) refuse(said *statusv3.ClientConfig, now time.Time) {
	group := &refusals{versions: map[string]string{}, since: now}
	for _, r := range said.GetGenericXdsConfigs() {
		state := r.GetErrorState()
		group.why = cmp.Or(group.why, printable(state.GetDetails(), maxRefusal))
		// By the node's clock, which may be wrong, but it can't be later than now.
		if at := state.GetLastUpdateAttempt(); at != nil && at.CheckValid() == nil && at.AsTime().Before(group.since) {
			group.since = at.AsTime()
		}
		s.add(r.GetName(), printable(state.GetVersionInfo(), maxAgent), group)
	}
}

func (s *sight) add(name, version string, group *refusals) {
	if name == "" || s.refusals[name] == nil && len(s.refusals) >= maxRefusals {
		return
	}
	if s.refusals == nil {
		s.refusals = map[string]*refusals{}
	}
	s.refusals[name] = group
	group.versions[name] = version
}

// outcome is what is known of one stream's type at one time.
type outcome struct {
	asked    bool
	sent     time.Time // zero: nothing was
	pending  map[string]bool
	refusals map[string]*refusals // never changed
}

func (s *sight) outcome() outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := outcome{asked: s.began != 0, pending: make(map[string]bool, len(s.pending)), refusals: maps.Clone(s.refusals)}
	if s.sent != 0 {
		o.sent = time.Unix(0, s.sent)
	}
	for _, name := range s.pending {
		o.pending[name] = true
	}
	return o
}

// who is the version of the agent, and since when it is connected.
func (s *sight) who() (version string, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.began != 0 {
		since = time.Unix(0, s.began)
	}
	if s.agent != (unique.Handle[string]{}) {
		version = s.agent.Value()
	}
	return version, since
}

// printable is what of a text may be shown, cut where it is too long.
func printable(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
