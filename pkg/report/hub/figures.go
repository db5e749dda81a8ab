package hub

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
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

// figures are what the metrics are made from.
type figures struct {
	streams                   map[model.Role]int
	watchers, machines, bytes int
	away                      int // edges
	edges                     []edgeFigures
	gateways                  []gatewayFigures
}

// edgeFigures are of an edge that is connected.
type edgeFigures struct {
	report         *reportv1.EdgeReport
	egress, tunnel bool
}

type gatewayFigures struct {
	name             string
	connected, ready bool
	tunnels, edges   int
}

func (h *Hub) collect(emit metrics.Emit) {
	f := h.figures()
	for _, role := range []model.Role{model.RoleEdge, model.RoleEgress, model.RoleGateway} {
		emit("fairlead_report_streams", float64(f.streams[role]), string(role))
	}
	emit("fairlead_report_watchers", float64(f.watchers))
	emit("fairlead_report_boot_machines", float64(f.machines))
	emit("fairlead_report_boot_bytes", float64(f.bytes))
	f.emitEdges(emit)
	for _, g := range f.gateways {
		emit("fairlead_report_gateway_connected", metrics.Bool(g.connected), g.name)
		if !g.connected {
			continue // another server may have its newer report
		}
		emit("fairlead_report_gateway_ready", metrics.Bool(g.ready), g.name)
		emit("fairlead_report_gateway_tunnels", float64(g.tunnels), g.name)
		emit("fairlead_report_gateway_edges", float64(g.edges), g.name)
	}
}

func (h *Hub) figures() *figures {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := &figures{
		streams: map[model.Role]int{}, watchers: len(h.watchers), machines: h.boots.Machines(), bytes: h.boots.Bytes(),
	}
	for subject := range h.sessions {
		f.streams[subject.Role]++
	}
	for key, e := range h.edges {
		if !e.connected {
			f.away++
			continue
		}
		egress := h.sessions[model.Subject{Role: model.RoleEgress, Node: key.node, ID: key.id}] != nil
		f.edges = append(f.edges, edgeFigures{e.report, egress, !egress && h.hasTunnel(key)})
	}
	for name, g := range h.gateways {
		one := gatewayFigures{name: name, connected: g.connected, ready: g.ready, tunnels: len(g.tunnels)}
		for _, c := range g.counts {
			if c.n > 0 {
				one.edges++
			}
		}
		f.gateways = append(f.gateways, one)
	}
	return f
}

func (f *figures) emitEdges(emit metrics.Emit) {
	troubled, without := 0, 0
	health := map[observed.Health]int{}
	for _, e := range f.edges {
		if e.report.GetLastError() != "" {
			troubled++
		}
		if e.egress {
			continue // it has no tunnels, and serves no apiserver to others
		}
		health[observed.APIServerOf(e.report.GetApiServer()).Health()]++
		if !e.tunnel {
			without++
		}
	}
	emit("fairlead_report_edges", float64(len(f.edges)), "connected")
	emit("fairlead_report_edges", float64(f.away), "away")
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
