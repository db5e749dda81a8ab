package xds

import (
	"maps"
	"slices"
	"strings"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/xds/csds"
	"github.com/fairlead/fairlead/pkg/xds/progress"
)

// Status returns the client status discovery service of this server's nodes.
func (s *Server) Status() *csds.Service { return csds.NewService(s.nodes) }

// nodes lists the nodes with an open stream, in the order of their names.
func (s *Server) nodes() []csds.Node {
	s.mu.RLock()
	all := make([]csds.Node, 0, len(s.gatewayStreams)+len(s.edges))
	for st := range s.gatewayStreams {
		all = append(all, s.node(st.subject, st.progress[:], st.publishedOf))
	}
	for e := range s.edges {
		all = append(all, s.node(e.subject, e.progress[:], e.publishedOf))
	}
	s.mu.RUnlock()
	slices.SortFunc(all, func(a, b csds.Node) int { return strings.Compare(a.Subject.Node, b.Subject.Node) })
	return all
}

// publishedOf returns the published resources of one type whose names wanted accepts, in name order.
type publishedOf func(typeURL string, wanted func(name string) bool) []csds.Resource

// node describes one node. The caller holds s.mu.
func (s *Server) node(subject model.Subject, progress []progress.Progress, published publishedOf) csds.Node {
	all := typesOf(subject.Role)
	n := csds.Node{Subject: subject, Profile: s.profiles.of(subject).profile.ID(), Types: make([]csds.Type, len(all))}
	for i, typeURL := range all {
		ofType := func(wanted func(string) bool) []csds.Resource { return published(typeURL, wanted) }
		n.Types[i] = csds.Type{URL: typeURL, Answers: &progress[i].Answers, Published: ofType}
	}
	return n
}

func (st *stream) publishedOf(typeURL string, wanted func(string) bool) []csds.Resource {
	s := st.server
	if of := s.sharedOf(typeURL); of != nil {
		return of.Published(st.positions[typeURL].reader, wanted, &of.marks)
	}
	if cache := st.caches[typeURL]; cache != nil { // a stream in the server's table has its caches
		return describe(typeURL, cache.GetResources(), wanted)
	}
	return nil
}

func (e *edge) publishedOf(typeURL string, wanted func(string) bool) []csds.Resource {
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
		if value, err := cachev3.MarshalResource(resources[name]); err == nil {
			body := &anypb.Any{TypeUrl: typeURL, Value: value}
			all = append(all, csds.Resource{Name: name, Version: cachev3.HashResource(value), Body: body})
		}
	}
	return all
}
