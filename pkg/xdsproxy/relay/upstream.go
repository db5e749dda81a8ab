package relay

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
)

// maxPending is the number of responses of a type that may wait for Envoy. An xds-server sends the next response after
// the answer to the previous one; the stream of one that does not wait is closed.
const maxPending = 64

// upstream holds the resources of one upstream: an xds-server by the identity of one membership.
type upstream struct {
	relay  *Relay
	name   string
	shares [Kinds]*share

	stream    uint64 // the open stream; 0: none
	plain     bool   // the xds-server may predate scopes: it is not asked for them on this stream
	connected bool   // it has answered on the open stream
	since     time.Time

	proving  *proof    // becomes good if Envoy keeps running; nil: nothing is being proven
	unproven bool      // what is accepted differs from what is good
	accepted time.Time // last change of what is accepted

	writing uint64 // id of the Write that has no result yet; 0: none
	wrote   time.Time
	rest    time.Time // no write before
	failing bool      // the last write failed
}

func newUpstream(r *Relay, name string) *upstream {
	c := &upstream{relay: r, name: name, since: r.now}
	for k := range c.shares {
		c.shares[k] = newShare(c, Kind(k))
	}
	return c
}

// removed reports whether the upstream was removed. Responses that Envoy has not answered may still refer to it.
func (c *upstream) removed() bool { return c.relay.upstreams[c.name] != c }

// ready reports whether resources of a kind may be sent: they are known, and so are the kinds that they refer to.
func (c *upstream) ready(k Kind) bool {
	unknown := func(s *share) bool { return s.source == none && (s.kind != Scopes || k == Scopes) }
	return !slices.ContainsFunc(c.shares[:k+1], unknown)
}

// cached reports whether resources were on disk, and the xds-server has not answered since the agent started.
func (c *upstream) cached() bool {
	from := func(source source) bool {
		return slices.ContainsFunc(c.shares[:], func(s *share) bool { return s.source == source })
	}
	return from(disk) && !from(server)
}

func (e Vetted) apply(r *Relay) {
	c := r.upstream(e.Upstream)
	for _, f := range e.Faults {
		s := c.shares[f.Kind]
		if res := s.offered[f.Name]; res.version() == f.Version {
			r.log.Error("resource rejected", "upstream", c.name, "type_url", f.Kind.TypeURL(), "name", f.Name, "error", f.Why)
			s.reject(Set{f.Name: res}, Rejection{Code: codes.InvalidArgument, Message: f.Why}, nil)
		}
		if s.accepted[f.Name].version() == f.Version {
			s.accept(f.Name, nil)
			c.proving = nil
		}
		if s.good[f.Name].version() == f.Version {
			s.setGood(f.Name, nil)
		}
	}
}

// apply removes an upstream. Its open stream ends, because it would bring changes to removed resources.
func (e Removed) apply(r *Relay) {
	r.emit(Erase(e))
	r.emit(Notify{})
	c := r.upstreams[e.Upstream]
	if c == nil {
		return
	}
	delete(r.upstreams, c.name)
	r.removedAny = true
	for k, owners := range r.owners {
		maps.DeleteFunc(owners, func(name string, s *share) bool {
			if s.of != c {
				return false
			}
			r.drop(Kind(k), name)
			return true
		})
	}
	c.end(ErrRemoved)
}

// maxDropped bounds the names of removed resources. Envoy keeps resources of more names until all upstreams have
// answered.
const maxDropped = 1 << 17

// drop records that Envoy may have a resource that no upstream has. Before an Envoy has connected, its upstream is one
// that was on disk and that the agent does not have: the resource may be one of another upstream by now.
func (r *Relay) drop(k Kind, name string) {
	t := r.table(k)
	if t != nil {
		t.todo[name] = true
	}
	if (t == nil || t.sent(name)) && len(r.dropped[k]) < maxDropped {
		r.dropped[k][name] = r.attached
	}
}

// apply begins a stream: it subscribes to everything and names the versions that Envoy has accepted, so that only
// differences are sent. Resources that Envoy has not accepted are sent again and answered.
func (e Opened) apply(r *Relay) {
	c := r.upstream(e.Upstream)
	c.stream = e.Stream
	first := true
	for _, s := range c.shares {
		s.subscribed = false
		if s.kind != Scopes || r.scoped && !c.plain {
			s.subscribe(first)
			first = false
		}
	}
}

// subscribe begins a type on the open stream.
func (s *share) subscribe(first bool) {
	s.subscribed, s.base = true, maps.Clone(s.accepted)
	s.of.relay.emit(Subscribe{s.of.name, s.of.stream, s.kind, first, s.base.versions()})
}

// scope subscribes to scopes from now on. Before Envoy subscribes to them, the xds-servers are not asked: only gateways
// have scopes, and an xds-server that predates them closes a stream with such a request.
func (r *Relay) scope() {
	if r.scoped {
		return
	}
	r.scoped = true
	for _, c := range r.sorted() {
		if s := c.shares[Scopes]; c.stream != 0 && !s.subscribed && !c.plain {
			s.subscribe(false)
		}
	}
}

func (e Closed) apply(r *Relay) {
	c := r.upstreams[e.Upstream]
	if c == nil || c.stream != e.Stream {
		return
	}
	c.close()
	// An xds-server that predates scopes rejects the request for them.
	c.plain = e.Code == codes.InvalidArgument && r.scoped && !c.plain
}

// close discards the open stream, and the answers that it waits for.
func (c *upstream) close() {
	c.stream = 0
	for _, s := range c.shares {
		s.pending = pending{waiting: map[string]string{}}
		s.nonce, s.base, s.subscribed = "", nil, false
	}
	if c.connected {
		c.connected, c.since = false, c.relay.now
	}
	c.relay.emit(Notify{})
}

// end closes the open stream for a reason.
func (c *upstream) end(why error) {
	if c.stream != 0 {
		c.relay.emit(CloseStream{c.name, c.stream, why})
		c.close()
	}
}

func (e Received) apply(r *Relay) {
	c := r.upstreams[e.Upstream]
	if c == nil || c.stream != e.Stream || e.Stream == 0 {
		return
	}
	s := c.shares[e.Kind]
	switch {
	case !s.subscribed:
		c.end(ErrNotAsked)
		return
	case len(s.pending.nonces) >= maxPending:
		c.end(ErrTooMany)
		return
	}
	if !c.connected {
		c.connected, c.since = true, r.now
		r.log.Info("xds-server answers", "upstream", c.name)
	}
	s.receive(e.Changes, e.Nonce)
	r.emit(Notify{})
}

// State is the state of an upstream.
type State struct {
	Connected bool      // the xds-server has answered on the open stream
	Since     time.Time // last change of Connected, or the start
	// resources were loaded from disk, and the xds-server has not answered since: Envoy has these or what it had before
	Cached  bool
	Refused string // why Envoy, Check or a rollback rejected the newest resources; empty: they are not rejected
}

// State returns the state of an upstream; the zero value if the upstream is not known.
func (r *Relay) State(name string) State {
	c := r.upstreams[name]
	if c == nil {
		return State{}
	}
	reasons := map[string]bool{}
	for _, s := range c.shares {
		maps.Copy(reasons, messages(s.rejected))
	}
	return State{Connected: c.connected, Since: c.since, Cached: c.cached(), Refused: joined(reasons)}
}

// Accepted returns the names of an upstream's resources of one kind that Envoy, or an earlier Envoy, accepted last, in
// order.
func (r *Relay) Accepted(name string, k Kind) []string {
	if c := r.upstreams[name]; c != nil {
		return slices.Sorted(maps.Keys(c.shares[k].accepted))
	}
	return nil
}

// Upstreams returns the names of all upstreams, in order.
func (r *Relay) Upstreams() []string { return slices.Sorted(maps.Keys(r.upstreams)) }

// Owns reports whether a resource of any kind belongs to an upstream: Envoy has it, or is offered it, from there.
func (r *Relay) Owns(upstream, resource string) bool {
	return slices.ContainsFunc(r.owners[:], func(owners map[string]*share) bool {
		owner := owners[resource]
		return owner != nil && owner.of.name == upstream
	})
}

// Offered returns the resources of a kind that Envoy is offered, in no particular order.
func (r *Relay) Offered(k Kind) []*Resource {
	all := make([]*Resource, 0, len(r.owners[k]))
	for name, owner := range r.owners[k] {
		if res := owner.offered[name]; res != nil {
			all = append(all, res)
		}
	}
	return all
}

// Present returns the resources of an upstream that a check has to accept, by kind: the ones that Envoy has run with,
// and then the ones that are offered to it, so that the newest of each name is the last.
func (r *Relay) Present(upstream string) (all [Kinds][]*Resource) {
	c := r.upstreams[upstream]
	for k := range all {
		if c != nil {
			all[k] = slices.AppendSeq(slices.Collect(maps.Values(c.shares[k].good)), maps.Values(c.shares[k].offered))
		}
	}
	return all
}
