package agent

import (
	"context"
	"time"
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
// lost. What is open in a tunnel goes on. A gateway listens for a little longer, then no more.
func (a *Agent) drain(ctx context.Context, p *process) {
	a.envoy.drain(true)
	defer a.envoy.drain(false)
	if a.config.DrainTimeout == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, a.config.DrainTimeout)
	defer cancel()
	path, open := "/drain_listeners", openInEdge
	earliest := time.Now()
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
