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
	kept := model.WorkloadCluster{Key: wc.Key, ID: wc.ID, Revoked: wc.Revoked, Recorded: wc.Recorded}
	if had, ok := w.byID[wc.ID][wc.Key]; ok && reflect.DeepEqual(had, kept) {
		return false
	}
	w.remove(wc.Key)
	w.ids[wc.Key] = wc.ID
	if w.byID[wc.ID] == nil {
		w.byID[wc.ID] = map[model.Key]model.WorkloadCluster{}
	}
	w.byID[wc.ID][wc.Key] = kept
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

// revoked returns the revoked edges that gateway-agents deny, how many are left out because of maxRecorded and
// maxUnrecorded, and those that Envoys deny. Both lists are sorted. It omits names that no edge can have. Equal
// revocations give equal results.
func (s *Server) revoked() (denied []model.EdgeRef, omitted int, filtered []model.EdgeRef) {
	recorded, others, first := byNamespace{}, byNamespace{}, byNamespace{}
	total := 0
	add := func(id string) {
		for _, wc := range s.revoking(id) {
			edges, n := newestFirst(wc)
			in := wc.Key.Namespace
			recorded.add(in, edges[:n])
			others.add(in, edges[n:])
			first.add(in, edges[:min(len(edges), maxFilteredOfTunnel)])
			total += len(edges)
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
	denied = append(recorded.inTurn(maxRecorded), others.inTurn(maxUnrecorded)...)
	omitted = total - len(denied)
	return ordered(denied), omitted, ordered(first.inTurn(maxFiltered))
}

// newestFirst returns the edges that a workload cluster revokes, the newest first. The first ones are those that have
// enrolled; recorded is how many these are.
func newestFirst(wc model.WorkloadCluster) (edges []model.EdgeRef, recorded int) {
	for i, edge := range slices.Backward(wc.RevokedEdges()) {
		if model.ValidateNodeName(edge.Node) != nil || model.ValidateGatewayName(edge.Node) == nil {
			continue
		}
		edges = append(edges, edge)
		if i >= len(wc.Revoked)-wc.Recorded {
			recorded++
		}
	}
	return edges, recorded
}

// byNamespace has a list of edges for each Tunnel, by namespace.
type byNamespace map[string][][]model.EdgeRef

func (b byNamespace) add(namespace string, edges []model.EdgeRef) {
	if len(edges) > 0 {
		b[namespace] = append(b[namespace], edges)
	}
}

// inTurn returns the edges of all lists, or most of them, which namespaces, and the Tunnels of each, fill in turn.
func (b byNamespace) inTurn(most int) []model.EdgeRef {
	namespaces := make([][]model.EdgeRef, 0, len(b))
	for _, in := range slices.Sorted(maps.Keys(b)) {
		slices.SortFunc(b[in], func(x, y []model.EdgeRef) int { return slices.CompareFunc(x, y, model.EdgeRef.Compare) })
		namespaces = append(namespaces, inTurn(b[in], most))
	}
	return inTurn(namespaces, most)
}

// inTurn returns the first edge of each list, then the second of each, and so on, up to a number of edges.
func inTurn(lists [][]model.EdgeRef, most int) (all []model.EdgeRef) {
	for i := 0; len(lists) > 0 && len(all) < most; i++ {
		lists = slices.DeleteFunc(lists, func(l []model.EdgeRef) bool { return len(l) <= i })
		for _, l := range lists[:min(len(lists), most-len(all))] {
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
