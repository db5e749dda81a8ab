package report_test

import (
	"fmt"
	"testing"

	"github.com/fairlead/fairlead/internal/eventually"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	reportview "github.com/fairlead/fairlead/pkg/report/view"
)

// TestProfilesOfAllServersAreObserved has two servers, of which one announces nothing at first, and one goes away.
func TestProfilesOfAllServersAreObserved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p, other := w.place(t), w.place(t)
	g := w.gateway(t, "gateway-0", p.Address)
	w.edge(t, edgeOf("edge-1", idA), other.Address)
	g.opens(t, 7001, "edge-1", idA)
	v := w.view(t, p.Address, other.Address)
	await := func(what string, want func(reportview.FleetNow) bool) {
		t.Helper()
		eventually.True(t, patience, what, func() error {
			if now := v.Fleet(true); !want(now) {
				return fmt.Errorf("known is %+v", now)
			}
			return nil
		})
	}
	targets := func(now reportview.FleetNow) (n int, targets map[string]bool) {
		targets = map[string]bool{}
		for _, s := range now.Profiles {
			targets[s.GetTarget()] = true
		}
		return len(now.Profiles), targets
	}
	p.hub.SetProfiles(
		&reportv1.ProfileState{Target: "a", Nodes: []*reportv1.NodeProfile{{Node: "edge-1", TunnelId: idA, Refusal: "no"}}},
	)
	await("one announces", func(now reportview.FleetNow) bool {
		n, of := targets(now)
		e := now.Edges[reportview.EdgeRef{Node: "edge-1", ID: idA}]
		return now.Known && n == 2 && of["a"] && of[""] && e.Connected && e.Gateways["gateway-0"] == 1 &&
			!now.Gateways["gateway-0"].Ready
	})
	g.takes.set(true)
	other.hub.SetProfiles(&reportv1.ProfileState{Target: "b"})
	await("both announce", func(now reportview.FleetNow) bool {
		n, of := targets(now)
		return n == 2 && of["a"] && of["b"] &&
			now.Gateways["gateway-0"] == reportview.GatewayNow{Connected: true, Ready: true}
	})
	other.hub.SetProfiles(&reportv1.ProfileState{Target: "a"})
	await("both announce the same", func(now reportview.FleetNow) bool {
		n, of := targets(now)
		return n == 2 && len(of) == 1 && now.Known
	})
	other.Stop()
	await("one is away", func(now reportview.FleetNow) bool { return !now.Known })
	other.start(t)
	await("it is back, and has announced nothing since", func(now reportview.FleetNow) bool {
		_, of := targets(now)
		return now.Known && of["a"] && of[""]
	})
}
