package envoyproc

import (
	"context"
	"time"

	"github.com/fairlead/fairlead/pkg/sockets"
)

const (
	// drainPoll is how often Envoy is asked what is still open.
	drainPoll = 100 * time.Millisecond
	// lookAround is how long a gateway goes on accepting when it is told to stop: load balancers have to hear that it isn't
	// ready any more.
	lookAround = drainTime
)

// What is open in Envoy: streams in the tunnels of an edge, connections of clients of a gateway.
const (
	openInEdge    = `^http\.tunnel[^.]*\.downstream_rq_active$`
	openInGateway = `^listener\.(apiserver|connect)\.downstream_cx_active$`
)

// drain has Envoy take nothing new, and waits until what is open has ended, at most for the time to drain and until ctx ends.
//
// An edge stops to dial. Gateways hear of it with the answer to the next stream that they open in a tunnel, which is
// served still: it comes with a GOAWAY, so they use other tunnels, of other edges where there are any, and no request is
// lost. What is open in a tunnel goes on.
//
// A gateway listens for a little longer, then no more. Its clients have TLS of their own, so nobody can tell them to go elsewhere: who is quiet
// for half of the time is taken for idle and cut, and who is busy goes on. Its tunnels go on until it ends: Envoy would close
// them in the middle of what they carry.
func (e *Envoy) drain(ctx context.Context, p *process) {
	e.Events.Draining(true)
	defer e.Events.Draining(false)
	if e.Config.DrainTimeout == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, e.Config.DrainTimeout)
	defer cancel()
	path, open := "/drain_listeners", openInEdge
	began := time.Now()
	earliest := began
	var looked time.Time
	if e.Config.Gateway {
		path, open = "/drain_listeners?graceful", openInGateway
		earliest = earliest.Add(lookAround)
	}
	if err := e.Admin.Post(ctx, path); err != nil {
		e.Log.Warn("cannot drain Envoy", "pid", p.pid, "error", err)
		return
	}
	again := time.NewTicker(drainPoll)
	defer again.Stop()
	for {
		looked = e.cutQuiet(began, looked)
		n, err := e.Admin.Sum(ctx, open)
		if err == nil && n == 0 && !time.Now().Before(earliest) {
			return
		}
		select {
		case <-p.done:
			return
		case <-ctx.Done():
			e.Log.Warn("stopping Envoy with open connections", "pid", p.pid, "open", n)
			return
		case <-again.C:
		}
	}
}

// cutQuiet ends connections of a gateway's clients that have been quiet for half of the time to drain, once that is over. It looks
// once a second, and returns when it did.
func (e *Envoy) cutQuiet(began, looked time.Time) time.Time {
	quiet := e.Config.DrainTimeout / 2
	if !e.Config.Gateway || time.Since(began) < quiet || time.Since(looked) < time.Second {
		return looked
	}
	cut, err := sockets.CloseQuiet(e.Config.Clients, quiet)
	if err != nil {
		e.Log.Warn("cannot close idle connections of clients", "error", err)
	}
	if cut > 0 {
		e.Log.Info("closed idle connections of clients", "connections", cut)
	}
	return time.Now()
}
