package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// forwardGateways and forwardPerTunnel are the numbers of gateways, and of those to which an edge keeps tunnels.
	forwardGateways, forwardPerTunnel = 4, 2
	// forwardMembers is the number of workload clusters with one edge each.
	forwardMembers = 3
	// forwardPatience is how long a client of any gateway repeats a request. One that dials a gateway whose edges have
	// not dialled again waits for 1.4 s each time.
	forwardPatience = 5 * time.Second
)

// forwards is an installation in which each edge has tunnels to some of the gateways.
type forwards struct {
	*world.World
	members []*world.Member
	others  *traffic.Retrying // clients of the gateways that are neither killed nor replaced: all but the first one
	free    *traffic.Retrying // clients of any gateway
}

// TestGatewaysForwardClients proves the promises about gateways without a tunnel of a workload cluster.
func TestGatewaysForwardClients(t *testing.T) {
	inTurn(t)
	f := &forwards{World: newWorld(t, lab.Options{
		Gateways: forwardGateways, GatewaysPerTunnel: forwardPerTunnel, Lean: true, WithoutWorkload: true, GatewayPod: true,
		LogLevel: "info",
	})}
	for i := range forwardMembers {
		m := f.Member(t, fmt.Sprintf("shop-%d", i), nil)
		f.members = append(f.members, m)
		f.Edge(t, lab.EdgeSpec{Name: fmt.Sprintf("edge-%d", i)}, m)
	}
	that(t, "an edge keeps tunnels to as many gateways as the installation sets", func(t *testing.T) { f.tunnels(t) })
	that(t, "clients reach every workload cluster through every gateway, by both routes", f.works)
	that(t, "a forwarded request costs less than twice as much time", f.compare)
	// A client that dials a killed gateway itself has to repeat that until its Envoy runs again, which takes 0.4 s on a
	// busy machine: longer than three attempts.
	f.others = startRetrying(t, traffic.Retry{
		Attempts: 3, Gateway: func() int { return 1 + rand.IntN(forwardGateways-1) },
	}, f.members...)
	f.free = startRetrying(t, traffic.Retry{Patience: forwardPatience}, f.members...)
	eventually(t, f.others.More(replicasRate))
	that(t, "an edge with clients has lanes to these gateways only", f.lanes)
	for _, server := range f.XDSServers {
		server.Hold()
	}
	that(t, "clients are forwarded while no xds-server runs", f.works)
	that(t, "no retryable request fails when the Envoy of a gateway is killed while no xds-server runs", f.kill)
	for _, server := range f.XDSServers {
		server.Resume()
	}
	that(t, "no retryable request fails when a gateway restarts", f.replace)
	that(t, "no retryable request fails when a gateway is added, and edges dial it", f.add)
	that(t, "no retryable request fails when that gateway is removed", f.remove)
	that(t, "a gateway forwards to one of its zone, to another within 3 s of its loss, and back", f.nearest)
	f.Logs(t, "gateway-0")
}

// assigned returns the numbers of the gateways of a member.
func (f *forwards) assigned(t *testing.T, m *world.Member) []int {
	t.Helper()
	tunnel, err := m.Tunnel(t.Context())
	must(t, err)
	return lab.Assigned(tunnel.Spec.ID, forwardPerTunnel, forwardGateways)
}

// lanes checks that each gateway has lanes of the members that are assigned to it, and no others.
func (f *forwards) lanes(t *testing.T) {
	assigned := make([]bool, forwardGateways)
	for _, m := range f.members {
		for _, i := range f.assigned(t, m) {
			assigned[i] = true
		}
	}
	eventually(t, func(context.Context) error {
		for i, g := range f.Gateways {
			n, err := liveLanes(g)
			if err == nil && assigned[i] != (n >= model.TunnelsInLanes(1)) {
				err = fmt.Errorf("gateway-%d has %d tunnels of lanes, and is assigned: %t", i, n, assigned[i])
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (f *forwards) tunnels(t *testing.T) {
	want := make([]int, forwardGateways)
	for _, m := range f.members {
		for _, i := range f.assigned(t, m) {
			want[i] += model.TunnelsPerWorker * forwardGateways // to each address of the gateways
		}
		eventually(t, m.Condition(v1alpha1.ConditionTunnelReady, "True"))
	}
	eventually(t, func(context.Context) error {
		var got []int
		for _, g := range f.Gateways {
			live, err := liveTunnels(g)
			if err != nil {
				return err
			}
			got = append(got, len(live))
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("the gateways have %v tunnels, want %v", got, want)
		}
		return nil
	})
}

func (f *forwards) works(t *testing.T) {
	for _, m := range f.members {
		eventually(t, m.Works)
	}
}

// compare measures requests and downloads through gateways with a tunnel, and through the others.
func (f *forwards) compare(t *testing.T) {
	m := f.members[0]
	here := f.assigned(t, m)
	latencies, rates := map[bool][]float64{}, map[bool][]float64{}
	for range relayRounds {
		for i := range forwardGateways {
			direct, p := slices.Contains(here, i), m.Path(i, false)
			latencies[direct] = append(latencies[direct], latency(t, p))
			rates[direct] = append(rates[direct], download(t, p))
		}
	}
	measured("direct_p50_ms", median(latencies[true]))
	measured("forwarded_p50_ms", median(latencies[false]))
	measured("direct_mb_s", median(rates[true]))
	measured("forwarded_mb_s", median(rates[false]))
	// on an idle machine; a busy machine delays each hop by some milliseconds
	if direct, forwarded := median(latencies[true]), median(latencies[false]); forwarded > 3*direct+5 {
		t.Errorf("a forwarded request takes %.2f ms, and a direct one %.2f ms", forwarded, direct)
	}
}

// download returns the rate of one download, in MB/s.
func download(t *testing.T, p traffic.Path) float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := p.Open(ctx)
	must(t, err)
	defer s.Close()
	begin := time.Now()
	_, err = s.Get(ctx, fmt.Sprintf("/bytes/%d", relayBytes))
	must(t, err)
	return relayBytes / 1e6 / time.Since(begin).Seconds()
}

// kill kills the Envoy of the first gateway several times, because only some requests reach its next Envoy before that
// has reverse tunnels.
func (f *forwards) kill(t *testing.T) {
	for range 3 {
		must(t, f.Gateways[0].KillEnvoy())
		f.unbroken(t)
	}
	measured("killed_longest_s", f.free.Longest().Seconds())
	f.works(t)
}

// unbroken requires that no retryable request has failed, and that none of the next ones fails.
func (f *forwards) unbroken(t *testing.T) {
	t.Helper()
	eventually(t, f.others.More(4*replicasRate))
	eventually(t, f.free.More(4*replicasRate))
	must(t, errors.Join(f.others.Err(), f.free.Err()))
}

func (f *forwards) replace(t *testing.T) {
	again := f.others.Again()
	must(t, f.ReplaceGateway(t.Context(), 0, pods))
	f.unbroken(t)
	measured("replaced_retries", float64(f.others.Again()-again))
	f.works(t)
}

func (f *forwards) add(t *testing.T) {
	begin := time.Now()
	must(t, f.AddGateway(t.Context()))
	measured("added_ready_s", time.Since(begin).Seconds())
	f.works(t)
	f.unbroken(t)
}

func (f *forwards) remove(t *testing.T) {
	again := f.others.Again()
	must(t, f.RemoveGateway(t.Context(), pods))
	f.unbroken(t)
	measured("removed_retries", float64(f.others.Again()-again))
	f.works(t)
}
