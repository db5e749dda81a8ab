package sight

import (
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// hangTime is how long check may take to name a frozen process.
const hangTime = 20 * time.Second

// hangFaults are frozen processes, which accept connections and never answer. They are injected one after the other, on
// an installation that is otherwise healthy.
var hangFaults = []fault{
	{
		ID: "gateway-envoy-frozen", Hop: check.HopRoute, Status: check.Warning, Within: hangTime,
		Title:  "the Envoy of one of two gateways is frozen",
		Cause:  "the process envoy of gateway-1 is frozen",
		Cure:   "replaces a frozen Envoy",
		Do:     "wait: its agent replaces it after 15 s; if it remains frozen, delete the gateway's Pod",
		Inject: func(t *testing.T, r *room) func(*testing.T) { return freezeEnvoy(t, r.world.Gateways[1]) },
	},
	{
		ID: "gateway-agent-frozen", Hop: check.HopRoute, Status: check.Warning, Within: hangTime,
		Title:  "the gateway-agent of one gateway is frozen, so its Envoy receives no revocations",
		Cause:  "receives no revocations",
		Cure:   "delete pod gateway-0",
		Do:     "wait for its liveness probe, or delete the gateway's Pod",
		Inject: func(t *testing.T, r *room) func(*testing.T) { return freeze(t, r.world.Gateways[0].Service) },
	},
	{
		ID: "edge-envoy-frozen", Hop: check.HopHandshake, Within: hangTime, Healed: "edge-agent has replaced it",
		Title:  "the Envoy of the only edge is frozen",
		Cause:  "the edge's Envoy is frozen",
		Cure:   "replaces a frozen Envoy",
		Do:     "wait: edge-agent replaces it after 15 s; if it remains frozen, restart it on its machine",
		Inject: func(t *testing.T, r *room) func(*testing.T) { return freezeEnvoy(t, r.edge) },
	},
	{
		ID: "edge-agent-frozen", Hop: check.HopHandshake, Status: check.Warning, Within: hangTime,
		Title:  "the edge-agent is frozen, and its Envoy continues to run",
		Cause:  "edge-agent on that machine is down or frozen",
		Cure:   "check that edge-agent runs",
		Do:     "wait for its unit's watchdog or its liveness probe, or restart edge-agent",
		Inject: func(t *testing.T, r *room) func(*testing.T) { return freeze(t, r.edge.Service) },
	},
	{
		ID: "xds-server-frozen", Hop: check.HopServers, Status: check.Warning, Within: hangTime,
		Title:  "one of two xds-servers is frozen",
		Cause:  "is frozen",
		Cure:   "get pods -l app.kubernetes.io/name=xds-server",
		Do:     "wait for its liveness probe, or delete its Pod",
		Inject: func(t *testing.T, r *room) func(*testing.T) { return freeze(t, r.world.XDSServers[1]) },
	},
	{
		ID: "controller-frozen", Hop: check.HopServers, Within: hangTime,
		Title:  "the controller is frozen",
		Cause:  "is frozen",
		Cure:   "restart the controller",
		Do:     "wait for its liveness probe, or delete its Pod",
		Inject: func(t *testing.T, r *room) func(*testing.T) { return freeze(t, r.world.Controller) },
	},
}

// freeze freezes a process, and returns a function that thaws it.
func freeze(t *testing.T, s *proc.Service) func(*testing.T) {
	t.Helper()
	p := s.Process()
	must(t, p.Freeze())
	t.Cleanup(func() { _ = p.Thaw() })
	return func(t *testing.T) { must(t, p.Thaw()) }
}

// freezeEnvoy freezes an agent's Envoy, and returns a function that thaws it.
func freezeEnvoy(t *testing.T, a *lab.Agent) func(*testing.T) {
	t.Helper()
	_, thaw, err := a.FreezeEnvoy()
	must(t, err)
	t.Cleanup(thaw)
	return func(*testing.T) { thaw() }
}
