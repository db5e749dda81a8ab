package envoyproc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/pkg/sockets"
)

const (
	// drainPoll is the interval at which Envoy is queried for open connections.
	drainPoll = 100 * time.Millisecond
	// lingerTime is how long a draining gateway continues to accept connections: load balancers must observe that it is
	// no longer ready.
	lingerTime = drainTime
)

// Statistics of open work in Envoy: streams in the tunnels of an edge; client connections of a gateway, streams of
// clients that other gateways have forwarded to it, and streams from and to networks.
const (
	openInEdge    = `^http\.tunnel[^.]*\.downstream_rq_active$`
	openInGateway = `^(listener\.(apiserver|connect)\.downstream_cx_active` +
		`|http\.(peer|egress|forward)\.downstream_rq_active)$`
)

// drain has Envoy accept no new work, and waits until the open work has ended, at most for DrainTimeout and until ctx
// ends.
//
// An edge stops dialling. Gateways are notified by a GOAWAY with the answer to the next stream that they open in a
// tunnel. That stream is still served, so no request is lost, and the gateways then use other tunnels, of other edges
// if there are any. Open streams in a tunnel continue.
//
// A gateway accepts connections for a little longer, then stops. Its clients have TLS of their own, so they cannot be
// told to go elsewhere: connections that are quiet for half of the time are taken as idle and closed, the others
// continue. Streams of networks share connections, so idle ones continue too. Its tunnels stay open until Envoy ends,
// because Envoy would close them in the middle of requests.
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
	var lastCut time.Time
	if e.Config.Gateway {
		path, open = "/drain_listeners?graceful", openInGateway
		earliest = earliest.Add(lingerTime)
	}
	e.markDrained()
	if err := e.Admin.Post(ctx, path); err != nil {
		e.Log.Warn("cannot drain Envoy", "pid", p.pid, "error", err)
		return
	}
	again := time.NewTicker(drainPoll)
	defer again.Stop()
	for {
		lastCut = e.cutQuiet(began, lastCut)
		n, err := e.Admin.Sum(ctx, open)
		if err == nil && n == 0 && !time.Now().Before(earliest) {
			return
		}
		select {
		case <-p.done:
			return
		case <-e.Replace:
			e.Log.Warn("ending the drain: connections must be closed at once", "pid", p.pid)
			p.stop(cutTimeout)
			return
		case <-ctx.Done():
			e.Log.Warn("stopping Envoy with open connections", "pid", p.pid, "open", n)
			return
		case <-again.C:
		}
	}
}

// drainedFile is the name of a file in the runtime folder that exists once the running Envoy was asked to drain. Envoy
// itself does not report that. If the agent is killed during a drain, the next one must not adopt this Envoy, because
// it never accepts or dials a connection again.
const drainedFile = "drained"

func (e *Envoy) markDrained() {
	if err := disk.Replace(filepath.Join(e.Config.Dir, drainedFile), nil); err != nil {
		e.Log.Warn("cannot record that Envoy drains", "error", err)
	}
}

// forgetDrain removes the record of a drain, before another Envoy runs.
func (c Config) forgetDrain() error {
	if err := os.Remove(filepath.Join(c.Dir, drainedFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the record of a drain: %w", err)
	}
	return nil
}

// drained reports whether the running Envoy was asked to drain. Agents before this version recorded no drain, so the
// count of listeners that Envoy was asked to stop decides too; it does not contain listeners that were removed
// (ListenerManagerImpl::stopListeners of Envoy 1.40).
func (e *Envoy) drained(ctx context.Context) bool {
	if _, err := os.Stat(filepath.Join(e.Config.Dir, drainedFile)); err == nil {
		return true
	}
	n, err := e.Admin.Sum(ctx, `^listener_manager\.listener_stopped$`)
	return err == nil && n > 0
}

// cutQuiet closes the connections of a gateway's clients that have been quiet for half of DrainTimeout, once that time
// has passed, if it may close connections. It acts at most once a second, and returns the time of the last action.
func (e *Envoy) cutQuiet(began, lastCut time.Time) time.Time {
	quiet := e.Config.DrainTimeout / 2
	if !e.Config.Gateway || e.Config.WithoutNetAdmin || time.Since(began) < quiet || time.Since(lastCut) < time.Second {
		return lastCut
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
