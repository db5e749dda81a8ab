package hub

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
)

// Metrics returns the metrics of a hub. They are computed at each scrape from existing state.
func (h *Hub) Metrics() prometheus.Collector {
	s := &metrics.Set{}
	s.Observe(h.collect, "fairlead_report_streams", "fairlead_report_watchers", "fairlead_report_edges",
		"fairlead_report_edge_apiservers",
		"fairlead_report_troubled_edges", "fairlead_report_edges_without_tunnel", "fairlead_report_boot_machines",
		"fairlead_report_boot_bytes",
		"fairlead_report_gateway_connected", "fairlead_report_gateway_ready", "fairlead_report_gateway_tunnels",
		"fairlead_report_gateway_edges")
	return s
}

func (h *Hub) collect(emit metrics.Emit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	streams := map[model.Role]int{}
	for subject := range h.sessions {
		streams[subject.Role]++
	}
	for _, role := range []model.Role{model.RoleEdge, model.RoleEgress, model.RoleGateway} {
		emit("fairlead_report_streams", float64(streams[role]), string(role))
	}
	emit("fairlead_report_watchers", float64(len(h.watchers)))
	emit("fairlead_report_boot_machines", float64(h.boots.Machines()))
	emit("fairlead_report_boot_bytes", float64(h.boots.Bytes()))
	h.collectEdges(emit)
	for name, g := range h.gateways {
		emit("fairlead_report_gateway_connected", metrics.Bool(g.connected), name)
		if !g.connected {
			continue // another server may have its newer report
		}
		emit("fairlead_report_gateway_ready", metrics.Bool(g.ready), name)
		emit("fairlead_report_gateway_tunnels", float64(len(g.tunnels)), name)
		edges := 0
		for _, c := range g.counts {
			if c.n > 0 {
				edges++
			}
		}
		emit("fairlead_report_gateway_edges", float64(edges), name)
	}
}

func (h *Hub) collectEdges(emit metrics.Emit) {
	connected, troubled, without := 0, 0, 0
	health := map[observed.Health]int{}
	for key, e := range h.edges {
		if !e.connected {
			continue
		}
		connected++
		if e.report.GetLastError() != "" {
			troubled++
		}
		if h.sessions[model.Subject{Role: model.RoleEgress, Node: key.node, ID: key.id}] != nil {
			continue // it has no tunnels, and serves no apiserver to others
		}
		health[observed.APIServerOf(e.report.GetApiServer()).Health()]++
		if !h.hasTunnel(key) {
			without++
		}
	}
	emit("fairlead_report_edges", float64(connected), "connected")
	emit("fairlead_report_edges", float64(len(h.edges)-connected), "away")
	emit("fairlead_report_troubled_edges", float64(troubled))
	emit("fairlead_report_edges_without_tunnel", float64(without))
	for _, is := range []observed.Health{observed.Healthy, observed.Unhealthy, observed.HealthUnknown} {
		emit("fairlead_report_edge_apiservers", float64(health[is]), string(is))
	}
}

// hasTunnel returns whether an edge has a tunnel to a gateway that reports here.
func (h *Hub) hasTunnel(key pair) bool {
	for _, g := range h.gateways {
		if g.connected && g.counts[key].n > 0 {
			return true
		}
	}
	return false
}
