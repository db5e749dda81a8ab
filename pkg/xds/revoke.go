package xds

import (
	"reflect"
	"slices"

	"github.com/fairlead/fairlead/pkg/model"
)

// withheld are the workload clusters that are not served, by id and key. What they revoke is revoked.
type withheld struct {
	ids  map[model.Key]string
	byID map[string]map[model.Key]model.WorkloadCluster
}

func newWithheld() withheld {
	return withheld{ids: map[model.Key]string{}, byID: map[string]map[model.Key]model.WorkloadCluster{}}
}

// put records a workload cluster, and returns whether anything has changed.
func (w *withheld) put(wc model.WorkloadCluster) bool {
	if had, ok := w.byID[wc.ID][wc.Key]; ok && reflect.DeepEqual(had.Revoked, wc.Revoked) {
		return false
	}
	w.remove(wc.Key)
	w.ids[wc.Key] = wc.ID
	if w.byID[wc.ID] == nil {
		w.byID[wc.ID] = map[model.Key]model.WorkloadCluster{}
	}
	w.byID[wc.ID][wc.Key] = model.WorkloadCluster{Key: wc.Key, ID: wc.ID, Revoked: wc.Revoked}
	return true
}

// remove removes a workload cluster, and returns whether it was there.
func (w *withheld) remove(key model.Key) bool {
	id, ok := w.ids[key]
	if !ok {
		return false
	}
	delete(w.ids, key)
	if delete(w.byID[id], key); len(w.byID[id]) == 0 {
		delete(w.byID, id)
	}
	return true
}

// revoking returns the workload clusters that may revoke the edges of a tunnel: the one that is served or, if none
// is served, all withheld ones. So a workload cluster that claims the id of another cannot revoke its edges.
func (s *Server) revoking(id string) []model.WorkloadCluster {
	if t := s.tunnels[id]; t != nil {
		return []model.WorkloadCluster{t.cluster}
	}
	var all []model.WorkloadCluster
	for _, wc := range s.withheld.byID[id] {
		all = append(all, wc)
	}
	return all
}

// revokes reports whether an edge is revoked by its own tunnel. No other tunnel can revoke it.
func (s *Server) revokes(edge model.Subject) bool {
	return slices.ContainsFunc(
		s.revoking(edge.ID), func(wc model.WorkloadCluster) bool { return slices.Contains(wc.Revoked, edge.Node) },
	)
}

// revoked returns all revoked edges, sorted. It omits names that no edge can have: Envoy has no use for them.
func (s *Server) revoked() []model.EdgeRef {
	var all []model.EdgeRef
	add := func(id string) {
		for _, wc := range s.revoking(id) {
			for _, edge := range wc.RevokedEdges() {
				if model.ValidateNodeName(edge.Node) == nil && model.ValidateGatewayName(edge.Node) != nil {
					all = append(all, edge)
				}
			}
		}
	}
	for id := range s.tunnels {
		add(id)
	}
	for id := range s.withheld.byID {
		if s.tunnels[id] == nil {
			add(id)
		}
	}
	slices.SortFunc(all, model.EdgeRef.Compare)
	return slices.Compact(all)
}
