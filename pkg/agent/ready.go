package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/report"
)

// ReadyDeadline is the default of Gateway.ReadyDeadline: 20,000 tunnels of 10,000 edges are 20 s of work for one worker.
const ReadyDeadline = time.Minute

// lookAtPeers is how often a gateway that waits looks whether it has what the others have.
var lookAtPeers = retry.Backoff{Min: 500 * time.Millisecond, Max: 500 * time.Millisecond}

var (
	errDraining = errors.New("draining, and about to end")
	errStarting = errors.New("starting: it has no Envoy yet")
)

// health says whether Envoy takes clients. It is safe for concurrent use.
type health struct {
	mu       sync.Mutex
	obtained bool // this agent has an Envoy, and is not about to replace the one that it found
	draining bool
	waits    string        // for what a gateway waits before it takes clients; empty: for nothing
	silent   string        // the parts of Envoy that do not answer; empty: none
	changed  chan struct{} // closed when takes has another answer
}

func newHealth() *health { return &health{changed: make(chan struct{})} }

// ready returns why Envoy does not take clients.
func (h *health) ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.draining:
		return errDraining
	case h.silent != "":
		return errors.New("Envoy hangs: no answer from " + h.silent)
	case h.waits != "":
		return errors.New("waiting: " + h.waits)
	case !h.obtained:
		return errStarting
	}
	return nil
}

// obtain records that the agent has an Envoy. An agent may find one that it has to replace: if the agent were ready before that,
// an operator would reload the next edge, and both would drain at the same time.
func (h *health) obtain() { h.change(func() { h.obtained = true }) }

// takes says whether Envoy takes clients, and returns a channel that is closed when that changes.
func (h *health) takes() (report.GatewayState, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.report(), h.changed
}

func (h *health) report() report.GatewayState {
	return report.GatewayState{Ready: h.serves(), Hang: h.silent}
}

func (h *health) serves() bool { return !h.draining && h.waits == "" && h.silent == "" }

// state is for an observation of Envoy: whether it drains, and the parts that did not answer at the last one.
func (h *health) state() (draining bool, silent string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.draining, h.silent
}

// hangs records the parts of Envoy that do not answer; empty: all do.
func (h *health) hangs(silent string) { h.change(func() { h.silent = silent }) }

// drain says that Envoy is about to end, or that this is over.
func (h *health) drain(draining bool) { h.change(func() { h.draining = draining }) }

// await says for what a gateway waits; empty: for nothing any more.
func (h *health) await(what string) { h.change(func() { h.waits = what }) }

func (h *health) change(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.report()
	if change(); h.report() != before {
		close(h.changed)
		h.changed = make(chan struct{})
	}
}

// awaitPeers has a gateway take clients when it has tunnels of all edges of which gateways have some that take clients: a load
// balancer that prefers the new one would else have requests fail that the others could serve. Where nobody takes clients nothing
// is gained by waiting. Nor is it once the deadline is over, whatever may be in the way.
func (a *Agent) awaitPeers(ctx context.Context) {
	asked := &askedServers{gateway: a.config.Gateway, store: a.members[0].store}
	defer asked.close()
	began := time.Now()
	var since time.Time // when it had its configuration first
	for ctx.Err() == nil {
		if a.carries(ctx) == nil {
			first := since.IsZero()
			if first {
				since = time.Now()
			}
			if first && a.tookClients(ctx, began) || a.hasAll(ctx, asked, since) {
				a.envoy.await("")
				return
			}
		}
		_ = retry.Sleep(ctx, lookAtPeers.Wait(0))
	}
}

// hasAll says whether there is nothing to wait for any more.
func (a *Agent) hasAll(ctx context.Context, asked *askedServers, since time.Time) bool {
	waited := time.Since(since).Round(time.Millisecond)
	if asked.why != "" && waited >= a.config.Gateway.ReadyDeadline {
		a.log.Warn("the gateway takes clients without all that others have: the time to wait is over", "waited", waited, "reason", asked.why)
		return true
	}
	why := a.lacks(ctx, asked)
	if ctx.Err() != nil {
		return false
	}
	if why == "" {
		a.log.Info("the gateway takes clients", "waited", waited)
		return true
	}
	if asked.why == "" {
		a.log.Info("the gateway does not take clients yet", "reason", why)
	}
	asked.why = why
	a.envoy.await(why)
	return false
}

// tookClients says whether Envoy ran for so long before this agent that the one before had it take clients.
func (a *Agent) tookClients(ctx context.Context, began time.Time) bool {
	running, err := a.config.admin().info(ctx)
	if err != nil || running.uptime-time.Since(began) <= a.config.Gateway.ReadyDeadline {
		return false
	}
	a.log.Info("the gateway takes clients, as it did under the agent before")
	return true
}

// lacks returns what a gateway that has its configuration waits for, empty if it is nothing.
func (a *Agent) lacks(ctx context.Context, asked *askedServers) (why string) {
	m := a.members[0]
	subject, err := m.current()
	if err != nil {
		return err.Error()
	}
	if len(a.relay.Accepted(subject.Node, resourcev3.ListenerType)) == 0 {
		return "Envoy has accepted no listener yet"
	}
	if !a.hasPeers(subject) {
		return ""
	}
	peers, err := asked.ask(ctx)
	own := a.table.Edges()
	var first model.EdgeRef
	edges := 0
	for _, e := range peers.Edges {
		if !own[e] {
			if edges++; edges == 1 {
				first = e
			}
		}
	}
	switch {
	case edges > 0:
		return fmt.Sprintf("%d edges have tunnels to other gateways and none to this one, such as %s of the tunnel %s", edges, first.Node, first.ID)
	case peers.Known:
		return ""
	case err != nil:
		return "what tunnels other gateways have is not known: " + err.Error()
	}
	return "not all gateways have reported their tunnels yet"
}

// hasPeers says whether Envoy's configuration has other gateways.
func (a *Agent) hasPeers(me model.Subject) bool {
	for _, cluster := range a.relay.Accepted(me.Node, resourcev3.ClusterType) {
		if gateway, ok := envoy.PeerOf(cluster); ok && gateway != me.Node {
			return true
		}
	}
	return false
}
