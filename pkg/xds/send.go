package xds

import (
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"github.com/fairlead/fairlead/pkg/xds/progress"
)

// send passes changes to the streams of all gateways. The caller holds s.publishing.
func (s *Server) send(changes changes) {
	if len(changes) == 0 {
		return
	}
	set := make(map[string]types.Resource, len(changes))
	var gone []string
	for name, r := range changes {
		if r == nil {
			gone = append(gone, name)
		} else {
			set[name] = r
		}
	}
	s.figures.Marks.Begin()
	defer func() { s.figures.Marks.End(s.gateways.Last()) }()
	if err := s.gateways.Update(set, gone); err != nil {
		s.log.Error("cannot send Envoy clusters", "type_url", resourcev3.ClusterType, "error", err)
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
