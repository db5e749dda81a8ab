package tunnels

import "github.com/fairlead/fairlead/pkg/model"

// FirstWorker is what Envoy calls its first worker thread.
const FirstWorker = "worker_0"

// Sizes returns how many edges have tunnels, and how many tunnels each worker has; each workload cluster too, by Tunnel.spec.id, if that is
// asked for.
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
