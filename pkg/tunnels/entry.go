package tunnels

import "log/slog"

// entry is a tunnel in the table. Another tunnel with the same key is another entry.
type entry struct {
	tunnel

	// Of the goroutine that cuts, alone.
	socket    *socket // nil: not looked up, or not found
	ambiguous bool    // there was more than one that might be it
	cut       bool    // it was destroyed
}

// change is what is so after all events of a key.
type change struct {
	tunnel
	closed bool
	seen   bool // it was there already, but nothing in the batch says since when
}

// batch is what changed, by key.
type batch map[string]change

func (b batch) open(t tunnel) { b[t.Key] = change{tunnel: t} }

// add adds an event that came after those before.
func (b batch) add(e event) {
	switch e.name {
	case eventSetup:
		b.open(e.tunnel)
	case eventHandoff:
		before, had := b[e.Key]
		if had && !before.closed && before.Node == e.Node && before.ID == e.ID {
			return
		}
		b[e.Key] = change{tunnel: e.tunnel, seen: !had}
	case eventClosed:
		b[e.Key] = change{tunnel: e.tunnel, closed: true}
	}
}

// apply changes the table.
func (t *Table) apply(changes batch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	keys := make([]string, 0, len(changes))
	for key, c := range changes {
		e, had := t.live[key]
		switch {
		case c.closed && !had:
			continue
		case c.closed:
			delete(t.live, key)
			delete(t.unbound, key)
		case had && e.Node == c.Node && e.ID == c.ID && (c.seen || e.Since.Equal(c.Since)):
			continue // known already
		default:
			e = &entry{tunnel: c.tunnel}
			t.live[key], t.unbound[key] = e, e
			if bare := e.Remote.String(); bare != key && t.live[bare] != nil && t.live[bare].Node == e.Node && t.live[bare].ID == e.ID {
				delete(t.live, bare) // it is the same one, of which Envoy says more now
				delete(t.unbound, bare)
				keys = append(keys, bare)
			}
			if e.Local.IsValid() && len(t.locals) < maxLocals {
				t.locals[e.Local] = true
			}
		}
		keys = append(keys, key)
	}
	if t.history.version > 0 { // else nobody may know them before they were checked
		t.history.add(keys)
	}
	if len(t.unbound) > 0 || t.history.version == 0 {
		wake(t.kick)
	}
}

// remove takes tunnels from the table whose sockets are gone.
func (t *Table) remove(gone ...*entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var keys []string
	for _, e := range gone {
		if t.live[e.Key] == e {
			delete(t.live, e.Key)
			delete(t.unbound, e.Key)
			keys = append(keys, e.Key)
		}
	}
	if t.history.version > 0 {
		t.history.add(keys)
	}
}

// maxReasons bounds what is remembered of what was said.
const maxReasons = 64

// reasons tells new reasons from those seen before.
type reasons map[string]bool

// say logs an error, once for each reason.
func (t *Table) say(level slog.Level, message string, err error) {
	key := message + ": " + err.Error()
	t.mu.Lock()
	said := t.said[key]
	if t.said == nil || len(t.said) >= maxReasons {
		t.said = reasons{}
	}
	t.said[key] = true
	t.mu.Unlock()
	if !said {
		t.config.Logger.Log(logContext, level, message, "error", err)
	}
}
