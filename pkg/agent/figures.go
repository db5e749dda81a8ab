package agent

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/pkg/tunnels"
)

// figures is what an agent counts itself; the rest is looked up where it is known.
type figures struct {
	metrics.Set
	exits      *prometheus.CounterVec
	replaced   *prometheus.CounterVec
	running    atomic.Bool
	lastReport atomic.Int64 // Unix time in ms; 0: none was sent
}

func newFigures() *figures {
	f := &figures{}
	f.exits = f.Counter("fairlead_agent_envoy_exits_total")
	f.replaced = f.Counter("fairlead_agent_envoy_replaced_total")
	return f
}

// gatewayFigures are those of the tunnels of a gateway.
var gatewayFigures = []string{
	"fairlead_gateway_tunnels", "fairlead_gateway_edges", "fairlead_gateway_workload_clusters", "fairlead_gateway_dark_workload_clusters",
	"fairlead_gateway_cut_total", "fairlead_gateway_cut_failures_total", "fairlead_gateway_holes", "fairlead_gateway_moved_total",
	"fairlead_gateway_given_up_total", "fairlead_gateway_unknown_connections", "fairlead_gateway_record_incomplete", "fairlead_gateway_unknown_closed_total",
	"fairlead_gateway_bad_events_total", "fairlead_gateway_cluster_tunnels",
	"fairlead_gateway_cluster_round_trip_seconds",
}

// admissionFigures are those of what a gateway admits.
var admissionFigures = []string{
	"fairlead_gateway_admitted_total", "fairlead_gateway_refused_total", "fairlead_gateway_known_sources", "fairlead_gateway_closed_total",
}

// registry has all that an agent publishes, but for what its Envoy counts.
func (a *Agent) registry() *prometheus.Registry {
	program, own := metrics.EdgeAgent, &metrics.Set{}
	if a.config.Gateway != nil {
		program = metrics.GatewayAgent
	}
	own.Look(a.look, "fairlead_agent_ready", "fairlead_agent_memberships", "fairlead_agent_enrolled", "fairlead_agent_connected",
		"fairlead_agent_cached", "fairlead_agent_leaf_expiry_timestamp_seconds", "fairlead_agent_troubles", "fairlead_agent_configuration_refused",
		"fairlead_agent_configuration_answers_total", "fairlead_agent_last_report_timestamp_seconds", "fairlead_agent_envoy_running", "fairlead_agent_envoy_answers")
	if a.config.Gateway != nil {
		own.Look(a.lookAtTunnels, gatewayFigures...)
		own.Look(a.admit.look, admissionFigures...)
	} else {
		own.Look(a.lookAtAPIServers, "fairlead_edge_apiservers", "fairlead_edge_apiserver_leaf_expiry_timestamp_seconds", "fairlead_edge_apiserver_healthy")
	}
	r := metrics.NewRegistry(program)
	r.MustRegister(a.figures, own)
	return r
}

// look says how the memberships are.
func (a *Agent) look(emit metrics.Emit) {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	emit("fairlead_agent_ready", metrics.Bool(a.ready(ctx) == nil))
	emit("fairlead_agent_envoy_running", metrics.Bool(a.figures.running.Load()))
	_, silent := a.envoy.state()
	emit("fairlead_agent_envoy_answers", metrics.Bool(silent == ""))
	if at := a.figures.lastReport.Load(); at != 0 {
		emit("fairlead_agent_last_report_timestamp_seconds", float64(at)/1000)
	}
	acks, nacks := a.relay.Answers()
	emit("fairlead_agent_configuration_answers_total", float64(acks), "ack")
	emit("fairlead_agent_configuration_answers_total", float64(nacks), "nack")
	all := a.memberships()
	emit("fairlead_agent_memberships", float64(len(all)))
	var enrolled, connected, cached, refused int
	var first time.Time
	troubles := map[string]int{}
	for _, m := range all {
		s := m.status.summary()
		enrolled, connected, cached = enrolled+one(!s.notAfter.IsZero()), connected+one(s.connected), cached+one(s.cached)
		for _, about := range s.troubles {
			troubles[about]++
			refused += one(about == aboutConfiguration)
		}
		first = earlier(first, s.notAfter)
	}
	emit("fairlead_agent_enrolled", float64(enrolled))
	emit("fairlead_agent_connected", float64(connected))
	emit("fairlead_agent_cached", float64(cached))
	emit("fairlead_agent_configuration_refused", float64(refused))
	if !first.IsZero() {
		emit("fairlead_agent_leaf_expiry_timestamp_seconds", float64(first.Unix()))
	}
	for about, label := range abouts {
		emit("fairlead_agent_troubles", float64(troubles[about]), label)
	}
}

// abouts are what trouble can be about, as labels.
var abouts = map[string]string{
	aboutCertificate: "certificate", aboutConfiguration: "configuration", aboutCache: "control_channel", aboutEnvoy: "envoy",
	aboutStart: "envoy_start", aboutHang: "envoy_hangs", aboutReplaced: "envoy_replaced", aboutDisk: "disk", aboutMembership: "membership",
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// earlier is the earlier of two times; zero: there is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// summary is what figures are made of.
type summary struct {
	notAfter          time.Time
	connected, cached bool
	troubles          []string
}

func (s *status) summary() summary {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := summary{notAfter: s.notAfter, connected: s.connected, cached: s.cached}
	for _, t := range s.troubles {
		out.troubles = append(out.troubles, t.about)
	}
	return out
}

// lookAtTunnels says what a gateway carries.
func (a *Agent) lookAtTunnels(emit metrics.Emit) {
	stats := a.table.Stats()
	emit("fairlead_gateway_cut_total", float64(stats.Cut))
	emit("fairlead_gateway_cut_failures_total", float64(stats.CutFails))
	emit("fairlead_gateway_holes", float64(stats.Holes))
	emit("fairlead_gateway_moved_total", float64(stats.Moved))
	emit("fairlead_gateway_given_up_total", float64(stats.GivenUp))
	emit("fairlead_gateway_unknown_connections", float64(stats.Unknown))
	emit("fairlead_gateway_record_incomplete", metrics.Bool(stats.Incomplete != ""))
	emit("fairlead_gateway_unknown_closed_total", float64(stats.Closed))
	emit("fairlead_gateway_bad_events_total", float64(stats.BadLines))
	clusters, dark := a.tenants.sizes()
	emit("fairlead_gateway_workload_clusters", float64(clusters))
	emit("fairlead_gateway_dark_workload_clusters", float64(dark))
	edges, workers, ids := a.table.Sizes(a.config.PerCluster)
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
	if a.config.PerCluster {
		a.lookAtRoundTrips(emit)
	}
}

// lookAtRoundTrips says how far the workload clusters are, as far as the kernel answers.
func (a *Agent) lookAtRoundTrips(emit metrics.Emit) {
	all, _ := a.table.Measure(nil) // of those that could not be asked for it says 0
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

// lookAtAPIServers says how an edge finds its apiservers.
func (a *Agent) lookAtAPIServers(emit metrics.Emit) {
	health, first := map[string]int{}, time.Time{}
	for _, m := range a.memberships() {
		state := m.status.state()
		is := "unknown"
		if state.APIServer != nil {
			is = map[bool]string{true: "healthy", false: "unhealthy"}[state.APIServer.Healthy]
			first = earlier(first, state.APIServer.CertificateNotAfter)
		}
		health[is]++
		if a.config.PerCluster && state.TunnelID != "" && state.APIServer != nil {
			emit("fairlead_edge_apiserver_healthy", metrics.Bool(state.APIServer.Healthy), cmp.Or(m.joined, state.TunnelID))
		}
	}
	for _, is := range []string{"healthy", "unhealthy", "unknown"} {
		emit("fairlead_edge_apiservers", float64(health[is]), is)
	}
	if !first.IsZero() {
		emit("fairlead_edge_apiserver_leaf_expiry_timestamp_seconds", float64(first.Unix()))
	}
}

// reporting is a connection that notes when something is sent in a stream on it.
type reporting struct {
	grpc.ClientConnInterface
	sent *atomic.Int64
}

// NewStream implements grpc.ClientConnInterface.
func (r reporting) NewStream(ctx context.Context, d *grpc.StreamDesc, method string, o ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := r.ClientConnInterface.NewStream(ctx, d, method, o...)
	return noting{stream, r.sent}, err
}

type noting struct {
	grpc.ClientStream
	sent *atomic.Int64
}

// SendMsg implements grpc.ClientStream.
func (n noting) SendMsg(m any) error {
	err := n.ClientStream.SendMsg(m)
	if err == nil {
		n.sent.Store(time.Now().UnixMilli())
	}
	return err
}
