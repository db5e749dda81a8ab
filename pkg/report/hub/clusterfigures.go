package hub

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
)

// ClusterMetrics returns the metrics of the workload clusters that keys returns, by Tunnel.spec.id. Reports of others
// make no series.
func (h *Hub) ClusterMetrics(keys func() map[string]model.Key) prometheus.Collector {
	s := &metrics.Set{}
	s.Observe(func(emit metrics.Emit) { h.collectClusters(keys(), emit) },
		"fairlead_report_cluster_tunnels", "fairlead_report_cluster_edges",
		"fairlead_report_cluster_apiserver_leaf_expiry_timestamp_seconds")
	return s
}

// clusterFigures are the metrics of one workload cluster.
type clusterFigures struct {
	tunnels, edges int
	expiry         time.Time // zero: it is not known
}

func (h *Hub) collectClusters(keys map[string]model.Key, emit metrics.Emit) {
	all := make(map[string]*clusterFigures, len(keys))
	for id := range keys {
		all[id] = &clusterFigures{}
	}
	for _, e := range h.count(all) {
		if a := observed.APIServerOf(e.report.GetApiServer()); a != nil {
			f := all[e.id]
			f.expiry = observed.Sooner(f.expiry, a.CertificateEnd)
		}
	}
	for id, f := range all {
		key := keys[id]
		emit("fairlead_report_cluster_tunnels", float64(f.tunnels), key.Namespace, key.Name)
		emit("fairlead_report_cluster_edges", float64(f.edges), key.Namespace, key.Name)
		if !f.expiry.IsZero() {
			emit("fairlead_report_cluster_apiserver_leaf_expiry_timestamp_seconds", float64(f.expiry.Unix()), key.Namespace,
				key.Name)
		}
	}
}

// count counts tunnels and connected edges, and returns these edges.
func (h *Hub) count(all map[string]*clusterFigures) (edges []edgeState) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range h.gateways {
		if !g.connected {
			continue // another server may have its newer report
		}
		for p, c := range g.counts {
			if f := all[p.id]; f != nil {
				f.tunnels += c.n
			}
		}
	}
	for p, e := range h.edges {
		f := all[p.id]
		if f == nil || !e.connected {
			continue
		}
		f.edges++
		edges = append(edges, edgeState{p, *e})
	}
	return edges
}
