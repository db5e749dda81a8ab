package gateway

import (
	"context"
	"fmt"
	"time"

	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// ReadyDeadline is the default of Config.ReadyDeadline: 20,000 tunnels of 10,000 edges take one worker 20 s.
const ReadyDeadline = time.Minute

// peersInterval is the interval at which a waiting gateway compares its tunnels with the other gateways'.
var peersInterval = retry.Backoff{Min: 500 * time.Millisecond, Max: 500 * time.Millisecond}

// peersRest is the least ratio of the pause after a question to the other gateways' tunnels to its duration. In a large
// fleet each answer has megabytes, and many gateways may wait.
const peersRest = 4

// waiting is a gateway that does not accept clients yet.
type waiting struct {
	*Gateway
	Member
}

// awaitPeers makes a gateway accept clients once it has tunnels of all edges that other gateways that accept clients
// have and that are assigned to it. Otherwise a load balancer that prefers the new gateway would send it requests that
// fail, and that the others could serve. It does not wait if no gateway accepts clients, nor after the deadline.
func (g *Gateway) awaitPeers(ctx context.Context, m Member) {
	(&waiting{g, m}).run(ctx)
}

func (w *waiting) run(ctx context.Context) {
	asked := &peerServers{gateway: w.config, store: w.Store}
	defer asked.close()
	began := time.Now()
	var since time.Time // when it first had its configuration
	for ctx.Err() == nil {
		asked.took = 0
		if w.Carries(ctx) == nil {
			first := since.IsZero()
			if first {
				since = time.Now()
			}
			if first && w.tookClients(ctx, began) || w.hasAll(ctx, asked, since) {
				w.Await("")
				return
			}
		}
		_ = retry.Sleep(ctx, pause(asked.took, w.config.ReadyDeadline-time.Since(since)))
	}
}

// pause returns the time until the next question, after one that took a time and this long before the deadline. The
// pause after a slow question does not exceed the deadline.
func pause(took, left time.Duration) time.Duration {
	return max(peersInterval.Wait(0), min(peersRest*took, left))
}

// hasAll reports whether the gateway no longer has to wait.
func (w *waiting) hasAll(ctx context.Context, asked *peerServers, since time.Time) bool {
	waited := time.Since(since).Round(time.Millisecond)
	if asked.why != "" && waited >= w.config.ReadyDeadline {
		w.deps.Log.Warn(
			"gateway accepts clients without all tunnels that other gateways have: the ready deadline has passed", "waited",
			waited, "reason", asked.why,
		)
		return true
	}
	why := w.lacks(ctx, asked)
	if ctx.Err() != nil {
		return false
	}
	if why == "" {
		w.deps.Log.Info("gateway accepts clients", "waited", waited)
		return true
	}
	if asked.why == "" {
		w.deps.Log.Info("gateway does not accept clients yet", "reason", why)
	}
	asked.why = why
	w.Await(why)
	return false
}

// tookClients reports whether Envoy ran for so long before this agent that the previous agent had let it accept
// clients.
func (w *waiting) tookClients(ctx context.Context, began time.Time) bool {
	running, err := w.deps.Admin.Info(ctx)
	if err != nil || running.Uptime-time.Since(began) <= w.config.ReadyDeadline {
		return false
	}
	w.deps.Log.Info("gateway accepts clients, as it did under the previous agent")
	return true
}

// lacks returns what a configured gateway waits for; empty: nothing.
func (w *waiting) lacks(ctx context.Context, asked *peerServers) (why string) {
	subject, err := w.Subject()
	if err != nil {
		return err.Error()
	}
	if len(w.deps.XDS.Accepted(subject.Node, resourcev3.ListenerType)) == 0 {
		return "Envoy has accepted no listener yet"
	}
	if !w.hasPeers(subject) {
		return ""
	}
	peers, err := asked.ask(ctx, nil)
	own := w.Table.Edges()
	var first model.EdgeRef
	edges := 0
	for _, e := range peers.ReadyEdges() {
		if !own[e] && w.tenants.assigned(e.ID) {
			if edges++; edges == 1 {
				first = e
			}
		}
	}
	switch {
	case edges > 0:
		return fmt.Sprintf(
			"%d edges have tunnels to other gateways and none to this one, such as %s of the tunnel %s", edges, first.Node,
			first.ID,
		)
	case peers.Known:
		return ""
	case err != nil:
		return "the tunnels of other gateways are unknown: " + err.Error()
	}
	return "not all gateways have reported their tunnels yet"
}

// hasPeers reports whether Envoy's configuration has other gateways.
func (w *waiting) hasPeers(me model.Subject) bool {
	for _, cluster := range w.deps.XDS.Accepted(me.Node, resourcev3.ClusterType) {
		if gateway, ok := envoy.PeerOf(cluster); ok && gateway != me.Node {
			return true
		}
	}
	return false
}
