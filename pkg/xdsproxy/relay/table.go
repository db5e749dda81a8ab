package relay

// table is the protocol's state of one type on the stream of Envoy: what Envoy has, and the response that it has not
// answered. It does not know where resources come from.
type table struct {
	have     map[string]string // versions that Envoy has accepted, by name
	stale    map[string]bool   // names that Envoy has in a form that is no longer the right one
	answered bool              // a response was sent, possibly an empty one
	flight   *batch            // one at a time; nil: Envoy has answered everything

	todo  map[string]bool // names that may differ from what Envoy is offered
	parts []*batch        // parts of a batch that Envoy rejected, to find the resources at fault
}

// batch is one response. It has changes of one upstream only, so that Envoy's answer belongs to that upstream.
type batch struct {
	nonce   string
	share   *share // nil: no changes, or only removals of resources without an owner
	changes Set
	names   []string // of changes, in order
	stale   []string // of names
}

// newTable begins a type that Envoy has subscribed to. Envoy may have some resources already.
func newTable(have map[string]string, stale []string) *table {
	t := &table{have: map[string]string{}, stale: map[string]bool{}, todo: map[string]bool{}}
	for name, version := range have {
		t.have[name], t.todo[name] = version, true
	}
	t.reform(stale)
	return t
}

// reform has Envoy get resources again that it has.
func (t *table) reform(names []string) {
	for _, name := range names {
		t.stale[name], t.todo[name] = true, true
	}
}

// has reports whether Envoy has a resource as it should be; nil: none of this name.
func (t *table) has(name string, res *Resource) bool {
	return t.have[name] == res.version() && (res == nil || !t.stale[name])
}

// sent reports whether Envoy may have a resource.
func (t *table) sent(name string) bool {
	_, has := t.have[name]
	return has || t.flight != nil && t.flight.changes[name] != nil
}

// send puts a batch in flight.
func (t *table) send(b *batch, nonce string) {
	b.nonce = nonce
	t.flight, t.answered = b, true
	for _, name := range b.names {
		delete(t.todo, name)
		if t.stale[name] {
			delete(t.stale, name)
			b.stale = append(b.stale, name)
		}
	}
}

// answer returns the batch that Envoy answers; nil: none. Envoy has its changes, or keeps what it had.
func (t *table) answer(nonce string, accepted bool) *batch {
	b := t.flight
	if b == nil || b.nonce != nonce {
		return nil
	}
	t.flight = nil
	if !accepted {
		t.reform(b.stale)
		return b
	}
	for name, res := range b.changes {
		if res == nil {
			delete(t.have, name)
			delete(t.stale, name)
		} else {
			t.have[name] = res.Version
		}
	}
	return b
}

// next returns the next part of a batch that Envoy rejected.
func (t *table) next() *batch {
	if len(t.parts) == 0 {
		return nil
	}
	b := t.parts[0]
	t.parts = t.parts[1:]
	return b
}

// bisect has the halves of a batch that Envoy rejected sent again.
func (t *table) bisect(b *batch) {
	half := len(b.names) / 2
	t.parts = append(
		[]*batch{{share: b.share, names: b.names[:half]}, {share: b.share, names: b.names[half:]}}, t.parts...,
	)
}

func (b *batch) add(name string, res *Resource) {
	b.names = append(b.names, name)
	b.changes[name] = res
}
