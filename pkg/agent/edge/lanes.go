package edge

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/envoy/lane"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// lanesFile contains how many lanes are open.
	lanesFile = "lanes-open"
	// lanesInterval is the interval at which streams are counted: for that long a burst uses the usual reverse tunnels.
	lanesInterval = time.Second
	// unusedAfter is how long there must be no streams before lanes are closed, and at most twice that: what begins while
	// they close ends with them, so clients that come at fixed times must not always meet that.
	unusedAfter = 2 * time.Minute
	// spare is how many reverse tunnels of lanes wait for the clients of the next second.
	spare = 2
	// closedForm is the form of the resources of lanes while these are closed.
	closedForm = "closed"
)

// Lanes opens the lanes of an edge while it has clients, the more the more streams there are. Each reverse tunnel of an
// idle lane costs as much as an idle one: 4 MB a day at each gateway. It implements xdsproxy.Override.
type Lanes struct {
	path string // of lanesFile
	log  *slog.Logger
	open atomic.Int64 // the first lanes
	used time.Time    // when there were streams
	idle time.Duration
}

// NewLanes returns the Lanes of an agent, in the state in which an earlier agent left them in a folder: its Envoy may
// still run, and have streams in them.
func NewLanes(path func(name string) string, log *slog.Logger) *Lanes {
	l := &Lanes{path: path(lanesFile), log: log}
	if data, err := os.ReadFile(l.path); err == nil {
		if n, err := strconv.Atoi(string(data)); err == nil {
			l.open.Store(int64(min(max(n, 0), model.MaxLanes)))
		}
	}
	l.use(time.Now())
	return l
}

// use records that there are streams, and draws how long there must be none until lanes are closed.
func (l *Lanes) use(now time.Time) { l.used, l.idle = now, unusedAfter+rand.N(unusedAfter) }

// Form implements xdsproxy.Override.
func (l *Lanes) Form(name string) string {
	if lane.Number(name) > int(l.open.Load()) {
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

// decide opens or closes lanes by the number of streams, and returns whether it did. What is open stays open until all
// streams have ended, because a lane that closes ends what is in it.
func (l *Lanes) decide(streams int, now time.Time) bool {
	if streams > 0 {
		l.use(now)
	}
	was := int(l.open.Load())
	open := max(was, lanesFor(streams))
	if streams == 0 && now.Sub(l.used) >= l.idle {
		open = 0
	}
	if open == was {
		return false
	}
	if err := disk.Replace(l.path, []byte(strconv.Itoa(open))); err != nil {
		l.log.Warn("cannot persist how many lanes are open: the next agent decides again", "error", err)
	}
	l.log.Debug("lanes follow the clients", "open", open, "streams", streams)
	l.open.Store(int64(open))
	return true
}

// lanesFor returns how many lanes suffice for streams that all come through one worker of one gateway, and for those of
// the next second.
func lanesFor(streams int) int {
	lanes := 0
	for streams > 0 && lanes < model.MaxLanes && model.TunnelsInLanes(lanes) < streams+spare {
		lanes++
	}
	return lanes
}
