package edge

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/envoy/lane"
)

const (
	// lanesFile exists while lanes are open.
	lanesFile = "lanes-open"
	// lanesInterval is the interval at which streams are counted: for that long a burst uses the usual reverse tunnels.
	lanesInterval = time.Second
	// unusedAfter is how long there must be no streams before lanes are closed, and at most twice that: what begins while
	// they close ends with them, so clients that come at fixed times must not always meet that.
	unusedAfter = 2 * time.Minute
	// closedForm is the form of the resources of lanes while these are closed.
	closedForm = "closed"
)

// Lanes opens the lanes of an edge while it has clients. An idle lane costs as much as an idle reverse tunnel: 4 MB a
// day at each gateway. It implements xdsproxy.Override.
type Lanes struct {
	path mark // of lanesFile
	log  *slog.Logger
	open atomic.Bool
	used time.Time // when there were streams
	idle time.Duration
}

// NewLanes returns the Lanes of an agent, in the state in which an earlier agent left them in a folder: its Envoy may
// still run, and have streams in them.
func NewLanes(path func(name string) string, log *slog.Logger) *Lanes {
	l := &Lanes{path: mark(path(lanesFile)), log: log}
	l.open.Store(l.path.is())
	l.use(time.Now())
	return l
}

// use records that there are streams, and draws how long there must be none until lanes are closed.
func (l *Lanes) use(now time.Time) { l.used, l.idle = now, unusedAfter+rand.N(unusedAfter) }

// Form implements xdsproxy.Override.
func (l *Lanes) Form(name string) string {
	if lane.Is(name) && !l.open.Load() {
		return closedForm
	}
	return ""
}

// Apply implements xdsproxy.Override.
func (l *Lanes) Apply(_, form string, resource *anypb.Any) *anypb.Any {
	if form == closedForm {
		return lane.Closed(resource)
	}
	return resource
}

// resources are what an agent sends its Envoy. *xdsproxy.Proxy implements it.
type resources interface {
	Offers(of func(name string) bool) bool
	ReapplyAll(of func(name string) bool)
}

// Run opens and closes lanes until ctx ends, as long as there are any. streams counts the streams of all reverse
// tunnels.
func (l *Lanes) Run(ctx context.Context, streams func(context.Context) (int, error), sent resources) {
	for retry.Sleep(ctx, lanesInterval) == nil {
		if !sent.Offers(lane.Is) {
			continue
		}
		n, err := streams(ctx)
		if err != nil {
			continue // Envoy is away, and lanes stay as they are
		}
		if l.decide(n, time.Now()) {
			sent.ReapplyAll(lane.Is)
		}
	}
}

// decide opens or closes lanes by the number of streams, and returns whether it did.
func (l *Lanes) decide(streams int, now time.Time) bool {
	if streams > 0 {
		l.use(now)
	}
	open := now.Sub(l.used) < l.idle && (streams > 0 || l.open.Load())
	if open == l.open.Load() {
		return false
	}
	if err := l.path.set(open); err != nil {
		l.log.Warn("cannot persist whether lanes are open: the next agent decides again", "error", err)
	}
	l.log.Debug("lanes follow the clients", "open", open, "streams", streams)
	l.open.Store(open)
	return true
}
