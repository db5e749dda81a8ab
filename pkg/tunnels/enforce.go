package tunnels

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/fairlead/fairlead/pkg/sockets"
)

// logContext is the context of log records, which carry no values of a context.
var logContext = context.Background()

// errElsewhere reports that the socket of no tunnel was found.
var errElsewhere = errors.New(
	"no tunnel socket found in this network namespace: run the agent in the namespace of its Envoy",
)

// retryMin and retryMax bound the wait before the next check of closed connections. The event of a closed connection
// arrives within 0.2 s.
const retryMin, retryMax = 100 * time.Millisecond, 2 * time.Second

// enforce does all work that requires the kernel until ctx ends: it closes denied tunnels and removes tunnels without a
// socket.
func (t *Table) enforce(ctx context.Context) {
	defer t.kernel.Close()
	check := time.NewTicker(t.checkEvery)
	defer check.Stop()
	retry := time.NewTimer(retryMax)
	defer retry.Stop()
	mend := time.NewTimer(retryMax)
	defer mend.Stop()
	dead := time.NewTicker(usedInterval)
	defer dead.Stop()
	wait, checked := retryMin, time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.notifyEnforce:
			wait = retryMin
		case <-check.C:
			t.check()
			checked = time.Now()
		case <-t.notifyCheck:
			if time.Since(checked) < t.checkEvery/10 {
				continue
			}
			t.check()
			checked = time.Now()
		case <-retry.C:
		case <-mend.C:
		case <-dead.C:
			t.closeDead()
			continue
		}
		t.publish()
		t.bind()
		if t.closeDenied() > 0 {
			retry.Reset(wait)
			if t.config.Replace == nil {
				wait = min(2*wait, retryMax)
			}
		}
		if now := time.Now(); t.repairs.workers > 1 {
			if at := t.repair(now); !at.IsZero() {
				mend.Reset(at.Sub(now))
			}
		}
	}
}

// publish publishes the loaded tunnels once they are checked. The log has no closing events from an Envoy that ended
// while no agent ran.
func (t *Table) publish() {
	t.mu.Lock()
	known := t.history.Version > 0
	t.mu.Unlock()
	if known {
		return // without a wait for a large log
	}
	t.files.Lock()
	loaded := t.log.loaded
	t.files.Unlock()
	if !loaded {
		return
	}
	t.check()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.history.Version == 0 {
		t.history.Add(nil)
	}
}

// bind looks up the sockets of new tunnels, so that a later denial closes exactly these.
func (t *Table) bind() {
	t.mu.Lock()
	entries := make([]*entry, 0, len(t.unbound))
	for e := range t.unbound {
		entries = append(entries, e)
	}
	clear(t.unbound)
	t.mu.Unlock()
	find := t.find(&t.kernel)
	for _, e := range entries {
		if e.socket != nil {
			continue
		}
		s, err := find.socket(e)
		switch {
		case err == nil:
			t.bound(e, s)
		case !errors.Is(err, sockets.ErrGone): // otherwise its closing event will follow
			t.logOnce(slog.LevelError, "cannot find sockets of tunnels", err)
		}
	}
}

// closeDenied closes all denied tunnels and connections, and returns the number of them that are still in the table.
func (t *Table) closeDenied() (left int) {
	if t.config.Replace != nil {
		return t.replaceDenied(time.Now())
	}
	var gone []*entry
	find := t.find(&t.kernel)
	for _, e := range t.deniedEntries() {
		err := find.destroy(e)
		if errors.Is(err, sockets.ErrGone) {
			gone = append(gone, e)
			continue
		}
		left++
		t.mu.Lock()
		if err != nil {
			t.stats.CutFails++
		}
		t.mu.Unlock()
		if err != nil {
			t.logOnce(slog.LevelError, "cannot close tunnel, retrying", err)
		} else if !e.destroyed {
			e.destroyed = true
			t.cut(e)
		}
	}
	t.remove(gone...)
	return left
}

func (t *Table) deniedEntries() (denied []*entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.denied.edges)+len(t.denied.ids) == 0 {
		return nil
	}
	for _, all := range []map[string]*entry{t.live, t.conns.all} {
		for _, e := range all {
			if t.denied.has(e.Tunnel) {
				denied = append(denied, e)
			}
		}
	}
	return denied
}

// check removes the entries from the table whose sockets no longer exist.
func (t *Table) check() {
	t.mu.Lock()
	entries := make([]*entry, 0, len(t.live)+len(t.conns.all))
	for _, all := range []map[string]*entry{t.live, t.conns.all} {
		for _, e := range all {
			entries = append(entries, e)
		}
	}
	t.mu.Unlock()
	if len(entries) == 0 {
		return
	}
	all, err := t.kernel.Dump(sockets.Connected)
	if err != nil {
		t.logOnce(slog.LevelError, "cannot compare tunnels with the kernel's sockets", err)
		return
	}
	find := t.find(&t.kernel)
	find.all = byRemote(all)
	var missing []*entry
	for _, e := range entries {
		s, err := pick(find.all[e.Remote], e)
		if t.config.Envoy != nil && e.owner == "" {
			s, err = find.proxied(e)
		}
		switch {
		case errors.Is(err, sockets.ErrGone):
			missing = append(missing, e)
		case err == nil:
			t.bound(e, s)
		}
	}
	if len(missing) == len(entries) && !t.here(entries) {
		t.logOnce(slog.LevelError, "cannot compare tunnels with the kernel's sockets", errElsewhere)
		return
	}
	t.confirm(missing)
}

// confirm looks up each missing socket again, because a dump may miss a socket if another one ends at the same time.
func (t *Table) confirm(missing []*entry) {
	var gone []*entry
	find := t.find(&t.kernel)
	for _, e := range missing {
		if _, err := find.socket(e); errors.Is(err, sockets.ErrGone) {
			gone = append(gone, e)
		}
	}
	t.remove(gone...)
	tunnels := slices.DeleteFunc(gone, func(e *entry) bool { return e.owner != "" }) // Envoy records no end of the others
	if len(tunnels) > 0 {
		t.config.Logger.Info("tunnels ended without an event", "count", len(tunnels))
	}
}

// here reports whether a socket listens at the port of a tunnel. If none does, this is not Envoy's network namespace,
// and missing sockets prove nothing.
func (t *Table) here(entries []*entry) bool {
	listeners, err := t.kernel.Dump(sockets.Listening)
	if err != nil {
		return false
	}
	ports := map[uint16]bool{}
	for _, s := range listeners {
		ports[s.Local.Port()] = true
	}
	if t.config.Envoy != nil {
		return ports[t.config.Public.Port()]
	}
	for _, e := range entries {
		if e.Local.IsValid() && ports[e.Local.Port()] {
			return true
		}
	}
	return false
}
