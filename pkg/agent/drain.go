package agent

import (
	"context"
	"time"

	"github.com/fairlead/fairlead/pkg/tunnels"
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
func (a *Agent) drain(ctx context.Context, p *process) {
	a.envoy.drain(true)
	defer a.envoy.drain(false)
	if a.config.DrainTimeout == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, a.config.DrainTimeout)
	defer cancel()
	path, open := "/drain_listeners", openInEdge
	began := time.Now()
	earliest := began
	var looked time.Time
	if a.config.Gateway != nil {
		path, open = "/drain_listeners?graceful", openInGateway
		earliest = earliest.Add(lookAround)
	}
	admin := a.config.admin()
	if err := admin.post(ctx, path); err != nil {
		a.log.Warn("Envoy does not drain", "pid", p.pid, "error", err)
		return
	}
	again := time.NewTicker(drainPoll)
	defer again.Stop()
	for {
		looked = a.cutQuiet(began, looked)
		n, err := admin.sum(ctx, open)
		if err == nil && n == 0 && !time.Now().Before(earliest) {
			return
		}
		select {
		case <-p.done:
			return
		case <-ctx.Done():
			a.log.Warn("stopping Envoy with connections that are open still", "pid", p.pid, "open", n)
			return
		case <-again.C:
		}
	}
}

// cutQuiet ends connections of a gateway's clients that have been quiet for half of the time to drain, once that is over. It looks
// once a second, and returns when it did.
func (a *Agent) cutQuiet(began, looked time.Time) time.Time {
	quiet := a.config.DrainTimeout / 2
	if a.config.Gateway == nil || time.Since(began) < quiet || time.Since(looked) < time.Second {
		return looked
	}
	cut, err := tunnels.CloseQuiet(a.config.Gateway.Bind.Clients(), quiet)
	if err != nil {
		a.log.Warn("idle connections of clients stay open", "error", err)
	}
	if cut > 0 {
		a.log.Info("idle connections of clients are closed", "connections", cut)
	}
	return time.Now()
}
