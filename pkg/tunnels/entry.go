package tunnels

import (
	"log/slog"
	"time"

	"github.com/fairlead/fairlead/pkg/sockets"
	"github.com/fairlead/fairlead/pkg/tunnels/ledger"
)

// entry is a tunnel in the table, or a connection of a node. A later one with the same key gets an entry of its own.
type entry struct {
	tunnel
	owner      string // of a connection; empty for a tunnel
	connection string // Envoy's number of a connection
	worker     int    // number of the worker; negative: not known
	stuck      bool   // the attempt to close it, so that the edge dials again, failed
	// cookie identifies its socket, if sockets are found by file descriptors; zero: not found yet. The table's mu guards
	// it.
	cookie sockets.Cookie

	// The fields below are used only by the goroutine that closes connections.
	socket    *sockets.Socket // nil: not looked up, or not found
	ambiguous bool            // several sockets could have been the tunnel's
	destroyed bool            // its socket was destroyed
}

// change is the state of a key after all events of a batch.
type change struct {
	tunnel
	closed bool
	seen   bool // it existed before, but no event of the batch has its start time
}

// batch collects the changes that a series of events makes.
type batch struct {
	changes map[string]change // by key
	opened  map[string][]int  // number of tunnels opened, by node and worker, including tunnels that were closed again
	others  []event           // events of connections that are not tunnels, in order
	workers int
}

func newBatch(workers int) batch {
	return batch{changes: map[string]change{}, opened: map[string][]int{}, workers: workers}
}

func (b batch) open(t tunnel) { b.changes[t.Key] = change{tunnel: t} }

// count counts an opened tunnel.
func (b batch) count(t tunnel) {
	worker := workerOf(t.Worker, b.workers)
	if b.workers <= 1 || worker < 0 || t.Lane { // Envoy counts the tunnels of lanes separately
		return
	}
	if b.opened[t.Node] == nil {
		b.opened[t.Node] = make([]int, b.workers)
	}
	b.opened[t.Node][worker]++
}

// add adds an event that came after the events added before.
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
		if had && !before.closed && before.sameEdge(e.tunnel) {
			before.Used = e.Used
			b.changes[e.Key] = before
			return
		}
		b.changes[e.Key] = change{tunnel: e.tunnel, seen: !had}
	case eventClosed:
		if before, had := b.changes[e.Key]; had && !before.closed && !before.is(e.tunnel) {
			return // The event is of an older connection with the same addresses.
		}
		b.changes[e.Key] = change{tunnel: e.tunnel, closed: true}
	}
}

// apply applies a batch to the table.
func (t *Table) apply(b batch, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for node, opened := range b.opened {
		t.repairs.turns.add(node, opened)
	}
	for _, e := range b.others {
		if ofNode(e.owner) {
			t.connection(e)
		} else {
			t.record(e)
		}
	}
	keys := make([]string, 0, len(b.changes))
	for key, c := range b.changes {
		e, had := t.live[key]
		reported := t.reports(c.tunnel) || had && t.reports(e.tunnel)
		switch {
		case c.closed && (!had || !e.is(c.tunnel)):
			continue
		case c.closed:
			t.drop(key, now)
		case had && e.sameEdge(c.tunnel) && (c.seen || e.Since.Equal(c.Since) && e.is(c.tunnel)):
			e.Used = later(e.Used, c.Used)
			continue // already in the table
		default:
			t.drop(key, now) // another tunnel with this key
			e = &entry{tunnel: c.tunnel}
			t.live[key], t.unbound[e] = e, true
			t.counts.add(e.Tunnel, 1)
			t.join(e, now)
			if bare := e.Remote.String(); bare != key && t.live[bare] != nil && t.live[bare].Node == e.Node &&
				t.live[bare].ID == e.ID {
				t.drop(bare, now) // It is the same tunnel, and Envoy reports both of its addresses now.
				keys = append(keys, bare)
			}
		}
		if reported {
			keys = append(keys, key)
		}
	}
	if t.history.Version > 0 { // Before the first check, no version is published.
		t.history.Add(keys)
	}
	if len(t.unbound) > 0 || t.history.Version == 0 {
		notify(t.notifyEnforce)
	}
}

// record adds a record of a connection that is not of a node. The caller holds mu.
func (t *Table) record(e event) {
	switch e.name {
	case eventStart:
		t.ledger.Start(e.Key, ledger.Owned{Owner: e.owner, Connection: e.connection})
	case eventEnd:
		t.ledger.End(e.Key, e.connection)
	}
}

// drop removes the tunnel with a key from the table and its indexes, if there is one.
func (t *Table) drop(key string, now time.Time) {
	if e := t.live[key]; e != nil {
		delete(t.live, key)
		delete(t.unbound, e)
		if t.cookies[e.cookie] == e {
			delete(t.cookies, e.cookie)
		}
		t.counts.add(e.Tunnel, -1)
		t.part(e, now)
	}
}

// remove removes entries from the table whose sockets no longer exist.
func (t *Table) remove(gone ...*entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var keys []string
	for _, e := range gone {
		if e.owner != "" {
			t.disconnect(e)
		} else if t.live[e.Key] == e {
			if t.drop(e.Key, time.Now()); t.reports(e.tunnel) {
				keys = append(keys, e.Key)
			}
		}
	}
	if t.history.Version > 0 {
		t.history.Add(keys)
	}
}

// maxReasons bounds the number of logged errors that are remembered.
const maxReasons = 64

// logReasons is the set of errors that were logged.
type logReasons map[string]bool

// logOnce logs an error once for each combination of message and reason.
func (t *Table) logOnce(level slog.Level, message string, err error) {
	key := message + ": " + err.Error()
	t.mu.Lock()
	logged := t.logged[key]
	if t.logged == nil || len(t.logged) >= maxReasons {
		t.logged = logReasons{}
	}
	t.logged[key] = true
	t.mu.Unlock()
	if !logged {
		t.config.Logger.Log(logContext, level, message, "error", err)
	}
}
