package xds

import (
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/xds/feed"
	"github.com/fairlead/fairlead/pkg/xds/progress"
)

// changes are resources that all gateways share, to set or, if nil, to remove; by name.
type changes struct{ clusters, scopes map[string]types.Resource }

func newChanges() changes { return changes{map[string]types.Resource{}, map[string]types.Resource{}} }

// shared are the resources of one type that all gateways share.
type shared struct {
	*feed.Feed
	marks progress.Marks
}

func newShared(typeURL string) *shared { return &shared{Feed: feed.New(typeURL)} }

// sharedOf returns the shared resources of a type; nil: there are none of this type.
func (s *Server) sharedOf(typeURL string) *shared {
	switch typeURL {
	case resourcev3.ClusterType:
		return s.gateways
	case resourcev3.ScopedRouteType:
		return s.scopes
	}
	return nil
}

// position is how far the stream of a gateway is with one shared type.
type position struct {
	reader *feed.Reader
	last   uint64 // number of the last change that was sent
	told   bool   // last is set
}

// newPositions returns the positions of a stream that has not sent a request yet. Gateways of versions without networks
// get neither scopes nor the Envoy clusters of networks. The caller holds s.publishing.
func (s *Server) newPositions(st *stream) map[string]*position {
	var clusters, scopes func(string) bool
	if !st.bind.Version.Networks() {
		clusters, scopes = envoy.OfNetwork, func(string) bool { return true }
	}
	return map[string]*position{
		resourcev3.ClusterType:     {reader: feed.NewReader(s.profiles.differs(st.subject), clusters)},
		resourcev3.ScopedRouteType: {reader: feed.NewReader(false, scopes)},
	}
}

// send passes changes to the streams of all gateways: scopes after the Envoy clusters that they refer to, and before
// these are removed. The caller holds s.publishing.
func (s *Server) send(changes changes) {
	set, gone := split(changes.clusters)
	if len(changes.scopes) == 0 {
		s.update(s.gateways, set, gone)
		return
	}
	s.update(s.gateways, set, nil)
	scopes, ended := split(changes.scopes)
	s.update(s.scopes, scopes, ended)
	s.update(s.gateways, nil, gone)
}

// split separates resources to set from names to remove.
func split(all map[string]types.Resource) (set map[string]types.Resource, gone []string) {
	set = make(map[string]types.Resource, len(all))
	for name, r := range all {
		if r == nil {
			gone = append(gone, name)
		} else {
			set[name] = r
		}
	}
	return set, gone
}

func (s *Server) update(of *shared, set map[string]types.Resource, gone []string) {
	if len(set)+len(gone) == 0 {
		return
	}
	of.marks.Begin()
	defer func() { of.marks.End(of.Last()) }()
	if err := of.Update(set, gone); err != nil {
		s.log.Error("cannot send resources", "type_url", of.TypeURL(), "error", err)
	}
}

// leftOut counts and logs resources that are not published.
func (s *Server) leftOut(typeURL string, errs []error, where ...any) {
	s.figures.leftOut.WithLabelValues(progress.TypeName(typeURL)).Add(float64(len(errs)))
	for _, err := range errs {
		s.log.With(where...).Error("cannot publish resource", "type_url", typeURL, "error", err)
	}
}

// leftOutOfEdge is leftOut for the resources of an edge, with a rate limit, because they are built at each request.
func (s *Server) leftOutOfEdge(typeURL string, errs []error, id, node string) {
	if len(errs) > 0 && s.limits.refusalText.Take(id, tunnelRefusalRate) == 0 {
		s.leftOut(typeURL, errs, "node", node)
	}
}
