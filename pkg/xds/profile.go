package xds

import (
	"maps"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"github.com/fairlead/fairlead/internal/printable"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/pkg/rollout"
	"github.com/fairlead/fairlead/pkg/xds/feed"
	"github.com/fairlead/fairlead/pkg/xds/progress"
)

// maxAnnounced is how many nodes outside of a first wave are announced because they reject something.
const maxAnnounced = 200

// maxAnnouncedOfTunnel is how many of them are edges of one tunnel, whose faults count once: more than a workload
// cluster has. So the edges of one tunnel cannot take the place of all others.
const maxAnnouncedOfTunnel = 16

// rendering is the result of a profile for an installation. It never changes.
type rendering struct {
	profile rollout.Profile
	inst    model.Installation
	version envoy.Version // the newest that is rendered for
	initial *model.Installation
	size    int // of the fleet: see model.Installation.LanesFor
}

// profiles are the profiles that nodes are served by the record of rollouts. They never change.
type profiles struct {
	record        *rollout.Record // nil: there is none, and all nodes are served the target
	current, next rendering
	members       map[rollout.Node]bool // of the first wave
	problem       string                // why a recorded profile is not rendered exactly; empty: all are
}

// targetOf returns the profile of a server with this configuration, which applies without a record.
func targetOf(inst model.Installation) rollout.Profile {
	return rollout.SettingsOf(inst, envoy.Current.String()).Profile()
}

// newProfiles evaluates a record. A version that this build cannot render is replaced by the nearest one. If a
// profile cannot be read, nodes keep the current one; if the current one cannot be read, they get the target.
func newProfiles(inst model.Installation, target rollout.Profile, record *rollout.Record) profiles {
	own := rendering{profile: target, inst: inst, version: envoy.Current}
	p := profiles{record: record, current: own, next: own, members: map[rollout.Node]bool{}}
	if record == nil {
		return p
	}
	if first, problem := render(record.Initial, inst, own); problem == "" {
		own.initial = &first.inst
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

// render renders a profile. If it cannot, it returns the rendering otherwise. problem is empty, or states how the
// result differs from the profile.
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
		problem = "profile " + profile.ID() + " is for version " + printable.Text(settings.Version, maxQuoted) +
			": rendered for " + version.String()
	}
	return rendering{profile: profile, inst: inst, version: version, initial: otherwise.initial}, problem
}

// of returns what a node is served.
func (p *profiles) of(node model.Subject) rendering {
	if p.record == nil {
		return p.current
	}
	r := p.current
	if p.record.Phase == rollout.PhaseRest ||
		p.record.Phase == rollout.PhaseFirst && p.members[rollout.NodeOf(node)] {
		r = p.next
	}
	r.size = p.record.Size
	return r
}

// differs reports whether a node is served another profile than the current one.
func (p *profiles) differs(node model.Subject) bool { return p.of(node).profile != p.current.profile }

// SetRollout replaces the record of rollouts; nil: there is none, and all nodes are served what this server is
// configured for. Gateways receive their changes at once, edges in the same way as a change of the gateways.
func (s *Server) SetRollout(record *rollout.Record) {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	now, before := newProfiles(s.inst, s.target, record), s.profiles
	if now.problem != "" && now.problem != before.problem {
		s.log.Warn("cannot render recorded profile as recorded", "error", now.problem)
	}
	s.mu.Lock()
	s.profiles = now
	s.mu.Unlock()
	changes := newChanges()
	s.setCommon(changes)
	s.send(changes)
	s.setVariants() // after setCommon: a gateway whose variant is now the common resource receives nothing
	s.relisten()
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := range s.edges {
		was, is := before.of(e.subject), now.of(e.subject)
		if was.profile != is.profile || was.size != is.size {
			s.outdated.waiting[e] = true
		}
	}
	s.notify()
}

// gatewayClusters returns the Envoy clusters of all gateways by the installation of one of the profiles. While only one
// of these has gateways forward, those of the other one have the Envoy clusters for it too, and do not use them.
func (p *profiles) gatewayClusters(inst model.Installation) []*clusterv3.Cluster {
	all := envoy.GatewayClusters(inst)
	if inst.GatewaysPerTunnel == 0 && p.current.inst.GatewaysPerTunnel+p.next.inst.GatewaysPerTunnel > 0 {
		all = append(all, envoy.PeerClusters(inst)...)
	}
	return all
}

// setVariants updates the variants of Envoy clusters for the gateways of the next profile. Only Envoy clusters that
// all gateways have get variants. Their names are the same in every profile, and the Envoy clusters of tunnels
// depend on no profile. The caller holds s.publishing.
func (s *Server) setVariants() {
	p, static := &s.profiles, set(envoy.StaticClusters(model.RoleGateway))
	variants := map[string]types.Resource{}
	if p.next.profile != p.current.profile {
		next, errs := check(p.gatewayClusters(p.next.inst), static, static)
		s.leftOut(resourcev3.ClusterType, errs)
		for name, r := range next {
			if s.common[name] != nil && !same(s.common[name], r) {
				variants[name] = r
			}
		}
	}
	s.mu.RLock()
	hosts := slices.Collect(maps.Keys(s.gatewayStreams))
	s.mu.RUnlock()
	readers := map[*feed.Reader]bool{}
	for _, st := range hosts {
		readers[st.positions[0].reader] = p.differs(st.subject)
	}
	if err := s.gateways.Vary(variants, readers); err != nil {
		s.log.Error("cannot send Envoy clusters", "type_url", resourcev3.ClusterType, "error", err)
	}
	s.notifyGateways(0)
}

// Profiles returns what this server announces to the controller: its target, what the nodes of a first wave run, and
// which nodes reject something.
func (s *Server) Profiles() *reportv1.ProfileState {
	state := &reportv1.ProfileState{Target: string(s.target)}
	s.mu.RLock()
	p := s.profiles
	waiting := maps.Clone(s.outdated.waiting)
	hosts, edges := slices.Collect(maps.Keys(s.gatewayStreams)), slices.Collect(maps.Keys(s.edges))
	s.mu.RUnlock()
	state.Problem = p.problem
	var refusing []*reportv1.NodeProfile
	all := make(map[model.Subject]bool, len(hosts)+len(edges)) // by node, which may have several streams
	add := func(subject model.Subject, progress []progress.Progress, answered bool) {
		before, twice := all[subject]
		all[subject] = answered && (before || !twice)
		node, refuses := rollout.NodeOf(subject), anyOf(progress, (*progressOf).Refuses)
		if !p.members[node] && !refuses {
			return
		}
		of := &reportv1.NodeProfile{
			Node: subject.Node, TunnelId: subject.ID, Profile: p.of(subject).profile.ID(), Applied: answered && !refuses,
		}
		if refuses {
			of.Refusal = refusalOf(progress)
		}
		if p.members[node] {
			state.Nodes = append(state.Nodes, of)
		} else {
			refusing = append(refusing, of)
		}
	}
	for _, st := range hosts {
		add(st.subject, st.progress, st.upToDate())
	}
	for _, e := range edges {
		add(e.subject, e.progress, !waiting[e] && e.upToDate())
	}
	for _, answered := range all {
		state.Total++
		if answered {
			state.Answered++
		}
	}
	state.Nodes = append(state.Nodes, announced(refusing)...)
	sortNodes(state.GetNodes())
	return state
}

// announced returns which of the nodes that reject something are announced. It is the same selection every time, so
// that an unchanged state is not sent again.
func announced(refusing []*reportv1.NodeProfile) (some []*reportv1.NodeProfile) {
	sortNodes(refusing)
	ofTunnel := map[string]int{}
	for _, n := range refusing {
		if id := n.GetTunnelId(); id != "" {
			if ofTunnel[id]++; ofTunnel[id] > maxAnnouncedOfTunnel {
				continue
			}
		}
		if some = append(some, n); len(some) == maxAnnounced {
			break
		}
	}
	return some
}

func sortNodes(nodes []*reportv1.NodeProfile) {
	slices.SortFunc(nodes, func(a, b *reportv1.NodeProfile) int {
		first := rollout.Node{Name: a.GetNode(), ID: a.GetTunnelId()}
		return first.Compare(rollout.Node{Name: b.GetNode(), ID: b.GetTunnelId()})
	})
}

// refusalOf returns the name of a resource that a node rejects, and the node's reason.
func refusalOf(progress []progress.Progress) string {
	for i := range progress {
		if name, why := progress[i].Answers.FirstRejection(); name != "" {
			return name + ": " + why
		}
	}
	return "the reason is not known"
}
