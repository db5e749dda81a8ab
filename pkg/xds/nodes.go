package xds

import (
	"maps"
	"slices"
	"strings"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"

	"github.com/fairlead/fairlead/pkg/deltaxds"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/rollout"
	"github.com/fairlead/fairlead/pkg/xds/csds"
	"github.com/fairlead/fairlead/pkg/xds/progress"
)

// Status returns the client status discovery service of this server's nodes.
func (s *Server) Status() *csds.Service { return csds.NewService(s.nodes) }

// nodes lists the nodes with an open stream, in the order of their names. The list is made without the lock.
func (s *Server) nodes() []csds.Node {
	s.mu.RLock()
	p := s.profiles
	hosts, edges := slices.Collect(maps.Keys(s.gatewayStreams)), slices.Collect(maps.Keys(s.edges))
	s.mu.RUnlock()
	all := make([]csds.Node, 0, len(hosts)+len(edges))
	for _, st := range hosts {
		all = append(all, nodeOf(st.subject, p.of(st.subject).profile, st.progress, st.publishedOf))
	}
	for _, e := range edges {
		all = append(all, nodeOf(e.subject, p.of(e.subject).profile, e.progress, e.publishedOf))
	}
	slices.SortFunc(all, func(a, b csds.Node) int { return strings.Compare(a.Subject.Node, b.Subject.Node) })
	return all
}

// publishedOf returns the published resources of one type whose names wanted accepts, in name order.
type publishedOf func(typeURL string, wanted func(name string) bool) []csds.Resource

// nodeOf describes one node.
func nodeOf(
	subject model.Subject, profile rollout.Profile, progress []progress.Progress, published publishedOf,
) csds.Node {
	all := typesOf(subject.Role)
	n := csds.Node{Subject: subject, Profile: profile.ID(), Types: make([]csds.Type, len(all))}
	for i, typeURL := range all {
		ofType := func(wanted func(string) bool) []csds.Resource { return published(typeURL, wanted) }
		n.Types[i] = csds.Type{URL: typeURL, Answers: &progress[i].Answers, Published: ofType}
	}
	return n
}

func (st *gateway) publishedOf(typeURL string, wanted func(name string) bool) []csds.Resource {
	kind := slices.Index(order[:], typeURL)
	if kind == listenersKind {
		all, _ := st.server.gatewayListeners(st) // what is left out is logged when it is sent
		return describe(typeURL, all, wanted)
	}
	has := func(r *deltaxds.Resource) bool {
		st.mu.Lock()
		defer st.mu.Unlock()
		return st.state.Has(kind, r)
	}
	of := st.server.sharedOf(kind)
	return of.Published(st.positions[kind].reader, wanted, has, &of.marks)
}

func (e *edge) publishedOf(typeURL string, wanted func(name string) bool) []csds.Resource {
	e.mu.Lock()
	named, dial := e.named, e.dial
	e.mu.Unlock()
	rendering, cluster, ok := e.server.servedTo(e.subject)
	if !ok || !named {
		return nil
	}
	return describe(typeURL, e.server.edgeResources(rendering, cluster, e.subject.Node, dial)[typeURL], wanted)
}

// describe encodes the resources that wanted accepts, in name order. It leaves out a resource that cannot be encoded.
func describe(typeURL string, resources map[string]types.Resource, wanted func(string) bool) (all []csds.Resource) {
	for _, name := range slices.Sorted(maps.Keys(resources)) {
		if !wanted(name) {
			continue
		}
		if r, err := deltaxds.Encode(typeURL, name, resources[name]); err == nil {
			all = append(all, csds.Resource{Name: name, Version: r.Version(), Body: r.Message().GetResource()})
		}
	}
	return all
}
