package xds

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pkg/model"
)

// denyInterval is the least time between two changes of what gateways deny. Each change replaces the public listener of
// every gateway, and the owners of all namespaces can cause changes, with names that no edge has had. Long lists change
// less often, so that a gateway gets at most denyRate bytes a second: the longest ones every 2.2 s.
const denyInterval, denyRate = 250 * time.Millisecond, 8 << 20

// filteredBytes and deniedBytes are about what a revoked edge takes in the listener of a gateway, where two filter
// chains have it, and in a message to its agent. An ended tunnel takes less.
const filteredBytes, deniedBytes = 2 * 170, 60

// maxRecorded and maxUnrecorded bound the revoked edges that the agents of gateways deny. Each agent gets all of them
// with each change, and the owners of all namespaces can write names. maxRecorded is for edges that have enrolled: a
// Tunnel's status has 100. maxUnrecorded is for other names: of edges that came with a moved Cluster, or for which a
// status has no place, and invented ones. This server denies all.
const maxRecorded, maxUnrecorded = 131_072, 16_384

// maxFiltered bounds the revoked edges that the listeners of gateways deny. Envoy compares each with the leaf of each
// handshake. The agents of gateways deny more, so a listener matters only while its agent does not answer.
// maxFilteredOfTunnel bounds those of one Tunnel: the last ones, because a leaf lives for a day.
const maxFiltered, maxFilteredOfTunnel = 16_384, 64

// denials are the revoked edges and the ended tunnels.
type denials struct {
	ended    map[string]time.Time // until when edges may have a valid certificate, by tunnel id
	denied   model.Denied         // for agents, sorted: a reverse tunnel outlives its certificate
	filter   model.Denied         // for Envoys: a part of the edges, and the ids for which a valid leaf can exist
	changed  chan struct{}        // closed when denied changes
	timer    *time.Timer          // for the next id to leave filter, or the end of the interval; nil: there is none
	stopped  bool
	stale    bool      // denied and filter may not match the tunnels and ended
	resolved time.Time // when they last did
}

func newDenials() denials {
	return denials{ended: map[string]time.Time{}, changed: make(chan struct{})}
}

// resolve returns what denied and filter have to be. next is the time of the next change of filter without an event;
// zero: there is none.
func (d *denials) resolve(
	now time.Time, revoked, filtered []model.EdgeRef,
) (denied, filter model.Denied, next time.Time) {
	denied, filter = model.Denied{Edges: revoked, IDs: slices.Sorted(maps.Keys(d.ended))}, model.Denied{Edges: filtered}
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
	return denied, filter, next
}

// set updates denied and filter. If news is set, those that follow denied are notified.
func (d *denials) set(now time.Time, denied, filter model.Denied, news bool) {
	d.stale, d.resolved, d.filter = false, now, filter
	if news {
		d.denied = denied
		close(d.changed)
		d.changed = make(chan struct{})
	}
}

func (d *denials) stop() {
	d.stopped = true
	if d.timer != nil {
		d.timer.Stop()
	}
}

// Ended replaces the ids of the tunnels that are on record as ended. The value of each id is the time until which
// its edges may have a valid certificate. Gateways' Envoys deny the id until that time. Agents, and this server,
// deny it as long as it is on record.
func (s *Server) Ended(ids map[string]time.Time) {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	if maps.EqualFunc(ids, s.denials.ended, time.Time.Equal) {
		return
	}
	ids = maps.Clone(ids)
	s.mu.Lock()
	s.denials.ended, s.denials.stale = ids, true
	s.mu.Unlock()
	s.deny()
}

// interval is the time until the next change.
func (d *denials) interval() time.Duration {
	bytes := (len(d.filter.Edges)+len(d.filter.IDs))*filteredBytes + (len(d.denied.Edges)+len(d.denied.IDs))*deniedBytes
	return max(denyInterval, time.Duration(bytes)*time.Second/denyRate)
}

// deny applies changes of the denials, if there are any: it updates the listeners of gateways and closes the streams
// of denied edges. It applies those within the interval after the last ones together, at its end. Before everything is
// published it applies them at once, because the first streams must not miss any. The caller holds s.publishing.
func (s *Server) deny() {
	if !s.denials.stale {
		return
	}
	now := s.now()
	if due := s.denials.resolved.Add(s.denials.interval()); s.Published() && now.Before(due) {
		s.mu.Lock()
		s.schedule(now, due)
		s.mu.Unlock()
		return
	}
	revoked, omitted, filtered := s.revoked()
	denied, filter, next := s.denials.resolve(now, revoked, filtered)
	news := omitted > 0 || !denied.Equal(s.denials.denied) // those that are left out may have changed
	changed := !filter.Equal(s.denials.filter)
	s.mu.Lock()
	s.denials.set(now, denied, filter, news)
	s.schedule(now, next)
	s.mu.Unlock()
	if changed {
		s.relisten()
	}
	if !news {
		return
	}
	s.log.Info(
		"denials changed", "edges", len(s.denials.denied.Edges), "tunnels", len(s.denials.denied.IDs), "omitted", omitted,
	)
	for e, err := range s.refusedEdges() {
		e.close(err)
	}
}

// refusedEdges returns the streams of edges that are no longer admitted, each with the gRPC status that states the
// reason.
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

// relisten has the listeners of each gateway built again. The Envoy clusters that they refer to have been published.
// The caller holds s.publishing.
func (s *Server) relisten() {
	s.mu.Lock()
	s.listening = listening{s.profiles, s.denials.filter, s.taken}
	hosts := slices.Collect(maps.Keys(s.gatewayStreams))
	s.mu.Unlock()
	for _, st := range hosts {
		if err := s.admitGateway(st.subject.Node); err != nil {
			st.close(err)
			continue
		}
		st.change(listenersKind)
	}
}

// schedule has the denials resolved again at a time; zero: never. It replaces the previous timer. The caller holds
// s.mu.
func (s *Server) schedule(now, next time.Time) {
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

// Admit returns nil if a subject with a valid certificate is still admitted, and else a gRPC status.
// codes.FailedPrecondition: the edge is revoked, or its tunnel is on record as ended; this is final.
// codes.Unavailable: the tunnel is not known, or the gateway is not one of the installation; the agent keeps its
// configuration and retries. codes.PermissionDenied: the tunnel serves another role, edges or apiservers. Subjects of
// other roles are admitted. Until everything is published, Admit returns
// codes.Unavailable for all, because the denials are not known yet.
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
	if !subject.Role.Enrols() {
		return nil
	}
	if s.revokes(subject) {
		return status.Errorf(
			codes.FailedPrecondition, "%s is revoked: enrol again with a token that it has not used", subject.Node,
		)
	}
	if _, ended := s.denials.ended[subject.ID]; ended {
		return status.Errorf(
			codes.FailedPrecondition, "the tunnel %s has ended: its Cluster is gone, or has opted out", subject.ID,
		)
	}
	t := s.tunnels[subject.ID]
	if t == nil {
		return status.Errorf(
			codes.Unavailable,
			"no tunnel has the id %s: its Cluster may be new or moved; otherwise a condition of it has the reason", subject.ID,
		)
	}
	if t.cluster.Egress != (subject.Role == model.RoleEgress) {
		return status.Errorf(
			codes.PermissionDenied, "the certificate of %s has the role %s, which the tunnel %s does not serve", subject.Node,
			subject.Role, subject.ID,
		)
	}
	return nil
}

// Denied returns the revoked edges, within maxRecorded and maxUnrecorded, and the ended tunnels, including ids without
// a valid certificate, and a channel that is closed when they change.
func (s *Server) Denied() (model.Denied, <-chan struct{}) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.denials.denied, s.denials.changed
}
