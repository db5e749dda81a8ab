package xds

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/limit"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// maxNodeStreams is how many ADS streams one edge may have: the current one, and streams of lost connections that
	// the server has not detected yet.
	maxNodeStreams = 4
	// maxTunnelStreams is how many ADS streams the edges of one tunnel may have: ten times the 100 edges that a
	// Tunnel's status lists.
	maxTunnelStreams = 1024
	// maxPause is how long a request may wait for the rate limits before its stream is closed.
	maxPause = 10 * time.Second
	// streamsWait is when an edge that was rejected for too many streams may retry.
	streamsWait = 5 * time.Second
	// maxNames is how many names one request may list: an edge has two resources for each gateway, and some more.
	maxNames = 4096
	// maxQuoted is how many bytes of an edge's text an error quotes.
	maxQuoted = 128
	// maxTunnels is how many tunnel ids the limits record: more than an installation has.
	maxTunnels = 16_384
)

var (
	// requestRate limits one stream. A connection needs four requests, and a change two more. A change that comes
	// sooner is sent together with the next one.
	requestRate = limit.Rate{Every: 100 * time.Millisecond, Burst: 64}
	// tunnelRate limits all streams of one tunnel. 1,000 edges that connect at once do not reach it.
	tunnelRate = limit.Rate{Every: 5 * time.Millisecond, Burst: 4000}
	// logRate limits the log lines that the streams of one tunnel cause.
	logRate = limit.Rate{Every: 2 * time.Second, Burst: 2000}
	// tunnelRefusalRate limits the log lines about resources that the edges of one tunnel reject.
	tunnelRefusalRate = limit.Rate{Every: 10 * time.Second, Burst: 60}
)

var errNewer = status.Error(codes.Aborted, "the edge has newer streams")

// limits bound the load that the edges of one tunnel can cause.
type limits struct {
	request, tunnel              limit.Rate
	nodeStreams, tunnelStreams   int
	requests, lines, refusalText *limit.Rates  // by tunnel id
	builds                       chan struct{} // one for each computation that runs
	waited, refusedStreams       func()        // count for the figures
}

func newLimits() *limits {
	return &limits{
		request: requestRate, tunnel: tunnelRate, nodeStreams: maxNodeStreams, tunnelStreams: maxTunnelStreams,
		requests: limit.NewRates(maxTunnels), lines: limit.NewRates(maxTunnels), refusalText: limit.NewRates(maxTunnels),
		builds: make(chan struct{}, runtime.GOMAXPROCS(0)),
	}
}

// newPace returns the rate limit of one stream.
func (l *limits) newPace() *rate.Limiter {
	return rate.NewLimiter(rate.Every(l.request.Every), l.request.Burst)
}

// wait blocks until the rate limits permit a request that has been received. The stream does not receive the next
// one before, so HTTP/2's flow control slows an edge that sends too fast.
func (l *limits) wait(ctx context.Context, e *edge) error {
	pause, ok := l.requests.Reserve(e.subject.ID, l.tunnel, maxPause)
	if !ok {
		l.refusedStreams()
		return retry.Later("too many requests by the edges of one tunnel", pause)
	}
	pause = max(pause, e.pace.Reserve().Delay())
	if pause == 0 {
		return nil
	}
	l.waited()
	if err := retry.Sleep(ctx, pause); err != nil {
		return status.FromContextError(err).Err()
	}
	return nil
}

// evictFor makes room for one more stream of a node. It closes the oldest stream of the same node, never one of
// another edge, and returns an error if the tunnel has too many streams. The caller holds the server's lock.
func (l *limits) evictFor(t *tunnel, node string) error {
	var oldest *edge
	mine := 0
	for e := range t.streams {
		if e.subject.Node != node {
			continue
		}
		mine++
		if oldest == nil || e.number < oldest.number {
			oldest = e
		}
	}
	switch {
	case mine >= l.nodeStreams:
		delete(t.streams, oldest)
		oldest.close(errNewer)
		l.refusedStreams()
	case len(t.streams) >= l.tunnelStreams:
		l.refusedStreams()
		return retry.Later("the edges of the tunnel have too many streams", streamsWait)
	}
	return nil
}

// logEdge logs an event of the stream of an edge, within the limit of lines of its tunnel.
func (s *Server) logEdge(subject model.Subject, message string, args ...any) {
	if s.limits.lines.Take(subject.ID, logRate) == 0 {
		s.log.Info(message, args...)
	}
}
