package xds

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/xds/csds"
)

// slow is when a node that has not answered is counted as one that makes others wait: a change takes well under a second.
const slow = 30 * time.Second

// figures is what a Server counts. Of each stream it keeps two numbers for each type, because there may be 10,000.
type figures struct {
	metrics.Set
	sent, answers, refused, leftOut *prometheus.CounterVec
	paused, overLimit               prometheus.Counter
	took                            *prometheus.HistogramVec
	marks                           marks
	spans                           spans
}

func newFigures(s *Server) *figures {
	f := &figures{}
	f.sent, f.answers = f.Counter("fairlead_xds_resources_sent_total"), f.Counter("fairlead_xds_answers_total")
	f.refused, f.leftOut = f.Counter("fairlead_xds_refused_total"), f.Counter("fairlead_xds_left_out_total")
	f.paused = f.Counter("fairlead_xds_paused_requests_total").WithLabelValues()
	f.overLimit = f.Counter("fairlead_xds_over_limit_total").WithLabelValues()
	f.took = f.Histogram("fairlead_xds_change_ack_seconds")
	for _, code := range []codes.Code{codes.FailedPrecondition, codes.Unavailable, codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.ResourceExhausted} {
		f.refused.WithLabelValues(code.String())
	}
	for _, typeURL := range order {
		f.leftOut.WithLabelValues(typeName(typeURL))
	}
	for _, role := range []model.Role{model.RoleEdge, model.RoleGateway} {
		f.took.WithLabelValues(string(role))
		for _, typeURL := range order {
			f.sent.WithLabelValues(string(role), typeName(typeURL))
			for _, answer := range []string{ack, nack} {
				f.answers.WithLabelValues(string(role), typeName(typeURL), answer)
			}
		}
	}
	f.Look(func(emit metrics.Emit) { s.look(emit) },
		"fairlead_xds_streams", "fairlead_xds_published", "fairlead_xds_gateways", "fairlead_xds_tunnels", "fairlead_xds_resources",
		"fairlead_xds_refusing_nodes", "fairlead_xds_waiting_nodes", "fairlead_xds_denied")
	return f
}

const ack, nack = "ack", "nack"

// typeName is what people call a type.
func typeName(typeURL string) string {
	switch typeURL {
	case resourcev3.ClusterType:
		return "cluster"
	case resourcev3.ListenerType:
		return "listener"
	}
	return "other" // of which nothing is served
}

// noteEnd counts a stream that did not end by itself.
func (f *figures) noteEnd(code codes.Code) {
	switch code {
	case codes.OK, codes.Canceled: // whoever asked has gone
	default:
		f.refused.WithLabelValues(code.String()).Inc()
	}
}

// Metrics returns what the server counts.
func (s *Server) Metrics() prometheus.Collector { return s.figures }

// look counts what there is now.
func (s *Server) look(emit metrics.Emit) {
	now := time.Now()
	streams, refusing, waiting := map[model.Role]int{}, map[model.Role]int{}, map[model.Role]int{}
	count := func(role model.Role, p *[2]progress) {
		streams[role]++
		if p[0].refusing.Load() || p[1].refusing.Load() {
			refusing[role]++
		}
		if p[0].waits(now) || p[1].waits(now) {
			waiting[role]++
		}
	}
	s.mu.RLock()
	for st := range s.hosts {
		count(model.RoleGateway, &st.progress)
	}
	for e := range s.edges {
		count(model.RoleEdge, &e.progress)
	}
	served, prepared := len(s.clusters), 0
	for _, wc := range s.clusters {
		if wc.Prepared {
			prepared++
		}
	}
	emit("fairlead_xds_gateways", float64(len(s.inst.Gateways)))
	emit("fairlead_xds_tunnels", float64(served-prepared), "served")
	emit("fairlead_xds_tunnels", float64(prepared), "prepared")
	emit("fairlead_xds_tunnels", float64(len(s.withheld.ids)), "withheld")
	emit("fairlead_xds_denied", float64(len(s.denials.denied.Edges)), "edge")
	emit("fairlead_xds_denied", float64(len(s.denials.denied.IDs)), "tunnel")
	s.mu.RUnlock()
	for _, role := range []model.Role{model.RoleEdge, model.RoleGateway} {
		emit("fairlead_xds_streams", float64(streams[role]), string(role))
		emit("fairlead_xds_refusing_nodes", float64(refusing[role]), string(role))
		emit("fairlead_xds_waiting_nodes", float64(waiting[role]), string(role))
	}
	emit("fairlead_xds_published", metrics.Bool(s.Published()))
	emit("fairlead_xds_resources", float64(s.gateways.size()), typeName(resourcev3.ClusterType))
}

// progress is how a stream is with one type, of which only one response is on its way at a time. Times are Unix times in ns, 0: none.
type progress struct {
	refusing atomic.Bool
	sent     atomic.Int64 // when the response that has no answer yet was sent
	next     atomic.Int64 // when the newest change was seen that is not sent yet
	changed  atomic.Int64 // when the oldest change in the response was seen
	answered csds.Answers // per resource, for CSDS
}

func (p *progress) waits(now time.Time) bool {
	at := p.sent.Load()
	return at != 0 && now.Sub(time.Unix(0, at)) > slow
}

// change notes that something has changed that a stream may have to be told.
func (p *progress) change() { p.next.Store(time.Now().UnixNano()) }

// send notes a response with changes that were seen at a time. What a stream gets first is no change.
func (f *figures) send(role model.Role, p *progress, r *discoveryv3.DeltaDiscoveryResponse, changed int64) {
	f.sent.WithLabelValues(string(role), typeName(r.GetTypeUrl())).Add(float64(len(r.GetResources())))
	now := time.Now()
	p.sent.Store(now.UnixNano())
	p.changed.Store(changed)
	p.answered.Sent(r, now)
}

// answer notes what a request says of the last response.
func (f *figures) answer(role model.Role, p *progress, r *discoveryv3.DeltaDiscoveryRequest) {
	p.answered.Received(r, time.Now())
	if r.GetResponseNonce() == "" {
		return
	}
	answer := ack
	if r.GetErrorDetail() != nil {
		answer = nack
	}
	f.answers.WithLabelValues(string(role), typeName(r.GetTypeUrl()), answer).Inc()
	p.refusing.Store(answer == nack)
	sent, changed := p.sent.Swap(0), p.changed.Swap(0)
	if changed != 0 {
		f.spans.answered(changed, sent, role, typeName(r.GetTypeUrl()), answer)
	}
	if changed != 0 && answer == ack {
		f.took.WithLabelValues(string(role)).Observe(float64(time.Now().UnixNano()-changed) / 1e9)
	}
}

// noteSent notes a response to a gateway.
func (st *stream) noteSent(r *discoveryv3.DeltaDiscoveryResponse) {
	i := slices.Index(order[:], r.GetTypeUrl())
	if i < 0 {
		return
	}
	p, f := &st.progress[i], st.server.figures
	changed := p.next.Swap(0)
	if r.GetTypeUrl() == st.server.gateways.typeURL {
		changed = 0
		if last, err := strconv.ParseUint(r.GetSystemVersionInfo(), 10, 64); err == nil {
			if st.told {
				changed = f.marks.since(st.last)
			}
			st.last, st.told = last, true
		}
	}
	f.send(st.subject.Role, p, r, changed)
}

// noteAnswer notes what a gateway says of the last response.
func (st *stream) noteAnswer(r *discoveryv3.DeltaDiscoveryRequest) {
	if i := slices.Index(order[:], r.GetTypeUrl()); i >= 0 {
		st.server.figures.answer(st.subject.Role, &st.progress[i], r)
	}
}

// maxMarks is how many changes of the Envoy clusters that all gateways share are remembered with their times.
const maxMarks = 1024

// marks are when those changed: the number of the last change in each, as feed counts them.
type marks struct {
	mu      sync.Mutex
	all     []mark // the newest at the end
	pending int64  // when the change that is being made began; 0: none is
}

type mark struct {
	last uint64
	at   int64
}

func (m *marks) begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pending = time.Now().UnixNano()
}

func (m *marks) end(last uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.all); n == 0 || m.all[n-1].last != last {
		m.all = append(m.all, mark{last, m.pending})
	}
	if len(m.all) >= 2*maxMarks {
		m.all = slices.Clone(m.all[maxMarks:])
	}
	m.pending = 0
}

// since is when the first change after one was seen; 0: that is not known any more.
func (m *marks) since(last uint64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, _ := slices.BinarySearchFunc(m.all, last+1, func(a mark, last uint64) int {
		switch {
		case a.last < last:
			return -1
		case a.last > last:
			return 1
		}
		return 0
	})
	switch {
	case i == len(m.all):
		return m.pending
	case i == 0 && len(m.all) >= maxMarks && m.all[0].last > last+1:
		return 0
	}
	return m.all[i].at
}

// when returns the time of a change; zero: it is no longer recorded.
func (m *marks) when(number uint64) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, _ := slices.BinarySearchFunc(m.all, number, func(a mark, number uint64) int {
		switch {
		case a.last < number:
			return -1
		case a.last > number:
			return 1
		}
		return 0
	})
	if i == len(m.all) || i == 0 && len(m.all) >= maxMarks || m.all[i].at == 0 {
		return time.Time{}
	}
	return time.Unix(0, m.all[i].at)
}
