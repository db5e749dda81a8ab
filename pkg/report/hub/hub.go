// Package hub is the xds-server's side of reports. Its input is the reports of edges and gateways by their streams, and
// boot reports by Boot; its output is changes for the controllers that watch, the answers of agents, the tunnels of the
// other gateways, and metrics. It stores nothing on disk, and uses neither Kubernetes nor other hubs.
package hub

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/limit"
	"github.com/fairlead/fairlead/internal/printable"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// maxEdges and maxGateways bound the agents that a hub stores, including absent ones.
const maxEdges, maxGateways = 50_000, 1_000

var (
	errShutdown = status.Error(codes.Unavailable, "the server is shutting down")
	errNewer    = status.Error(codes.Aborted, "a newer stream of the same edge or gateway replaced this one")
	errTooMany  = status.Error(codes.ResourceExhausted, "the server has too many edges or gateways")
)

// Hub receives the reports of one xds-server. It is safe for concurrent use.
type Hub struct {
	reportv1.UnimplementedReportServer

	domain         model.TunnelDomain
	admission      Admission
	log            *slog.Logger
	now            func() time.Time
	open           context.Context
	close          context.CancelFunc
	loggedRefusals *limit.Rates // logged rejections, by caller
	lines          *limit.Rates // logged lines, by tunnel id
	watching       sync.Once    // starts watchDenied

	// mu guards the fields below. All reports and questions wait for it. So while it is held, reports are applied and
	// state is copied, but no message is made, encoded or measured, and nothing is logged.
	mu       sync.Mutex
	ready    time.Time // when the first stream was admitted; zero: none was
	times    report.Times
	swept    time.Time // when sweep ran last
	sessions map[model.Subject]*session
	gateways map[string]*gateway
	edges    map[pair]*edge
	ofTunnel map[string]int // number of edges, by tunnel id
	boots    *report.Boots
	watchers map[*watcher]bool
	profiles *reportv1.ProfileState // nil: its server has announced none
	probes   singleflight.Group     // questions that concurrent callers share
}

// pair is an edge and its tunnel.
type pair struct{ node, id string }

// count is a gateway's count for one edge.
type count struct {
	n           int // tunnels
	without     int // workers that have none, if others have
	connections int // that are not tunnels
}

// presence is whether an agent's stream is open, and since when.
type presence struct {
	connected bool
	since     time.Time
}

// gateway is the state of one gateway, by its reports.
type gateway struct {
	presence
	tunnels map[string]pair // by key
	counts  map[pair]count
	ready   bool   // it accepts clients
	hang    string // the parts of its Envoy that do not answer
	// incomplete is why it may have tunnels that it does not report; empty: it has none.
	incomplete string
}

// edge is the last report of an edge, as received.
type edge struct {
	presence
	report   *reportv1.EdgeReport
	received time.Time // when report was
}

// session is the current stream of an edge or a gateway.
type session struct {
	subject  model.Subject
	end      func(error)
	reported bool
	asked    asked
}

// New returns a hub for a gRPC server whose TLS is certs.ServerTLS.
func New(domain model.TunnelDomain, admission Admission, log *slog.Logger) *Hub {
	open, closeAll := context.WithCancel(context.Background())
	return &Hub{
		domain: domain, admission: admission, log: log, now: time.Now, open: open, close: closeAll,
		times:          report.DefaultTimes,
		loggedRefusals: limit.NewRates(maxLoggedRefusals), lines: limit.NewRates(maxLoggedRefusals),
		ofTunnel: map[string]int{},
		sessions: map[model.Subject]*session{}, gateways: map[string]*gateway{}, edges: map[pair]*edge{},
		boots: report.NewBoots(report.DefaultBootBounds), watchers: map[*watcher]bool{},
	}
}

// SetTimes replaces report.DefaultTimes.
func (h *Hub) SetTimes(t report.Times) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.times = t
}

// Close ends all streams and admits no new one.
func (h *Hub) Close() { h.close() }

// Probe returns when it has had the lock on which all work of the hub depends. It copies nothing.
func (h *Hub) Probe() {
	h.mu.Lock()
	defer h.mu.Unlock()
}

// begin makes a session the current one, and ends the previous one.
func (h *Hub) begin(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.admitted()
	if before := h.sessions[s.subject]; before != nil {
		before.end(errNewer)
	}
	h.sessions[s.subject] = s
	h.sweep()
}

// admitted records the time of the first admitted stream: agents can report from now on.
func (h *Hub) admitted() {
	if h.ready.IsZero() {
		h.ready = h.now()
	}
}

// settled reports whether every live agent has had time to report since the first stream was admitted. The caller holds
// the lock.
func (h *Hub) settled() bool {
	return !h.ready.IsZero() && !h.now().Before(h.ready.Add(h.times.Settle))
}

// finish ends a session, and logs that its reporter is gone.
func (h *Hub) finish(s *session) {
	if h.leave(s) {
		h.note("reporter disconnected", s)
	}
}

// leave ends a session, and returns whether its reporter was there and is gone. It is gone only if no newer session has
// taken its place.
func (h *Hub) leave(s *session) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.drop()
	if h.sessions[s.subject] != s {
		return false
	}
	delete(h.sessions, s.subject)
	if h.open.Err() != nil {
		return false // this server ends, which watchers detect by their own streams
	}
	var p *presence
	key := changeKey{kind: kindEdge, pair: pair{s.subject.Node, s.subject.ID}}
	if s.subject.Role == model.RoleGateway {
		key = changeKey{kind: kindGateway, gateway: s.subject.Node}
		if g := h.gateways[s.subject.Node]; g != nil {
			p = &g.presence
		}
	} else if e := h.edges[key.pair]; e != nil {
		p = &e.presence
	}
	if p == nil || !p.connected {
		return false
	}
	*p = presence{since: h.now()}
	h.changed(key)
	return true
}

// current returns nil if a session is the current one.
func (h *Hub) current(s *session) error {
	if h.sessions[s.subject] != s {
		return errNewer
	}
	return nil
}

// arrive records the first report of a session, and returns whether it is the first.
func (h *Hub) arrive(s *session, p *presence) bool {
	if s.reported {
		return false
	}
	s.reported = true
	*p = presence{connected: true, since: h.now()}
	return true
}

// edgeReport applies a report of an edge.
func (h *Hub) edgeReport(s *session, r *reportv1.EdgeReport) error {
	if err := report.CheckEdge(r); err != nil {
		return err
	}
	if r.GetAnswer() != nil {
		return h.answer(s, r.GetAnswer())
	}
	first, err := h.setEdge(s, report.CleanEdge(r)) // a new object: watchers may be sending the previous one
	if first {
		h.note("reporter connected", s)
	}
	return err
}

// setEdge records a report of an edge, and returns whether it is the first of its session.
func (h *Hub) setEdge(s *session, r *reportv1.EdgeReport) (first bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.current(s); err != nil {
		return false, err
	}
	key := pair{s.subject.Node, s.subject.ID}
	e := h.edges[key]
	if e == nil {
		if e = h.addEdge(key); e == nil {
			return false, errTooMany
		}
	}
	first = h.arrive(s, &e.presence)
	e.report, e.received = r, h.now()
	h.changed(changeKey{kind: kindEdge, pair: key})
	return first, nil
}

// gatewayReport applies a report of a gateway.
func (h *Hub) gatewayReport(s *session, r *reportv1.GatewayReport) error {
	if err := report.CheckGateway(r); err != nil {
		return err
	}
	if r.GetAnswer() != nil {
		return h.answer(s, r.GetAnswer())
	}
	hang, incomplete := printable.Text(r.GetHang(), report.MaxText), printable.Text(r.GetIncomplete(), report.MaxText)
	first, err := h.setGateway(s, r, hang, incomplete)
	if first {
		h.note("reporter connected", s)
	}
	return err
}

// setGateway records a report of a gateway with two of its texts as they are stored. It returns whether it is the first
// of its session.
func (h *Hub) setGateway(s *session, r *reportv1.GatewayReport, hang, incomplete string) (first bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.current(s); err != nil {
		return false, err
	}
	if !s.reported && !r.GetSnapshot() {
		return false, status.Error(codes.InvalidArgument, "the first report of a stream is not a snapshot")
	}
	name := s.subject.Node
	g := h.gateways[name]
	if g == nil {
		if len(h.gateways) >= maxGateways && !forget(h.gateways, func(g *gateway) presence { return g.presence }) {
			return false, errTooMany
		}
		g = &gateway{tunnels: map[string]pair{}, counts: map[pair]count{}}
		h.gateways[name] = g
	}
	if err := g.room(r); err != nil {
		return false, err
	}
	before := [...]any{g.ready, g.hang, g.incomplete}
	g.ready, g.hang, g.incomplete = r.GetReady(), hang, incomplete
	if before != [...]any{g.ready, g.hang, g.incomplete} {
		h.changed(changeKey{kind: kindGateway, gateway: name})
	}
	for key := range g.apply(r) {
		h.changed(changeKey{kind: kindCount, gateway: name, pair: key})
	}
	if first = h.arrive(s, &g.presence); first {
		h.changed(changeKey{kind: kindGateway, gateway: name})
	}
	return first, nil
}

// room returns an error if a gateway would have too many tunnels or nodes after changes. At its maximum, some of them
// end and others begin.
func (g *gateway) room(r *reportv1.GatewayReport) error {
	if r.GetSnapshot() {
		return nil // which CheckGateway bounds
	}
	opened, closed, nodes := map[string]bool{}, map[string]bool{}, map[pair]bool{}
	for _, t := range r.GetTunnels() {
		if _, had := g.tunnels[t.GetKey()]; !had {
			opened[t.GetKey()] = true
		}
	}
	for _, key := range r.GetClosed() {
		if _, had := g.tunnels[key]; had || opened[key] {
			closed[key] = true
		}
	}
	for _, c := range r.GetConnections() {
		of := pair{c.GetNode(), c.GetTunnelId()}
		if _, had := g.counts[of]; !had {
			nodes[of] = true
		}
	}
	if len(g.tunnels)+len(opened)-len(closed) > report.MaxTunnels {
		return status.Errorf(codes.ResourceExhausted, "more than %d tunnels of one gateway", report.MaxTunnels)
	}
	if len(g.counts)+len(nodes) > report.MaxTunnels {
		return status.Errorf(codes.ResourceExhausted, "more than %d nodes of one gateway", report.MaxTunnels)
	}
	return nil
}

// apply applies a report and returns the edges whose count of tunnels has changed.
func (g *gateway) apply(r *reportv1.GatewayReport) map[pair]bool {
	before := map[pair]count{}
	set := func(key string, to pair) {
		from, had := g.tunnels[key]
		if had {
			g.change(from, before, func(c *count) { c.n-- })
			delete(g.tunnels, key)
		}
		if to != (pair{}) {
			g.change(to, before, func(c *count) { c.n++ })
			g.tunnels[key] = to
		}
	}
	if r.GetSnapshot() {
		for key := range g.tunnels {
			set(key, pair{})
		}
		for key := range g.counts {
			g.change(key, before, func(c *count) { c.connections = 0 })
		}
	}
	for _, c := range r.GetConnections() {
		g.change(pair{c.GetNode(), c.GetTunnelId()}, before, func(to *count) { to.connections = int(c.GetCount()) })
	}
	for _, t := range r.GetTunnels() { // first, so that an edge is never without a tunnel in between
		set(t.GetKey(), pair{t.GetNode(), t.GetTunnelId()})
	}
	for _, key := range r.GetClosed() {
		set(key, pair{})
	}
	for _, hole := range r.GetHoles() {
		g.change(pair{hole.GetNode(), hole.GetTunnelId()}, before, func(c *count) { c.without = int(hole.GetWorkers()) })
	}
	changed := map[pair]bool{}
	for key, c := range before {
		if g.counts[key] != c {
			changed[key] = true
		}
	}
	return changed
}

// change changes the count of a node, and stores the previous one in before. A node without tunnels and connections has
// no count.
func (g *gateway) change(key pair, before map[pair]count, do func(*count)) {
	c := g.counts[key]
	if _, noted := before[key]; !noted {
		before[key] = c
	}
	if do(&c); c.n <= 0 {
		c.n, c.without = 0, 0
	}
	if c == (count{}) {
		delete(g.counts, key)
		return
	}
	g.counts[key] = c
}
