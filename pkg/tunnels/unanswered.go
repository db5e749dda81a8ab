package tunnels

import (
	"errors"
	"log/slog"
	"time"

	"github.com/fairlead/fairlead/pkg/sockets"
)

const (
	// usedInterval is the interval between looks at the sockets of used tunnels. A look takes 15 µs. At most maxLooks are
	// taken at a time at those whose first use was a moment ago, and as many at lanes in use. With more, each socket is
	// looked at in some of the intervals.
	usedInterval = time.Second
	maxLooks     = 1000
	// unanswered is how often the kernel has sent the same data again when a lane counts as dead: 3 s after the first
	// time where the round trip is short, as an HTTP/2 ping would notice in a usual tunnel. Envoy has no pings in a lane,
	// and the kernel itself would try for 15 minutes. TCP_USER_TIMEOUT would also end the connection of a program that
	// does not read.
	unanswered = 4
)

// closeDead closes tunnels of lanes in which data waits for an acknowledgement, and waiting tunnels on stalled paths.
// Without data in transit, the kernel's keepalive does that: see package lane.
func (t *Table) closeDead() {
	stalled := map[path]time.Time{}
	for _, u := range t.uses(time.Now()) {
		s, err := t.kernel.Inspect(u.socket.Local, u.socket.Remote)
		switch {
		case err != nil || s.Cookie != u.socket.Cookie:
		case u.Lane && s.Unanswered >= unanswered:
			err = t.kernel.Destroy(s)
		case u.stalled(s):
			stalled[u.path()] = later(stalled[u.path()], u.at)
		}
		if err != nil && !errors.Is(err, sockets.ErrGone) {
			t.logOnce(slog.LevelWarn, "cannot close lanes that are dead", err)
			return
		}
	}
	t.closeWaiting(stalled)
}

// uses returns the first uses of lanes in use, and of other tunnels whose first use was a moment ago.
func (t *Table) uses(now time.Time) (all []use) {
	t.mu.Lock()
	defer t.mu.Unlock()
	recent, lanes := 0, 0 // many lanes in use do not keep the first uses from being looked at
	for _, e := range t.live {
		switch {
		case e.socket == nil || e.Used.IsZero():
			continue
		case recent < maxLooks && now.Sub(e.Used) < stalledWithin:
			recent++
		case lanes < maxLooks && e.Lane:
			lanes++
		default:
			continue
		}
		all = append(all, use{e, e.Used})
	}
	return all
}
