package agent

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/outcomes"
)

const (
	// statsTime is shorter than Prometheus' default timeout, so that the agent's own metrics are always returned.
	statsTime = 5 * time.Second
	// maxSeries bounds the series of Envoy that are passed on. A gateway has about 150.
	maxSeries = 3000
)

// envoyStats matches useful statistics of Envoy whose number does not grow with its load, by Envoy's names. Statistics
// of listeners are per listener: a gateway has three; for an edge see byGateway.
const envoyStats = `^(` +
	`server\.(live|state|uptime|concurrency|total_connections|memory_(allocated|heap_size|physical_size)` +
	`|days_until_first_cert_expiring)` +
	`|listener_manager\.(listener_create_failure|total_listeners_active|total_listeners_draining` +
	`|lds\.update_(success|rejected|failure))` +
	`|cluster_manager\.(active_clusters|warming_clusters|cluster_(added|modified|removed)` +
	`|cds\.update_(success|rejected|failure))` +
	`|control_plane\.connected_state` +
	`|listener\.(public|apiserver|connect)\.(downstream_cx_(total|active|overflow|overload_reject|destroy)` +
	`|downstream_pre_cx_timeout|no_filter_chain_match|ssl\.(handshake|connection_error|fail_verify_[a-z_]+))` +
	`|tcp\.(apiserver|public|control|gateway)[a-z0-9_-]*\.(downstream_cx_(total|rx_bytes_total|tx_bytes_total|no_route)` +
	`|idle_timeout|upstream_flush_active)` +
	`|http\.(connect|egress|forward)\.(downstream_(cx|rq)_(total|active)|downstream_cx_(rx|tx)_bytes_total` +
	`|downstream_rq_[245]xx|no_route|rq_reset_after_downstream_response_started)` +
	`|reverse_tunnel\.(handshake\..*|fallback_no_reverse_socket)|.*handshakes.*|.*tunnels_rbac.*` +
	`|overload\..*\.(active|pressure|shed_load_count)` +
	`|main_thread\.watchdog_(miss|mega_miss)|runtime\.(load_error|admin_overrides_active))$`

// tunnelStats matches the tunnels of an edge: the connections of the listener of each gateway and enrolment.
const tunnelStats = `^listener\..*_gateway-[0-9]+\.downstream_cx_active$`

// streamStats matches the numbers of streams in the reverse tunnels of an edge.
const streamStats = `^http\.tunnel[a-z0-9_]*\.downstream_rq_active$`

// streams returns the number of streams in the reverse tunnels of an edge.
func (a *Agent) streams(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, statsTime)
	defer cancel()
	return a.config.admin().Sum(ctx, streamStats)
}

// begunStats matches the numbers of streams that ever began in the reverse tunnels of an edge.
const begunStats = `^http\.tunnel[a-z0-9_]*\.downstream_rq_total$`

// clients returns a function that returns the number of streams, and at least one if any has begun since its last call:
// an edge with short connections only has clients too.
func (a *Agent) clients() func(context.Context) (int, error) {
	before := -1
	return func(ctx context.Context) (int, error) {
		n, err := a.streams(ctx)
		if err != nil || n > 0 {
			return n, err
		}
		ctx, cancel := context.WithTimeout(ctx, statsTime)
		defer cancel()
		begun, err := a.config.admin().Sum(ctx, begunStats)
		if err == nil && before >= 0 && begun != before {
			n = 1
		}
		before = begun
		return n, err
	}
}

// gatherer returns the metrics of the agent and of its Envoy.
func (a *Agent) gatherer() prometheus.Gatherer {
	return prometheus.Gatherers{a.registry(), prometheus.GathererFunc(a.gatherEnvoy)}
}

// gatherEnvoy queries Envoy. If Envoy does not answer, that is a metric and not an error, because the agent's own
// metrics are most important then.
func (a *Agent) gatherEnvoy() ([]*dto.MetricFamily, error) {
	ctx, cancel := context.WithTimeout(context.Background(), statsTime)
	defer cancel()
	own := &metrics.Set{}
	families, err := a.config.admin().Families(ctx, envoyStats)
	tunnels := map[string]float64{}
	if err == nil && a.config.Gateway == nil {
		var listeners map[string]*dto.MetricFamily
		listeners, err = a.config.admin().Families(ctx, tunnelStats)
		tunnels = byGateway(listeners)
	}
	ended := map[string]map[outcomes.Outcome]float64{}
	if err == nil && a.config.Gateway != nil {
		var counters map[string]*dto.MetricFamily
		counters, err = a.config.admin().Families(ctx, outcomes.Stats)
		if err == nil {
			ended = outcomes.Read(counters)
		}
	}
	kept, dropped := bound(families, maxSeries)
	if err == nil && a.config.PerCluster {
		// A gateway has these only with --cluster-statistics, an edge has one Envoy cluster for each gateway and enrolment.
		// They come last: there is no room for all of 10,000 workload clusters, and the other series describe Envoy's
		// health.
		var clusters map[string]*dto.MetricFamily
		clusters, err = a.config.admin().Families(ctx, envoy.ClusterStatistics)
		more, over := bound(clusters, maxSeries-seriesOf(kept))
		kept, dropped = append(kept, more...), dropped+over
	}
	own.Observe(func(emit metrics.Emit) {
		emit("fairlead_agent_envoy_scraped", metrics.Bool(err == nil))
		emit("fairlead_agent_envoy_series_dropped", float64(dropped))
	}, "fairlead_agent_envoy_scraped", "fairlead_agent_envoy_series_dropped")
	if a.config.Gateway == nil {
		own.Observe(func(emit metrics.Emit) {
			for gateway, n := range tunnels {
				emit("fairlead_edge_tunnels", n, gateway)
			}
		}, "fairlead_edge_tunnels")
	} else {
		own.Observe(func(emit metrics.Emit) { emitOutcomes(emit, ended) }, "fairlead_gateway_clients_total")
		own.Observe(
			func(emit metrics.Emit) { a.emitFull(emit, families) },
			"fairlead_gateway_full_ratio", "fairlead_gateway_worker_cpu_seconds_total",
		)
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(own); err != nil {
		return nil, err
	}
	ours, err := registry.Gather()
	return append(ours, kept...), err
}

// emitOutcomes emits how clients' connections ended.
func emitOutcomes(emit metrics.Emit, ended map[string]map[outcomes.Outcome]float64) {
	for route, of := range ended {
		for outcome, n := range of {
			emit("fairlead_gateway_clients_total", n, route, string(outcome))
		}
	}
}

// byGateway returns the number of tunnels of an edge by gateway.
func byGateway(listeners map[string]*dto.MetricFamily) map[string]float64 {
	tunnels := map[string]float64{}
	for _, m := range listeners["envoy_listener_downstream_cx_active"].GetMetric() {
		for _, l := range m.GetLabel() {
			if gateway := envoy.GatewayOf(l.GetValue()); gateway != "" {
				tunnels[gateway] += m.GetGauge().GetValue()
			}
		}
	}
	return tunnels
}

func seriesOf(families []*dto.MetricFamily) (n int) {
	for _, f := range families {
		n += len(f.GetMetric())
	}
	return n
}

// bound keeps families, in the order of their names, up to a number of series, and returns the number of dropped
// series.
func bound(families map[string]*dto.MetricFamily, most int) (kept []*dto.MetricFamily, dropped int) {
	for _, f := range families {
		kept = append(kept, f)
	}
	slices.SortFunc(kept, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	n := 0
	for i, f := range kept {
		if n += len(f.GetMetric()); n > most {
			for _, f := range kept[i:] {
				dropped += len(f.GetMetric())
			}
			return kept[:i], dropped
		}
	}
	return kept, 0
}
