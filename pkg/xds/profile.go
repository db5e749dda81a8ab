package xds

import (
	"maps"
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/pkg/rollout"
	"github.com/fairlead/fairlead/pkg/xds/csds"
	"github.com/fairlead/fairlead/pkg/xds/progress"
)

// maxAnnounced bounds the nodes outside of a first wave that are announced because they refuse something.
const maxAnnounced = 200

// rendering is what a profile makes of an installation. It is never changed.
type rendering struct {
	profile rollout.Profile
	inst    model.Installation
	version envoy.Version // the newest that is rendered for
	first   *model.Installation
}

// profiles are what the record of rollouts gives to nodes. They are never changed.
type profiles struct {
	record        *rollout.Record // nil: there is none, and all nodes get the target
	current, next rendering
	members       map[rollout.Node]bool // of the first wave
	problem       string                // why a recorded profile is not rendered as it is recorded; empty: all are
}

// targetOf is what a server with this configuration makes, if no record says otherwise.
func targetOf(inst model.Installation) rollout.Profile {
	return rollout.SettingsOf(inst, envoy.Current.String()).Profile()
}

// newProfiles reads a record. What this build cannot render is rendered for the nearest version; without a profile that
// can be read, nodes keep to the current one, and if that is the one, to the target.
func newProfiles(inst model.Installation, target rollout.Profile, record *rollout.Record) profiles {
	own := rendering{profile: target, inst: inst, version: envoy.Current}
	p := profiles{record: record, current: own, next: own, members: map[rollout.Node]bool{}}
	if record == nil {
		return p
	}
	if first, problem := render(record.First, inst, own); problem == "" {
		own.first = &first.inst
	}
	p.current, p.problem = render(record.Current, inst, own)
	p.next = p.current
	if record.Phase != rollout.PhaseFirst && record.Phase != rollout.PhaseRest {
		return p
	}
	var problem string
	if p.next, problem = render(record.Next, inst, p.current); p.problem == "" {
		p.problem = problem
	}
	for _, m := range record.Nodes {
		p.members[m.Node] = true
	}
	return p
}

// render reads a profile. Where it cannot it returns another rendering; problem is why what it returns is not the
// profile.
func render(profile rollout.Profile, inst model.Installation, otherwise rendering) (r rendering, problem string) {
	settings, err := profile.Settings()
	if err == nil {
		inst, err = settings.Installation(inst)
	}
	if err == nil {
		err = inst.ValidateShared()
	}
	if err != nil {
		return otherwise, "profile " + profile.ID() + " is not rendered: " + err.Error()
	}
	version, exact := envoy.RenderedFor(settings.Version)
	if !exact {
		problem = "profile " + profile.ID() + " is for version " + csds.Printable(settings.Version, maxQuoted) +
			": rendered for " + version.String()
	}
	return rendering{profile, inst, version, otherwise.first}, problem
}

// of is what a node is served.
func (p *profiles) of(node model.Subject) rendering {
	switch {
	case p.record == nil:
		return p.current
	case p.record.Phase == rollout.PhaseRest, p.record.Phase == rollout.PhaseFirst && p.members[rollout.NodeOf(node)]:
		return p.next
	}
	return p.current
}

// differs reports whether a node is served another profile than the current one.
func (p *profiles) differs(node model.Subject) bool { return p.of(node).profile != p.current.profile }

// profileOf is the short name of the profile that a node is served.
func (s *Server) profileOf(node model.Subject) string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.profiles.of(node).profile.ID()
}

// SetRollout replaces the record of rollouts; nil: there is none, and all nodes get what this server is configured for.
// Gateways are sent what changes for them at once, edges as after a change of the gateways.
func (s *Server) SetRollout(record *rollout.Record) {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	now, before := newProfiles(s.inst, s.target, record), s.profiles
	if now.problem != "" && now.problem != before.problem {
		s.log.Warn("recorded profile not rendered as recorded", "error", now.problem)
	}
	s.mu.Lock()
	s.profiles = now
	s.mu.Unlock()
	changes := changes{}
	s.setCommon(changes)
	s.send(changes)
	s.setVariants() // after what all get: a gateway whose variant became what all get is sent nothing
	s.relisten()
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := range s.edges {
		if before.of(e.subject).profile != now.of(e.subject).profile {
			s.telling.waiting[e] = true
		}
	}
	s.tell()
}

// setVariants gives the gateways of the next profile their form of the Envoy clusters that all gateways have. Their
// names are the same by every profile, and the Envoy clusters of tunnels depend on none. The caller holds s.publishing.
func (s *Server) setVariants() {
	p, static := &s.profiles, set(envoy.StaticClusters())
	variants := map[string]types.Resource{}
	if p.next.profile != p.current.profile {
		next, errs := check(envoy.GatewayClusters(p.next.inst), static, static)
		s.leftOut(resourcev3.ClusterType, errs)
		for name, r := range next {
			if s.common[name] != nil && !same(s.common[name], r) {
				variants[name] = r
			}
		}
	}
	s.mu.RLock()
	hosts := slices.Collect(maps.Keys(s.hosts))
	s.mu.RUnlock()
	readers := map[*reader]bool{}
	for _, st := range hosts {
		readers[st.reader] = p.differs(st.subject)
	}
	if err := s.gateways.vary(variants, readers); err != nil {
		s.log.Error("cannot send Envoy clusters", "type_url", resourcev3.ClusterType, "error", err)
	}
}

// vary replaces the variants of a feed, and says which readers get them.
func (f *feed) vary(variants map[string]types.Resource, readers map[*reader]bool) error {
	encoded := map[string]*discoveryv3.Resource{}
	for name, r := range variants {
		value, err := cachev3.MarshalResource(r)
		if err != nil {
			return err
		}
		encoded[name] = &discoveryv3.Resource{
			Name: name, Version: cachev3.HashResource(value), Resource: &anypb.Any{TypeUrl: f.typeURL, Value: value},
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.variants
	f.variants = encoded
	for by, has := range readers {
		if by.variants == has && (!has || sameVersions(before, encoded)) {
			continue
		}
		by.variants, by.seen = has, unseen
		if w := f.watches[by]; w != nil {
			f.answer(by, w, false)
		}
	}
	return nil
}

func sameVersions(a, b map[string]*discoveryv3.Resource) bool {
	return maps.EqualFunc(a, b, func(a, b *discoveryv3.Resource) bool { return a.GetVersion() == b.GetVersion() })
}

// of is a resource as a reader gets it; nil: there is none. The caller holds f.mu.
func (f *feed) of(by *reader, name string) *discoveryv3.Resource {
	r := f.resources[name]
	if variant := f.variants[name]; by.variants && r != nil && variant != nil {
		return variant
	}
	return r
}

// Profiles is what this server tells the controller of profiles: its target, what the nodes of a first wave run, and
// which nodes refuse something.
func (s *Server) Profiles() *reportv1.ProfileState {
	state := &reportv1.ProfileState{Target: string(s.target)}
	s.mu.RLock()
	p := s.profiles
	waiting := maps.Clone(s.telling.waiting)
	hosts, edges := slices.Collect(maps.Keys(s.hosts)), slices.Collect(maps.Keys(s.edges))
	s.mu.RUnlock()
	state.Problem = p.problem
	refusing := 0
	add := func(subject model.Subject, progress *[2]progress.Progress, answered bool) {
		state.Total++
		if answered {
			state.Answered++
		}
		node, refuses := rollout.NodeOf(subject), progress[0].Refuses() || progress[1].Refuses()
		if refuses && !p.members[node] {
			refusing++
		}
		if !p.members[node] && (!refuses || refusing > maxAnnounced) {
			return
		}
		announced := &reportv1.NodeProfile{
			Node: subject.Node, TunnelId: subject.ID, Profile: p.of(subject).profile.ID(), Applied: answered && !refuses,
		}
		if refuses {
			announced.Refusal = refusalOf(progress)
		}
		state.Nodes = append(state.Nodes, announced)
	}
	for _, st := range hosts {
		answered := !st.progress[0].Outstanding() && !st.progress[1].Outstanding()
		add(st.subject, &st.progress, answered)
	}
	for _, e := range edges {
		add(e.subject, &e.progress, !waiting[e] && e.settled())
	}
	slices.SortFunc(state.GetNodes(), func(a, b *reportv1.NodeProfile) int {
		first := rollout.Node{Name: a.GetNode(), ID: a.GetTunnelId()}
		return first.Compare(rollout.Node{Name: b.GetNode(), ID: b.GetTunnelId()})
	})
	return state
}

// settled reports whether an edge has answered all that there is for it.
func (e *edge) settled() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.kinds {
		if k := &e.kinds[i]; !k.asked || k.stale || !k.waiting {
			return false
		}
	}
	return !e.sending
}

// refusalOf is why a node refuses something, in its own words.
func refusalOf(progress *[2]progress.Progress) string {
	for i := range progress {
		if name, why := progress[i].Answers.FirstRejection(); name != "" {
			return name + ": " + why
		}
	}
	return "the reason is not known"
}
