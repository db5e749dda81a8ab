package tunnels

import (
	"errors"
	"log/slog"
	"time"

	"github.com/fairlead/fairlead/pkg/sockets"
)

const (
	// unansweredInterval is the interval between looks at the sockets of lanes in use. A look takes 15 µs, and no more
	// than maxLooks are taken at a time; with more, each socket is looked at in some of the intervals.
	unansweredInterval = time.Second
	maxLooks           = 1000
	// unanswered is how often the kernel has sent the same data again when a lane counts as dead: 3 s after the first
	// time where the round trip is short, as an HTTP/2 ping would notice in a usual tunnel. Envoy has no pings in a lane,
	// and the kernel itself would try for 15 minutes. TCP_USER_TIMEOUT would also end the connection of a program that
	// does not read.
	unanswered = 4
)

// closeUnanswered closes tunnels of lanes in which data waits for an acknowledgement. Without data in transit, the
// kernel's keepalive does that: see package lane.
func (t *Table) closeUnanswered() {
	t.mu.Lock()
	var used []*entry
	for _, e := range t.live {
		if e.Lane && !e.Used.IsZero() && len(used) < maxLooks {
			used = append(used, e)
		}
	}
	t.mu.Unlock()
	for _, e := range used {
		if e.socket == nil {
			continue
		}
		s, err := t.kernel.Get(e.socket.Local, e.socket.Remote)
		if err == nil && s.Cookie == e.socket.Cookie && s.Unanswered >= unanswered {
			err = t.kernel.Destroy(s)
		}
		if err != nil && !errors.Is(err, sockets.ErrGone) {
			t.logOnce(slog.LevelWarn, "cannot close lanes that are dead", err)
			return
		}
	}
}
