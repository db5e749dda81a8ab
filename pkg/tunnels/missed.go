package tunnels

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

const (
	// countInterval is how often the kernel's sockets are counted, and looks how often in a row they must be too many.
	countInterval, looks = time.Minute, 3
	// maxLocals is more than a gateway has addresses for tunnels.
	maxLocals = 64
)

var errMissed = errors.New("tunnels whose events were lost are not in the table: they can't be cut one by one; an Envoy that is started anew has none " +
	"(drain and restart this gateway, its edges use the others and come back)")

// missed are sockets where tunnels come in that the table doesn't have: of tunnels, of connections that Envoy passes on, and of those
// that are in their handshake. Which is which the kernel can't tell, but Envoy counts the others. So how many tunnels there are among
// them is certain, and which ones if they are all: only then they are cut. A tunnel without its row is better than a cut one of
// somebody else. For that reason an address counts where a tunnel of the table came in: at the same port of another one, somebody
// else may listen.
type missed struct {
	kernel  kernel
	sockets map[[8]byte]socket // at the last look, by cookie
	found   []int              // at the last looks, in a row that all found some
}

// miss looks for tunnels whose events were lost, until ctx ends.
func (t *Table) miss(ctx context.Context) {
	m := &missed{}
	defer m.kernel.close()
	again := time.NewTicker(t.countEvery)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
			t.look(ctx, m)
		}
	}
}

// look counts once.
func (t *Table) look(ctx context.Context, m *missed) {
	before, err := t.config.Others(ctx)
	if err != nil {
		m.found, m.sockets = nil, nil // Envoy may have ended
		return
	}
	all, err := m.kernel.dump(connected)
	if err != nil {
		t.say(slog.LevelError, "tunnels can't be counted", err)
		return
	}
	after, err := t.config.Others(ctx)
	if err != nil {
		m.found, m.sockets = nil, nil
		return
	}
	old, now := t.unknown(all, m.sockets)
	m.sockets = now
	found := len(old) - max(before, after)
	if found <= 0 {
		m.found = nil
		t.noteMissed(0)
		return
	}
	if m.found = append(m.found, found); len(m.found) < looks {
		return
	}
	m.found = m.found[len(m.found)-looks:]
	least := slices.Min(m.found)
	defer t.noteMissed(least)
	if max(before, after) > 0 {
		t.say(slog.LevelError, "tunnels are missing in the table", fmt.Errorf("%d %w", least, errMissed))
		return
	}
	for _, s := range old {
		if err := m.kernel.destroy(s); err != nil && !errors.Is(err, errGone) {
			t.say(slog.LevelError, "a tunnel whose events were lost is not cut", err)
			continue
		}
		t.config.Logger.Warn("cut a tunnel whose events were lost", "peer", s.remote.String())
	}
}

// unknown returns the sockets where tunnels come in that the table does not have, and which of them were there before too: the events
// of others may be under way.
func (t *Table) unknown(all []socket, before map[[8]byte]socket) (old []socket, now map[[8]byte]socket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now = map[[8]byte]socket{}
	for _, s := range all {
		if !t.locals[s.local] || t.live[key(s.remote, s.local)] != nil || t.live[s.remote.String()] != nil {
			continue
		}
		now[s.cookie()] = s
		if _, there := before[s.cookie()]; there {
			old = append(old, s)
		}
	}
	return old, now
}

func (t *Table) noteMissed(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stats.Missed = n
}
