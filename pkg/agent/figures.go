package agent

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/pkg/agent/envoyadmin"
	"github.com/fairlead/fairlead/pkg/agent/gateway"
	"github.com/fairlead/fairlead/pkg/agent/status"
	"github.com/fairlead/fairlead/pkg/model"
)

// figures holds the counters of an agent. Other metrics are read when they are collected.
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

// registry returns all metrics of an agent except its Envoy's.
func (a *Agent) registry() *prometheus.Registry {
	program, own := metrics.EdgeAgent, &metrics.Set{}
	if a.config.Gateway != nil {
		program = metrics.GatewayAgent
	}
	own.Observe(
		a.collect, "fairlead_agent_ready", "fairlead_agent_memberships", "fairlead_agent_enrolled",
		"fairlead_agent_connected", "fairlead_agent_cached", "fairlead_agent_leaf_expiry_timestamp_seconds",
		"fairlead_agent_troubles", "fairlead_agent_configuration_refused", "fairlead_agent_configuration_answers_total",
		"fairlead_agent_last_report_timestamp_seconds", "fairlead_agent_envoy_running", "fairlead_agent_envoy_answers",
	)
	if a.config.Gateway != nil {
		own.Observe(func(emit metrics.Emit) { a.gateway.EmitTunnels(emit, a.config.PerCluster) }, gateway.Figures...)
		own.Observe(a.gateway.EmitAdmissions, gateway.AdmissionFigures...)
		own.Observe(a.gateway.EmitOutages, gateway.OutageFigures...)
		own.Add(a.gateway.Durations)
	} else {
		own.Observe(a.collectAPIServers, "fairlead_edge_apiservers", "fairlead_edge_apiserver_leaf_expiry_timestamp_seconds",
			"fairlead_edge_apiserver_healthy")
	}
	r := metrics.NewRegistry(program)
	r.MustRegister(a.figures, own)
	return r
}

// collect emits the state of the memberships.
func (a *Agent) collect(emit metrics.Emit) {
	ctx, cancel := context.WithTimeout(context.Background(), envoyadmin.Timeout)
	defer cancel()
	emit("fairlead_agent_ready", metrics.Bool(a.ready(ctx) == nil))
	emit("fairlead_agent_envoy_running", metrics.Bool(a.figures.running.Load()))
	_, silent := a.envoy.State()
	emit("fairlead_agent_envoy_answers", metrics.Bool(silent == ""))
	if at := a.figures.lastReport.Load(); at != 0 {
		emit("fairlead_agent_last_report_timestamp_seconds", float64(at)/1000)
	}
	acks, nacks := a.xds.Answers()
	emit("fairlead_agent_configuration_answers_total", float64(acks), "ack")
	emit("fairlead_agent_configuration_answers_total", float64(nacks), "nack")
	all := a.memberships()
	emit("fairlead_agent_memberships", float64(len(all)))
	var enrolled, connected, cached, refused int
	var first time.Time
	troubles := map[model.Trouble]int{}
	for _, m := range all {
		s := m.status.Summary()
		enrolled, connected, cached = enrolled+one(!s.NotAfter.IsZero()), connected+one(s.Connected), cached+one(s.Cached)
		for _, about := range s.Troubles {
			troubles[about]++
			refused += one(about == model.TroubleConfiguration)
		}
		first = earlier(first, s.NotAfter)
	}
	emit("fairlead_agent_enrolled", float64(enrolled))
	emit("fairlead_agent_connected", float64(connected))
	emit("fairlead_agent_cached", float64(cached))
	emit("fairlead_agent_configuration_refused", float64(refused))
	if !first.IsZero() {
		emit("fairlead_agent_leaf_expiry_timestamp_seconds", float64(first.Unix()))
	}
	for about, label := range status.Labels {
		emit("fairlead_agent_troubles", float64(troubles[about]), label)
	}
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// earlier returns the earlier of two times. A zero time is ignored.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// collectAPIServers emits the results of an edge's probes.
func (a *Agent) collectAPIServers(emit metrics.Emit) {
	health, first := map[string]int{}, time.Time{}
	for _, m := range a.memberships() {
		state := m.status.State()
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

// reporting is a connection that records when a message is sent on one of its streams.
type reporting struct {
	grpc.ClientConnInterface
	sent *atomic.Int64
}

// NewStream implements grpc.ClientConnInterface.
func (r reporting) NewStream(
	ctx context.Context, d *grpc.StreamDesc, method string, o ...grpc.CallOption,
) (grpc.ClientStream, error) {
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
