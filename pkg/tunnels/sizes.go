package tunnels

import "github.com/fairlead/fairlead/pkg/model"

// FirstWorker is Envoy's name of its first worker thread.
const FirstWorker = "worker_0"

// Sizes returns the number of edges that have tunnels, and the number of tunnels of each worker. If byID is set, it
// also returns the number of tunnels by Tunnel.spec.id.
func (t *Table) Sizes(byID bool) (edges int, workers, ids map[string]int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	workers, ids = map[string]int{}, map[string]int{}
	seen := make(map[model.EdgeRef]struct{}, len(t.live)/2)
	for _, e := range t.live {
		workers[e.Worker]++
		seen[model.EdgeRef{Node: e.Node, ID: e.ID}] = struct{}{}
		if byID {
			ids[e.ID]++
		}
	}
	return len(seen), workers, ids
}
