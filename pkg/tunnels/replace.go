package tunnels

import (
	"errors"
	"log/slog"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/sockets"
)

const (
	// replaceAfter is the wait from the first denied tunnel to the replacement of Envoy, so that denials that follow
	// each other cause one. replaceEvery is the minimum time between two replacements. Both, and the time that Envoy
	// needs to end, are within the 5 s in which a denial closes tunnels.
	replaceAfter, replaceEvery = time.Second, 3 * time.Second
	// replaceUnknownEvery is the minimum time between a replacement and one that only closes connections without a
	// recorded owner.
	replaceUnknownEvery = 10 * time.Minute
)

var (
	errNotReplaced = errors.New("no Envoy can be replaced at this moment")
	errKept        = errors.New("its connection is open after the replacement of Envoy")
)

// replacement closes tunnels where single connections cannot be closed: see Config.Replace. Only the goroutine of
// enforce uses it.
type replacement struct {
	doomed map[*entry]bool // denied tunnels whose connection may be open
	since  time.Time       // since when one of them waits; zero: none does
	last   time.Time       // when Envoy was last replaced
}

// replaceDenied replaces Envoy if a denied tunnel, or a connection without a recorded owner, is open. A denied tunnel
// counts as closed once the kernel no longer has its socket. It returns the number of denied tunnels that are open.
func (t *Table) replaceDenied(now time.Time) (open int) {
	r := &t.replacement
	open = t.observeDoomed()
	t.mu.Lock()
	unknown := t.unknown
	t.mu.Unlock()
	switch {
	case open+unknown == 0:
		r.since = time.Time{}
		return 0
	case r.since.IsZero():
		r.since = now
	}
	at := later(r.since.Add(replaceAfter), r.last.Add(replaceEvery))
	if open == 0 {
		at = later(at, r.last.Add(replaceUnknownEvery))
	}
	switch {
	case now.Before(at):
	case t.config.Replace():
		t.replaced(open, unknown)
	default:
		t.failed(open+unknown, errNotReplaced)
	}
	return open
}

// replaced records that Envoy is being replaced.
func (t *Table) replaced(open, unknown int) {
	r := &t.replacement
	r.last, r.since = time.Now(), time.Time{}
	t.mu.Lock()
	t.stats.Replaced++
	t.stats.Closed += uint64(unknown)
	t.unknown = 0
	t.mu.Unlock()
	for e := range r.doomed {
		if e.destroyed {
			t.failed(1, errKept)
		}
		e.destroyed = true
	}
	t.config.Logger.Warn(
		"Envoy is replaced to close connections, because the gateway-agent runs without NET_ADMIN", "denied_tunnels", open,
		"without_owner", unknown,
	)
}

// failed records that connections could not be closed.
func (t *Table) failed(connections int, err error) {
	t.mu.Lock()
	t.stats.CutFails += uint64(connections)
	t.mu.Unlock()
	t.logOnce(slog.LevelError, "cannot close tunnel, retrying", err)
}

// observeDoomed updates the set of denied tunnels by the kernel's sockets, and returns how many of them are open.
func (t *Table) observeDoomed() (open int) {
	r := &t.replacement
	for _, e := range t.deniedEntries() {
		r.doomed[e] = true
	}
	find := t.find(&t.kernel)
	for e := range r.doomed {
		s, err := find.socket(e)
		switch {
		case errors.Is(err, sockets.ErrGone):
			delete(r.doomed, e)
			t.remove(e)
			if e.destroyed {
				t.cut(e)
			}
			continue
		case err == nil:
			t.bound(e, s)
		case !errors.Is(err, errAmbiguous): // the replacement closes that too
			t.logOnce(slog.LevelError, "cannot find sockets of tunnels", err)
		}
		if !t.Denied(model.EdgeRef{Node: e.Node, ID: e.ID}) {
			delete(r.doomed, e)
			continue
		}
		open++
	}
	return open
}

// cut counts and logs a denied tunnel or connection that was closed.
func (t *Table) cut(e *entry) {
	t.mu.Lock()
	t.stats.Cut++
	t.countCut(e.Tunnel)
	since := t.denied.since(e.Tunnel)
	t.mu.Unlock()
	if t.config.Cut != nil && !since.IsZero() {
		t.config.Cut(time.Since(later(since, e.Since)))
	}
	if e.owner != "" {
		t.config.Logger.Info(
			"denied connection closed", "owner", e.owner, "node", e.Node, "tunnel", e.ID, "peer", e.Remote.String(),
		)
		return
	}
	t.config.Logger.Info("denied tunnel closed", "node", e.Node, "tunnel", e.ID, "peer", e.Remote.String())
}

// leaveUnknown records connections without a recorded owner for enforce, which replaces Envoy.
func (t *Table) leaveUnknown(n int) {
	t.mu.Lock()
	t.unknown = n
	t.mu.Unlock()
	if n > 0 {
		notify(t.notifyEnforce)
	}
}
