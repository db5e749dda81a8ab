package tunnels

import (
	"log/slog"
	"time"

	"github.com/fairlead/fairlead/pkg/sockets"
)

// entry is a tunnel in the table. Another tunnel with the same key is another entry.
type entry struct {
	tunnel
	worker int  // number of the worker; less than 0: not known
	stuck  bool // it could not be cut to have it dialled again

	// Of the goroutine that cuts, alone.
	socket    *sockets.Socket // nil: not looked up, or not found
	ambiguous bool            // there was more than one that might be it
	cut       bool            // it was destroyed
}

// change is what is so after all events of a key.
type change struct {
	tunnel
	closed bool
	seen   bool // it was there already, but nothing in the batch says since when
}

// batch is what changed.
type batch struct {
	changes map[string]change // by key
	opened  map[string][]int  // by node and worker: how many tunnels were opened, those that are gone again too
	others  []event           // of connections that are no tunnels, in order
	workers int
}

func newBatch(workers int) batch {
	return batch{changes: map[string]change{}, opened: map[string][]int{}, workers: workers}
}

func (b batch) open(t tunnel) { b.changes[t.Key] = change{tunnel: t} }

// count counts a tunnel that was opened.
func (b batch) count(t tunnel) {
	worker := workerOf(t.Worker, b.workers)
	if b.workers <= 1 || worker < 0 {
		return
	}
	if b.opened[t.Node] == nil {
		b.opened[t.Node] = make([]int, b.workers)
	}
	b.opened[t.Node][worker]++
}

// add adds an event that came after those before.
func (b *batch) add(e event) {
	if e.owner != ownerTunnel {
		b.others = append(b.others, e)
		return
	}
	switch e.name {
	case eventSetup:
		b.open(e.tunnel)
		b.count(e.tunnel)
	case eventHandoff:
		e.Used = e.Since
		before, had := b.changes[e.Key]
		if had && !before.closed && before.Node == e.Node && before.ID == e.ID {
			before.Used = e.Used
			b.changes[e.Key] = before
			return
		}
		b.changes[e.Key] = change{tunnel: e.tunnel, seen: !had}
	case eventClosed:
		if before, had := b.changes[e.Key]; had && !before.closed && !before.is(e.tunnel) {
			return // of an older connection with the same addresses
		}
		b.changes[e.Key] = change{tunnel: e.tunnel, closed: true}
	}
}

// apply changes the table.
func (t *Table) apply(b batch, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for node, opened := range b.opened {
		t.repairs.turns.add(node, opened)
	}
	for _, e := range b.others {
		t.ledger.record(e)
	}
	keys := make([]string, 0, len(b.changes))
	for key, c := range b.changes {
		e, had := t.live[key]
		switch {
		case c.closed && (!had || !e.is(c.tunnel)):
			continue
		case c.closed:
			t.drop(key, now)
		case had && e.Node == c.Node && e.ID == c.ID && (c.seen || e.Since.Equal(c.Since) && e.is(c.tunnel)):
			e.Used = later(e.Used, c.Used)
			continue // known already
		default:
			t.drop(key, now) // another one
			e = &entry{tunnel: c.tunnel}
			t.live[key], t.unbound[key] = e, e
			t.join(e, now)
			if bare := e.Remote.String(); bare != key && t.live[bare] != nil && t.live[bare].Node == e.Node && t.live[bare].ID == e.ID {
				t.drop(bare, now) // it is the same one, of which Envoy says more now
				keys = append(keys, bare)
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

// drop takes the tunnel with a key, if there is one, from all that is known.
func (t *Table) drop(key string, now time.Time) {
	if e := t.live[key]; e != nil {
		delete(t.live, key)
		delete(t.unbound, key)
		t.part(e, now)
	}
}

// remove takes tunnels from the table whose sockets are gone.
func (t *Table) remove(gone ...*entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var keys []string
	for _, e := range gone {
		if t.live[e.Key] == e {
			t.drop(e.Key, time.Now())
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
