package xds

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/pkg/model"
)

// ClusterMetrics returns the collector of the metrics of each workload cluster. It emits as many series as there are
// workload clusters, so it is optional.
func (s *Server) ClusterMetrics() prometheus.Collector {
	set := &metrics.Set{}
	set.Observe(s.observeClusters, "fairlead_xds_cluster_info", "fairlead_xds_cluster_refused_since_timestamp_seconds")
	return set
}

// Keys returns the workload clusters that are served, by Tunnel.spec.id.
func (s *Server) Keys() map[string]model.Key {
	s.mu.RLock()
	keys, ids := make([]model.Key, 0, len(s.clusters)), make([]string, 0, len(s.clusters))
	for key, wc := range s.clusters {
		keys, ids = append(keys, key), append(ids, wc.ID)
	}
	s.mu.RUnlock()
	all := make(map[string]model.Key, len(keys))
	for i, id := range ids {
		all[id] = keys[i]
	}
	return all
}

func (s *Server) observeClusters(emit metrics.Emit) {
	for id, key := range s.Keys() {
		emit("fairlead_xds_cluster_info", 1, key.Namespace, key.Name, id)
	}
	for key, since := range s.rejectedSince() {
		emit("fairlead_xds_cluster_refused_since_timestamp_seconds", float64(since.Unix()), key.Namespace, key.Name)
	}
}

// rejectedSince returns the workload clusters with a resource that an Envoy rejects, each with the time of the
// oldest such rejection.
func (s *Server) rejectedSince() map[model.Key]time.Time {
	first := map[model.Key]time.Time{}
	note := func(key model.Key, since time.Time) {
		if _, served := s.clusters[key]; !served {
			return
		}
		if before, had := first[key]; !had || since.Before(before) {
			first[key] = since
		}
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for st := range s.gatewayStreams {
		for i := range st.progress {
			st.progress[i].Answers.Rejected(func(name string, since time.Time) { note(s.keyOf(order[i], name), since) })
		}
	}
	for e := range s.edges {
		for i := range e.progress {
			e.progress[i].Answers.Rejected(func(_ string, since time.Time) {
				if t := s.tunnels[e.subject.ID]; t != nil {
					note(t.cluster.Key, since)
				}
			})
		}
	}
	return first
}
