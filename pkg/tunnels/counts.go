package tunnels

import "github.com/fairlead/fairlead/pkg/model"

// Counts returns the number of live tunnels of an edge, of all edges with its tunnel id, and of all edges.
func (t *Table) Counts(edge model.EdgeRef) (byEdge, byID, all int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	byEdge, byID = t.counts.of(edge)
	return byEdge, byID, len(t.live)
}

// counts holds the numbers of live tunnels, or of connections of one owner, by edge and by tunnel id.
type counts struct {
	edges map[model.EdgeRef]int
	ids   map[string]int
}

func newCounts() counts { return counts{edges: map[model.EdgeRef]int{}, ids: map[string]int{}} }

func (c counts) of(edge model.EdgeRef) (byEdge, byID int) { return c.edges[edge], c.ids[edge.ID] }

func (c counts) add(t Tunnel, n int) {
	edge := model.EdgeRef{Node: t.Node, ID: t.ID}
	if c.edges[edge] += n; c.edges[edge] <= 0 {
		delete(c.edges, edge)
	}
	if c.ids[t.ID] += n; c.ids[t.ID] <= 0 {
		delete(c.ids, t.ID)
	}
}
