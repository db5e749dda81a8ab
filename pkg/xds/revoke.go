package xds

import (
	"maps"
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

// revoking returns the workload clusters that revoke edges of a tunnel: the one that is served or, if none is served,
// all withheld ones, without those that revoke none. So a workload cluster that claims the id of another cannot revoke
// its edges.
func (s *Server) revoking(id string) (all []model.WorkloadCluster) {
	if t := s.tunnels[id]; t != nil {
		if len(t.cluster.Revoked) > 0 {
			all = append(all, t.cluster)
		}
		return all
	}
	for _, wc := range s.withheld.byID[id] {
		if len(wc.Revoked) > 0 {
			all = append(all, wc)
		}
	}
	return all
}

// revokes reports whether an edge is revoked by its own tunnel. No other tunnel can revoke it.
func (s *Server) revokes(edge model.Subject) bool {
	return slices.ContainsFunc(
		s.revoking(edge.ID), func(wc model.WorkloadCluster) bool { return slices.Contains(wc.Revoked, edge.Node) },
	)
}

// revoked returns all revoked edges, and those of them that Envoys deny, both sorted. It omits names that no edge can
// have: Envoy has no use for them. Equal revocations give equal results.
func (s *Server) revoked() (all, filtered []model.EdgeRef) {
	byNamespace := map[string][][]model.EdgeRef{} // of each Tunnel
	add := func(id string) {
		for _, wc := range s.revoking(id) {
			var edges []model.EdgeRef // the newest first
			for _, edge := range slices.Backward(wc.RevokedEdges()) {
				if model.ValidateNodeName(edge.Node) == nil && model.ValidateGatewayName(edge.Node) != nil {
					edges = append(edges, edge)
				}
			}
			all = append(all, edges...)
			in := wc.Key.Namespace
			byNamespace[in] = append(byNamespace[in], edges[:min(len(edges), maxFilteredOfTunnel)])
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
	namespaces := make([][]model.EdgeRef, 0, len(byNamespace))
	for _, in := range slices.Sorted(maps.Keys(byNamespace)) {
		slices.SortFunc(byNamespace[in], func(a, b []model.EdgeRef) int {
			return slices.CompareFunc(a, b, model.EdgeRef.Compare)
		})
		namespaces = append(namespaces, inTurn(byNamespace[in]))
	}
	return ordered(all), ordered(inTurn(namespaces))
}

// inTurn returns the first edge of each list, then the second of each, and so on: at most maxFiltered.
func inTurn(lists [][]model.EdgeRef) (all []model.EdgeRef) {
	for i := 0; len(lists) > 0 && len(all) < maxFiltered; i++ {
		lists = slices.DeleteFunc(lists, func(l []model.EdgeRef) bool { return len(l) <= i })
		for _, l := range lists[:min(len(lists), maxFiltered-len(all))] {
			all = append(all, l[i])
		}
	}
	return all
}

// ordered sorts edges, and removes duplicates.
func ordered(edges []model.EdgeRef) []model.EdgeRef {
	slices.SortFunc(edges, model.EdgeRef.Compare)
	return slices.Compact(edges)
}
