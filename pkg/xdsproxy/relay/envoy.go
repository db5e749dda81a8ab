package relay

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// session is the stream of the one Envoy.
type session struct {
	id     uint64
	began  time.Time
	tables [Kinds]*table // nil: not subscribed
	plain  bool          // Envoy has accepted listeners of an xds-server that predates scopes since it was sent scopes
	nonce  uint64
}

// apply begins a session. There is one Envoy: an existing session belongs to one that has ended, even if gRPC has not
// noticed yet.
func (e Attached) apply(r *Relay) {
	r.cut(ErrReplaced)
	r.session, r.attached = &session{id: e.Session, began: r.now}, true
}

func (e Detached) apply(r *Relay) {
	if r.session != nil && r.session.id == e.Session {
		r.session = nil
		r.disprove()
	}
}

// cut ends the session of an Envoy that has ended. Messages of it that are still in transit are obsolete. An Envoy
// that has started since connects again.
func (r *Relay) cut(why error) {
	r.disprove()
	if r.session != nil {
		r.emit(CloseSession{r.session.id, why})
		r.session = nil
	}
}

func (e Requested) apply(r *Relay) {
	s := r.session
	if s == nil || s.id != e.Session {
		return
	}
	t := s.tables[e.Kind]
	if t == nil {
		r.subscribed(e)
		return
	}
	b := t.answer(e.Nonce, e.Nack == nil)
	if b == nil {
		return
	}
	if e.Kind == Listeners {
		for _, name := range b.names {
			r.places.keep(name, t.have[name])
		}
	}
	if e.Nack == nil {
		r.ack(e.Kind, b)
	} else {
		r.nack(t, e.Kind, b, *e.Nack)
	}
}

// subscribed begins to serve a kind to an Envoy that may have some resources already.
func (r *Relay) subscribed(e Requested) {
	k, t := e.Kind, newTable(e.Have, e.Stale)
	r.session.tables[k] = t
	if len(e.Have) > 0 {
		r.served = true
		r.trials.resume(r.now)
	}
	lacks := func(name string) bool { return t.have[name] == "" }
	maps.DeleteFunc(r.dropped[k], func(name string, _ bool) bool { return lacks(name) })
	if k == Listeners {
		for name := range r.places {
			r.places.keep(name, t.have[name])
		}
	}
	for _, c := range r.sorted() {
		s := c.shares[k]
		// Envoy may have accepted it on a stream whose answer was lost, and a new Envoy lacks what was removed.
		for _, names := range [][]string{keys(s.offered), keys(s.accepted), keys(s.pending.waiting)} {
			for _, name := range names {
				t.todo[name] = true
				s.agree(t, name)
			}
		}
		s.finish()
	}
	if k == Scopes {
		r.scope()
	}
}

func keys[V any](m map[string]V) []string { return slices.Collect(maps.Keys(m)) }

// ack handles Envoy's acceptance of a batch.
func (r *Relay) ack(k Kind, b *batch) {
	for name, res := range b.changes {
		if res == nil || !b.share.of.removed() {
			delete(r.dropped[k], name)
		}
		if b.share != nil {
			b.share.accept(name, res)
		} else {
			r.gone(k, name)
		}
	}
	if b.share != nil {
		b.share.finish()
		if k == Listeners {
			r.listened(b.share.of.plain)
		}
	}
}

// listened is called when Envoy has accepted listeners of an xds-server. Envoy ends its subscription of scopes with its
// last listener that uses them, without a request, and sends none when it has such a listener again: for a
// subscription to all resources its set of names has not changed. So it gets all scopes again with the first listeners
// after those of an xds-server that predates scopes. Without them it would drop the requests of all networks. The
// subscription may have survived, for the listeners of a third xds-server, so scopes that have to go are still removed.
func (r *Relay) listened(plain bool) {
	t, s := r.table(Scopes), r.session
	if t == nil || plain {
		s.plain = s.plain || t != nil
		return
	}
	if !s.plain {
		return
	}
	s.plain = false
	for _, c := range r.sorted() {
		for name, res := range c.shares[Scopes].offered {
			t.todo[name] = true
			if t.have[name] == res.Version {
				t.stale[name] = true
			} else {
				delete(t.have, name) // whatever it had is lost: it is not newer than the disk
			}
		}
	}
}

// nack handles Envoy's rejection of a batch. Of several changes Envoy applies the valid ones, but names the invalid
// ones only in a text; the relay then does not know the versions that Envoy has. So it sends them again in halves
// until each rejected change is alone. Then Envoy has the others, and the xds-server gets Envoy's reason for each.
func (r *Relay) nack(t *table, k Kind, b *batch, why Rejection) {
	why.Message = Bounded(why.Message, maxDetail)
	attrs := []any{"type_url", k.TypeURL(), "upstream", b.share.upstream(), "error", why.Message}
	switch {
	case len(b.names) > 1:
		r.log.Debug("resources rejected by Envoy, bisecting them", append(attrs, "resources", len(b.names))...)
		t.bisect(b)
	case len(b.names) == 1 && b.share != nil:
		r.log.Error("resource rejected by Envoy", append(attrs, "name", b.names[0])...)
		b.share.rejectedByEnvoy(b.names[0], b.changes[b.names[0]], why)
	default:
		r.log.Error("response rejected by Envoy", append(attrs, "names", b.names)...)
	}
}

// rejectedByEnvoy withdraws one rejected change. Envoy keeps what it accepted before, unless that is what it rejects
// now.
func (s *share) rejectedByEnvoy(name string, res *Resource, why Rejection) {
	if s.of.removed() || s.offered[name].version() != res.version() {
		return // there is a newer version
	}
	instead := Set{}
	if old := s.accepted[name]; old.version() != res.version() {
		instead[name] = old
	} else {
		s.accept(name, nil) // it was accepted by an older Envoy, for example
	}
	if s.rejected[name] == nil {
		s.reject(Set{name: res}, why, instead)
	} else { // Envoy had to have it instead of a newer version, whose rejection remains
		s.offer(name, instead[name])
	}
	s.finish()
}

func (e Reformed) apply(r *Relay) {
	if t := r.table(e.Kind); t != nil {
		t.reform(slices.DeleteFunc(slices.Clone(e.Names), func(name string) bool { return !t.sent(name) }))
	}
}

// upstream returns the name of the upstream; empty for nil.
func (s *share) upstream() string {
	if s == nil {
		return ""
	}
	return s.of.name
}

// pump sends Envoy what it may get now.
func (r *Relay) pump() {
	for r.session != nil {
		k, b := r.choose()
		if b == nil {
			return
		}
		switch r.trials.judge(r, b) {
		case sendNow:
			r.send(k, b)
			continue
		case recordFirst:
			r.again(k, b)
			return
		case rollBackFirst:
			r.again(k, b)
			// Resources that the xds-server has not sent yet may be at fault instead. They get one trial, not all.
			r.trials.count = crashLimit - 1
			r.rollBack(r.suspects())
		}
	}
}

// again has a batch chosen again; it may be a part of a rejected one.
func (r *Relay) again(k Kind, b *batch) {
	for _, name := range b.names {
		r.session.tables[k].todo[name] = true
	}
}

// send sends a batch to Envoy.
func (r *Relay) send(k Kind, b *batch) {
	s := r.session
	s.nonce++
	s.tables[k].send(b, strconv.FormatUint(s.nonce, 10))
	response := Respond{Session: s.id, Kind: k, Nonce: b.nonce}
	for _, name := range b.names {
		if res := b.changes[name]; res != nil {
			response.Resources = append(response.Resources, res)
			r.served = true
			r.place(k, res)
		} else {
			response.Removed = append(response.Removed, name)
		}
	}
	r.log.Debug("resources sent to Envoy", "type_url", k.TypeURL(), "nonce", b.nonce, "upstream", b.share.upstream(),
		"resources", len(response.Resources), "removed", len(response.Removed))
	r.emit(response)
}

// choose returns the next batch; nil: there is none. Additions go in the order of kinds, so that an Envoy cluster
// exists before the listener that refers to it. Removals go in the reverse order.
func (r *Relay) choose() (Kind, *batch) {
	for k, t := range r.session.tables {
		if t == nil {
			continue
		}
		k := Kind(k)
		if k == Scopes && t.flight == nil && !t.answered && !r.ready(k) {
			continue // an xds-server without scopes must not delay listeners
		}
		if t.flight != nil || !t.answered && !r.ready(k) {
			return 0, nil
		}
		if b := r.part(k); b != nil {
			return k, b
		}
		if b := r.additions(k); b != nil {
			return k, b
		}
		if !t.answered {
			return k, &batch{} // Envoy waits for an answer even if it has everything
		}
	}
	for k, t := range slices.Backward(r.session.tables[:]) {
		if t == nil {
			continue
		}
		if b := r.removals(Kind(k)); b != nil {
			return Kind(k), b
		}
	}
	return 0, nil
}

// ready reports whether a first answer can be sent. Envoy waits for it without a limit, and assumes that resources
// missing from it do not exist. So the relay waits for every known upstream, but only for a few seconds: that is
// enough for one that works, and one that does not must not delay the others. Before the first upstream is known at
// all, it waits without a limit.
func (r *Relay) ready(k Kind) bool {
	if len(r.upstreams) == 0 { // perhaps there are resources to remove
		some := func(t *table) bool { return t != nil && len(t.have) > 0 }
		return r.removedAny && slices.ContainsFunc(r.session.tables[:], some)
	}
	some, all := false, true
	for _, c := range r.upstreams {
		some, all = some || c.ready(k), all && c.ready(k)
	}
	return all || some && !r.now.Before(r.session.began.Add(r.Times.First))
}

// part returns the next part of a batch that Envoy rejected, with the present resources.
func (r *Relay) part(k Kind) *batch {
	t := r.session.tables[k]
	for b := t.next(); b != nil; b = t.next() {
		if b.share != nil && b.share.of.removed() {
			continue
		}
		names := b.names
		b.names, b.changes = nil, Set{}
		for _, name := range names {
			var want *Resource
			if b.share != nil {
				want = b.share.offered[name]
			}
			if !t.has(name, want) {
				b.add(name, want)
			}
		}
		if len(b.names) > 0 {
			return b
		}
	}
	return nil
}

// additions returns the resources of one upstream that Envoy lacks or has in another version; nil: there are none.
func (r *Relay) additions(k Kind) *batch {
	t := r.session.tables[k]
	byShare := map[*share][]string{}
	for _, name := range slices.Sorted(maps.Keys(t.todo)) {
		o := r.owners[k][name]
		if o == nil || o.offered[name] == nil {
			continue // at most a removal
		}
		if t.has(name, o.offered[name]) {
			t.done(o, name)
		} else if o.of.ready(k) && !o.held(t, name) && !r.blocked(k, o.offered[name]) {
			byShare[o] = append(byShare[o], name)
		}
	}
	return first(byShare)
}

// done records that Envoy has under a name what it is to have, possibly from before.
func (t *table) done(o *share, name string) {
	delete(t.todo, name)
	if o != nil {
		o.agree(t, name)
		o.finish()
	}
}

// held reports whether Envoy keeps its version of a resource of an upstream that has not answered yet. An Envoy that
// outlived its agent may have something newer than the disk. It does not keep a version that is known to be rejected.
func (s *share) held(t *table, name string) bool {
	have, has := t.have[name]
	if !has || s.source == server || s.yielded[name] || have == s.offered[name].version() {
		return false // in the last case only the form differs
	}
	why := s.rejected[name]
	return why == nil || why.Versions[name] != have
}

// removals returns the resources of Envoy that their upstream no longer has, or that belong to no upstream; nil: there
// are none. A resource without an upstream may belong to one that has not answered yet: it is kept until all have
// answered. It is not kept if its upstream was removed while it was in use.
func (r *Relay) removals(k Kind) *batch {
	t := r.session.tables[k]
	complete, asked := len(r.upstreams) > 0 || r.removedAny, true
	for _, c := range r.upstreams {
		complete, asked = complete && c.ready(k), asked && c.shares[k].source == server
	}
	byShare := map[*share][]string{}
	for _, name := range slices.Sorted(maps.Keys(t.todo)) {
		o := r.owners[k][name]
		if o != nil && o.offered[name] != nil {
			continue
		}
		inUse, dropped := r.dropped[k][name]
		if _, has := t.have[name]; !has {
			t.done(o, name)
		} else if o != nil && o.of.ready(k) && !o.held(t, name) || o == nil && (inUse || complete && (asked || dropped)) {
			byShare[o] = append(byShare[o], name)
		}
	}
	return first(byShare)
}

// first returns a batch with the changes of one upstream, the first by name.
func first(byShare map[*share][]string) *batch {
	if len(byShare) == 0 {
		return nil
	}
	s := slices.MinFunc(
		slices.Collect(maps.Keys(byShare)), func(a, b *share) int { return strings.Compare(a.upstream(), b.upstream()) },
	)
	b := &batch{share: s, changes: Set{}}
	for _, name := range byShare[s] {
		var res *Resource
		if s != nil {
			res = s.offered[name]
		}
		b.add(name, res)
	}
	return b
}
