package xds

import (
	"slices"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"

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

// sharedOf returns the shared resources of a type, which is not the one of listeners.
func (s *Server) sharedOf(kind int) *shared {
	return [listenersKind]*shared{s.gateways, s.scopes}[kind]
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
	err := of.Update(set, gone)
	of.marks.End(of.Last())
	if err != nil {
		s.log.Error("cannot send resources", "type_url", of.TypeURL(), "error", err)
	}
	s.notifyGateways(slices.Index(order[:], of.TypeURL()))
}

// notifyGateways has the streams of all gateways send what has changed of a type.
func (s *Server) notifyGateways(kind int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for st := range s.gatewayStreams {
		st.change(kind)
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
