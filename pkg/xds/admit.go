package xds

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pkg/model"
)

// denials are those that are let in no more.
type denials struct {
	ended   map[string]time.Time // tunnel ids, and until when their edges may have a certificate that is valid
	denied  model.Denied         // all, sorted: a tunnel outlives the certificate by which it was opened
	filter  model.Denied         // what Envoys are told: denied without ids of whom nobody can have a valid leaf
	changed chan struct{}        // closed when denied changes
	timer   *time.Timer          // for the next id to leave filter; nil: there is none
	stopped bool
	stale   bool // denied and filter may differ from what the tunnels and ended say
}

func newDenials() denials {
	return denials{ended: map[string]time.Time{}, changed: make(chan struct{})}
}

// settle brings denied and filter up to date, and says whether filter changed. next is when it will change by itself, zero:
// never.
func (d *denials) settle(now time.Time, revoked []model.EdgeRef) (changed bool, next time.Time) {
	d.stale = false
	denied, filter := model.Denied{Edges: revoked, IDs: slices.Sorted(maps.Keys(d.ended))}, model.Denied{Edges: revoked}
	for _, id := range denied.IDs {
		until := d.ended[id]
		if !until.After(now) {
			continue
		}
		filter.IDs = append(filter.IDs, id)
		if next.IsZero() || until.Before(next) {
			next = until
		}
	}
	if !equal(denied, d.denied) {
		d.denied = denied
		close(d.changed)
		d.changed = make(chan struct{})
	}
	changed = !equal(filter, d.filter)
	d.filter = filter
	return changed, next
}

func equal(a, b model.Denied) bool {
	return slices.Equal(a.Edges, b.Edges) && slices.Equal(a.IDs, b.IDs)
}

func (d *denials) stop() {
	d.stopped = true
	if d.timer != nil {
		d.timer.Stop()
	}
}

// Ended replaces the ids of the tunnels that are on record as ended, each with the time until which its edges may have a
// certificate that is valid. Until then gateways' Envoys are told to deny it; agents are, and here it is refused, for as long as
// it is on record.
func (s *Server) Ended(ids map[string]time.Time) {
	ids = maps.Clone(ids)
	s.publishing.Lock()
	defer s.publishing.Unlock()
	s.mu.Lock()
	s.denials.ended, s.denials.stale = ids, true
	s.mu.Unlock()
	s.deny()
}

// deny acts on a change of who is let in, if there is one: it notifies gateways and ends the streams of edges. The caller holds
// s.publishing.
func (s *Server) deny() {
	if !s.denials.stale {
		return
	}
	now, revoked := s.now(), s.revoked()
	s.mu.Lock()
	before := s.denials.changed
	changed, next := s.denials.settle(now, revoked)
	s.again(now, next)
	s.mu.Unlock()
	if changed {
		s.relisten()
	}
	if s.denials.changed == before {
		return
	}
	s.log.Info("denials changed", "edges", len(s.denials.denied.Edges), "tunnels", len(s.denials.denied.IDs))
	for e, err := range s.refusedEdges() {
		e.end(err)
	}
}

// refusedEdges are the streams of edges that are let in no more, each with the gRPC status that says why.
func (s *Server) refusedEdges() map[*edge]error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	refused := map[*edge]error{}
	for e := range s.edges {
		if err := s.admit(e.subject); err != nil {
			refused[e] = err
		}
	}
	return refused
}

// relisten gives each gateway its listeners anew. The caller holds s.publishing.
func (s *Server) relisten() {
	s.mu.RLock()
	hosts := slices.Collect(maps.Keys(s.hosts))
	s.mu.RUnlock()
	for _, st := range hosts {
		if err := s.admitGateway(st.subject.Node); err != nil {
			st.end(err)
			continue
		}
		st.set(s.gatewayListeners(st))
	}
}

// again looks at the denials once more at a time, zero: never. The caller holds s.mu.
func (s *Server) again(now, next time.Time) {
	d := &s.denials
	if d.stopped {
		return
	}
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if next.IsZero() {
		return
	}
	d.timer = time.AfterFunc(next.Sub(now), func() {
		s.publishing.Lock()
		defer s.publishing.Unlock()
		s.mu.Lock()
		s.denials.stale = true
		s.mu.Unlock()
		s.deny()
	})
}

// Admit says whether a subject, whom a certificate that is valid names, is still let in: nil, or a gRPC status.
// codes.FailedPrecondition: an edge that is revoked, or whose tunnel is on record as ended, for good. codes.Unavailable: a tunnel
// that is not known; its edge keeps what it has and asks again. So does a gateway that is none of the installation's. Others are let
// in. Before everything is published codes.Unavailable is for all, because who would be denied is not known either.
func (s *Server) Admit(subject model.Subject) error {
	if !s.Published() {
		return status.Error(codes.Unavailable, "the server has not read the tunnels yet")
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.admit(subject)
}

func (s *Server) admit(subject model.Subject) error {
	if subject.Role == model.RoleGateway {
		return s.admitGateway(subject.Node)
	}
	if subject.Role != model.RoleEdge {
		return nil
	}
	if s.revokes(subject) {
		return status.Errorf(codes.FailedPrecondition, "%s is revoked: enrol again with a token that it has not used", subject.Node)
	}
	if _, ended := s.denials.ended[subject.ID]; ended {
		return status.Errorf(codes.FailedPrecondition, "the tunnel %s has ended: its Cluster is gone, or has opted out", subject.ID)
	}
	if s.tunnels[subject.ID] == nil {
		return status.Errorf(codes.Unavailable, "no tunnel has the id %s: its Cluster may be new or moved; otherwise a condition of it has the reason", subject.ID)
	}
	return nil
}

// Denied returns who is let in no more, those too of whom nobody can have a certificate that is valid, and a channel that is closed when that changes.
func (s *Server) Denied() (model.Denied, <-chan struct{}) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.denials.denied, s.denials.changed
}
