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
	// maxNodeStreams is the number of ADS streams that one edge may have: the current one, and the streams of lost
	// connections that the server has not detected as dead yet.
	maxNodeStreams = 4
	// maxTunnelStreams is the number of ADS streams that the edges of one tunnel may have: ten times the 100 edges that
	// a Tunnel's status lists.
	maxTunnelStreams = 1024
	// maxPause is how long a request may be delayed before its stream ends.
	maxPause = 10 * time.Second
	// streamsWait is when an edge without a stream may retry.
	streamsWait = 5 * time.Second
	// maxNames bounds the names in one request: an edge has two resources for each gateway, and some more.
	maxNames = 4096
	// maxQuoted bounds the bytes of an edge's own text in an error.
	maxQuoted = 128
	// maxTunnels bounds the tunnel ids with a limiter: more than an installation has.
	maxTunnels = 16_384
)

var (
	// requestRate is for one stream. A connection makes four requests, and a change two more; a change that comes
	// sooner is sent together with the next one.
	requestRate = limit.Rate{Every: 100 * time.Millisecond, Burst: 64}
	// tunnelRate is for all streams of one tunnel: 1,000 edges that connect at once do not reach it.
	tunnelRate = limit.Rate{Every: 5 * time.Millisecond, Burst: 4000}
	// logRate bounds the lines that the streams of one tunnel cause in the log.
	logRate = limit.Rate{Every: 2 * time.Second, Burst: 2000}
	// tunnelRefusalRate bounds the log lines about resources that the edges of one tunnel reject.
	tunnelRefusalRate = limit.Rate{Every: 10 * time.Second, Burst: 60}
)

var errNewer = status.Error(codes.Aborted, "the edge has newer streams")

// limits bound what the edges of one tunnel cost other tunnels.
type limits struct {
	request, tunnel              limit.Rate
	nodeStreams, tunnelStreams   int
	requests, lines, refusalText *limit.Rates  // by tunnel id
	builds                       chan struct{} // holds one for each running computation
	waited, refusedStreams       func()        // counters for metrics
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

// wait returns when a stream may process a request that it has received. The next request is received only after that,
// so HTTP/2's flow control slows down a stream that sends too fast.
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

// makeRoom makes room for another stream of a node: it ends the node's oldest stream, never one of another edge. The
// caller holds the server's lock.
func (l *limits) makeRoom(t *tunnel, node string) error {
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
		oldest.end(errNewer)
		l.refusedStreams()
	case len(t.streams) >= l.tunnelStreams:
		l.refusedStreams()
		return retry.Later("the edges of the tunnel have too many streams", streamsWait)
	}
	return nil
}

// logEdge logs an event of an edge's stream, within the log rate of its tunnel.
func (s *Server) logEdge(subject model.Subject, message string, args ...any) {
	if s.limits.lines.Take(subject.ID, logRate) == 0 {
		s.log.Info(message, args...)
	}
}
