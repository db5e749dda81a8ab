package xds

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/xds/progress"
)

// roles are the roles with streams.
var roles = []model.Role{model.RoleEdge, model.RoleEgress, model.RoleGateway}

type progressOf = progress.Progress

// anyOf reports whether a condition holds for the progress of a stream with any type.
func anyOf(all []progress.Progress, holds func(*progressOf) bool) bool {
	for i := range all {
		if holds(&all[i]) {
			return true
		}
	}
	return false
}

// figures are the metrics of a Server. It stores two numbers for each stream and type, because there may be 10,000
// streams.
type figures struct {
	metrics.Set
	refused, leftOut  *prometheus.CounterVec
	paused, overLimit prometheus.Counter
	progress.Recorder
}

func newFigures(s *Server) *figures {
	f := &figures{}
	f.Sent, f.Answered = f.Counter("fairlead_xds_resources_sent_total"), f.Counter("fairlead_xds_answers_total")
	f.refused, f.leftOut = f.Counter("fairlead_xds_refused_total"), f.Counter("fairlead_xds_left_out_total")
	f.paused = f.Counter("fairlead_xds_paused_requests_total").WithLabelValues()
	f.overLimit = f.Counter("fairlead_xds_over_limit_total").WithLabelValues()
	f.Took = f.Histogram("fairlead_xds_change_ack_seconds")
	for _, code := range []codes.Code{
		codes.FailedPrecondition, codes.Unavailable, codes.PermissionDenied,
		codes.Unauthenticated, codes.InvalidArgument, codes.ResourceExhausted,
	} {
		f.refused.WithLabelValues(code.String())
	}
	for _, typeURL := range order {
		f.leftOut.WithLabelValues(progress.TypeName(typeURL))
	}
	for _, role := range roles {
		f.Took.WithLabelValues(string(role))
		for _, typeURL := range typesOf(role) {
			f.Sent.WithLabelValues(string(role), progress.TypeName(typeURL))
			for _, answer := range []string{progress.ACK, progress.NACK} {
				f.Answered.WithLabelValues(string(role), progress.TypeName(typeURL), answer)
			}
		}
	}
	f.Observe(
		func(emit metrics.Emit) { s.observe(emit) }, "fairlead_xds_streams", "fairlead_xds_published",
		"fairlead_xds_gateways", "fairlead_xds_tunnels", "fairlead_xds_resources", "fairlead_xds_refusing_nodes",
		"fairlead_xds_waiting_nodes", "fairlead_xds_denied",
	)
	return f
}

// noteEnd counts a stream that the server has rejected or closed.
func (f *figures) noteEnd(code codes.Code) {
	switch code {
	case codes.OK, codes.Canceled: // the client has closed it
	default:
		f.refused.WithLabelValues(code.String()).Inc()
	}
}

// Metrics returns the collector of the server's metrics.
func (s *Server) Metrics() prometheus.Collector { return s.figures }

// observe emits the gauges of the current state.
func (s *Server) observe(emit metrics.Emit) {
	now := time.Now()
	streams, refusing, waiting := map[model.Role]int{}, map[model.Role]int{}, map[model.Role]int{}
	count := func(role model.Role, all []progress.Progress) {
		streams[role]++
		if anyOf(all, (*progressOf).Refuses) {
			refusing[role]++
		}
		if anyOf(all, func(p *progressOf) bool { return p.Waits(now) }) {
			waiting[role]++
		}
	}
	s.mu.RLock()
	for st := range s.gatewayStreams {
		count(model.RoleGateway, st.progress)
	}
	for e := range s.edges {
		count(e.subject.Role, e.progress)
	}
	served, prepared := len(s.clusters), 0
	for _, wc := range s.clusters {
		if wc.Prepared {
			prepared++
		}
	}
	gateways, withheld, denied := len(s.inst.Gateways), len(s.withheld.ids), s.denials.denied
	s.mu.RUnlock() // emit may block
	emit("fairlead_xds_gateways", float64(gateways))
	emit("fairlead_xds_tunnels", float64(served-prepared), "served")
	emit("fairlead_xds_tunnels", float64(prepared), "prepared")
	emit("fairlead_xds_tunnels", float64(withheld), "withheld")
	emit("fairlead_xds_denied", float64(len(denied.Edges)), "edge")
	emit("fairlead_xds_denied", float64(len(denied.IDs)), "tunnel")
	for _, role := range roles {
		emit("fairlead_xds_streams", float64(streams[role]), string(role))
		emit("fairlead_xds_refusing_nodes", float64(refusing[role]), string(role))
		emit("fairlead_xds_waiting_nodes", float64(waiting[role]), string(role))
	}
	emit("fairlead_xds_published", metrics.Bool(s.Published()))
	for _, of := range []*shared{s.gateways, s.scopes} {
		emit("fairlead_xds_resources", float64(of.Len()), progress.TypeName(of.TypeURL()))
	}
}
