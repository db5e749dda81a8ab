package fleet

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/assignment"
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
)

// forwards is an installation in which each edge has tunnels to some of the gateways.
type forwards struct {
	*world.World
	members []*world.Member
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
	that(t, "an edge keeps tunnels to as many gateways as the installation sets", f.tunnels)
	that(t, "clients reach every workload cluster through every gateway, by both routes", f.works)
	that(t, "a forwarded request costs less than twice as much time", f.compare)
	f.free = startRetrying(t, traffic.Retry{Attempts: 3}, f.members...)
	eventually(t, f.free.More(replicasRate))
	for _, server := range f.XDSServers {
		server.Hold()
	}
	that(t, "clients are forwarded while no xds-server runs", f.works)
	that(t, "no retryable request fails when the Envoy of a gateway is killed while no xds-server runs", f.kill)
	for _, server := range f.XDSServers {
		server.Resume()
	}
	that(t, "no retryable request fails when a gateway is added, and edges dial it", f.add)
	f.Logs(t, "gateway-0")
}

// assigned returns the numbers of the gateways of a member.
func (f *forwards) assigned(t *testing.T, m *world.Member) (numbers []int) {
	t.Helper()
	tunnel, err := m.Tunnel(t.Context())
	must(t, err)
	var all []model.Gateway
	for i := range forwardGateways {
		all = append(all, model.Gateway{Name: fmt.Sprintf("gateway-%d", i)})
	}
	for _, g := range assignment.Of(tunnel.Spec.ID, forwardPerTunnel, all) {
		numbers = append(numbers, slices.Index(all, g))
	}
	return numbers
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

func (f *forwards) kill(t *testing.T) {
	must(t, f.Gateways[0].KillEnvoy())
	eventually(t, f.free.More(4*replicasRate))
	must(t, f.free.Err())
	measured("killed_longest_s", f.free.Longest().Seconds())
	f.works(t)
}

func (f *forwards) add(t *testing.T) {
	begin := time.Now()
	must(t, f.AddGateway(t.Context()))
	measured("added_ready_s", time.Since(begin).Seconds())
	f.works(t)
	eventually(t, f.free.More(2*replicasRate))
	must(t, f.free.Err())
}
