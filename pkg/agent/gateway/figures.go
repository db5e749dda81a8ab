package gateway

import (
	"time"

	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/tunnels"
)

// Figures are the names of the metrics of a gateway's tunnels.
var Figures = []string{
	"fairlead_gateway_tunnels", "fairlead_gateway_edges", "fairlead_gateway_workload_clusters",
	"fairlead_gateway_dark_workload_clusters",
	"fairlead_gateway_cut_total", "fairlead_gateway_cut_failures_total", "fairlead_gateway_holes",
	"fairlead_gateway_moved_total",
	"fairlead_gateway_given_up_total", "fairlead_gateway_unknown_connections", "fairlead_gateway_record_incomplete",
	"fairlead_gateway_unknown_closed_total", "fairlead_gateway_replaced_total",
	"fairlead_gateway_bad_events_total", "fairlead_gateway_cluster_tunnels",
	"fairlead_gateway_cluster_round_trip_seconds", "fairlead_gateway_network_connections",
}

// observer adds a histogram of durations, and returns the function that observes one.
func observer(to *metrics.Set, name string) func(time.Duration) {
	h := to.Histogram(name).WithLabelValues()
	return func(d time.Duration) { h.Observe(d.Seconds()) }
}

// AdmissionFigures are the names of the metrics of a gateway's admissions.
var AdmissionFigures = []string{
	"fairlead_gateway_admitted_total", "fairlead_gateway_refused_total", "fairlead_gateway_known_sources",
	"fairlead_gateway_closed_total",
}

// EmitTunnels emits the metrics of a gateway's tunnels.
func (g *Gateway) EmitTunnels(emit metrics.Emit, perCluster bool) {
	stats := g.Table.Stats()
	emit("fairlead_gateway_cut_total", float64(stats.Cut))
	emit("fairlead_gateway_cut_failures_total", float64(stats.CutFails))
	emit("fairlead_gateway_holes", float64(stats.Unserved))
	emit("fairlead_gateway_moved_total", float64(stats.Moved))
	emit("fairlead_gateway_given_up_total", float64(stats.GivenUp))
	emit("fairlead_gateway_unknown_connections", float64(stats.Unknown))
	emit("fairlead_gateway_record_incomplete", metrics.Bool(stats.Incomplete != ""))
	emit("fairlead_gateway_unknown_closed_total", float64(stats.Closed))
	emit("fairlead_gateway_replaced_total", float64(stats.Replaced))
	emit("fairlead_gateway_bad_events_total", float64(stats.BadLines))
	emit("fairlead_gateway_network_connections", float64(stats.Egress), record.OwnerEgress)
	emit("fairlead_gateway_network_connections", float64(stats.Forward), record.OwnerForward)
	clusters, unreachable := g.tenants.sizes()
	emit("fairlead_gateway_workload_clusters", float64(clusters))
	emit("fairlead_gateway_dark_workload_clusters", float64(unreachable))
	edges, workers, ids := g.Table.Sizes(perCluster)
	emit("fairlead_gateway_edges", float64(edges))
	if len(workers) == 0 {
		workers = map[string]int{tunnels.FirstWorker: 0}
	}
	for worker, n := range workers {
		emit("fairlead_gateway_tunnels", float64(n), worker)
	}
	for id, n := range ids {
		emit("fairlead_gateway_cluster_tunnels", float64(n), id)
	}
	if perCluster {
		g.collectRoundTrips(emit)
	}
}

// EmitOutages emits the metrics of OutageFigures.
func (g *Gateway) EmitOutages(emit metrics.Emit) { g.tenants.outages.emit(emit) }

// collectRoundTrips emits the round-trip times to the workload clusters. It leaves out the ones that the kernel does
// not report.
func (g *Gateway) collectRoundTrips(emit metrics.Emit) {
	all, _ := g.Table.Measure(nil) // connections without an answer have the time 0
	longest := make(map[string]time.Duration, len(all))
	for _, m := range all {
		longest[m.ID] = max(longest[m.ID], m.RTT)
	}
	for id, trip := range longest {
		if trip > 0 {
			emit("fairlead_gateway_cluster_round_trip_seconds", trip.Seconds(), id)
		}
	}
}
