package fleet

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// relayRounds is how often direct and relayed tunnels are measured in turn, relayRequests the number of requests
	// each time, and relayBytes the size of a download.
	relayRounds, relayRequests = 5, 200
	relayBytes                 = 32 << 20
	// interruption is how long a retried request may fail.
	interruption = 2 * time.Second
)

// relays is an installation with two addresses: one leads one edge to gateway-0, the other leads another edge to
// gateway-1. The first edge's tunnels to gateway-1 go through gateway-0.
type relays struct {
	*world.World
	relayed, direct *world.Member
	edge            *lab.Agent // of relayed
}

// TestAGatewayRelaysEdgesToOtherGateways proves the promises about connections that pass two replicas.
func TestAGatewayRelaysEdgesToOtherGateways(t *testing.T) {
	inTurn(t)
	r := &relays{World: newWorld(t, lab.Options{Gateways: 2, Lean: true, WithoutWorkload: true, LogLevel: "info"})}
	r.relayed, r.direct = r.Member(t, "relayed", nil), r.Member(t, "direct", nil)
	r.edge = r.Edge(t, r.edgeAt("edge-relayed", 0), r.relayed)
	r.Edge(t, r.edgeAt("edge-direct", 1), r.direct)
	that(t, "a gateway relays the connection of an edge to another gateway at a small cost", r.compare)
	that(t, "requests fail for at most 2 s after the relaying gateway is killed", r.kill)
	r.Logs(t, "gateway-0")
}

// edgeAt returns an edge that a load balancer leads to only one gateway.
func (r *relays) edgeAt(name string, gateway int) lab.EdgeSpec {
	return lab.EdgeSpec{Name: name, Hosts: map[string]netip.Addr{netns.PublicName: netns.PublicAddress(gateway)}}
}

// compare measures clients of gateway-1 whose requests use a direct tunnel, and clients whose requests use a relayed
// one.
func (r *relays) compare(t *testing.T) {
	eventually(t, func(context.Context) error {
		found, err := holds(r.Gateways[1].StateDir, netns.PublicAddress(0).String()+":")
		if err == nil && !found {
			err = fmt.Errorf("gateway-1 has no tunnel through gateway-0")
		}
		return err
	})
	latencies, rates := map[*world.Member][]float64{}, map[*world.Member][]float64{}
	for range relayRounds {
		for _, m := range []*world.Member{r.direct, r.relayed} {
			p := m.Path(1, false)
			latencies[m] = append(latencies[m], latency(t, p))
			rates[m] = append(rates[m], download(t, p))
		}
	}
	direct, relayed := median(latencies[r.direct]), median(latencies[r.relayed])
	measured("direct_p50_ms", direct)
	measured("relayed_p50_ms", relayed)
	measured("direct_mb_s", median(rates[r.direct]))
	measured("relayed_mb_s", median(rates[r.relayed]))
	// less than twice as long on an idle machine; a busy machine delays each hop by some milliseconds
	if relayed > 3*direct+5 {
		t.Errorf("a request takes %.2f ms by a relayed tunnel, and %.2f ms by a direct one", relayed, direct)
	}
	if median(rates[r.relayed]) < median(rates[r.direct])/4 {
		t.Errorf(
			"a relayed tunnel carries %.0f MB/s, and a direct one %.0f MB/s", median(rates[r.relayed]), median(rates[r.direct]),
		)
	}
}

// latency returns the median of requests on one connection, one after the other, in milliseconds.
func latency(t *testing.T, p traffic.Path) float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := p.Open(ctx)
	must(t, err)
	defer s.Close()
	var all []float64
	for range relayRequests {
		begin := time.Now()
		_, err := s.Get(ctx, "/whoami")
		must(t, err)
		all = append(all, float64(time.Since(begin).Microseconds())/1000)
	}
	return median(all)
}

func median(values []float64) float64 {
	return slices.Sorted(slices.Values(values))[len(values)/2]
}

// kill kills the Envoy of gateway-0 while clients of gateway-1 use tunnels that go through it, and tunnels of a second
// edge that do not.
func (r *relays) kill(t *testing.T) {
	spare := r.Edge(t, r.edgeAt("edge-spare", 1), r.relayed)
	eventually(t, spare.Ready)
	load := startRetrying(t, traffic.Retry{Patience: interruption, Gateway: func() int { return 1 }}, r.relayed)
	eventually(t, load.More(2*replicasRate))
	must(t, r.Gateways[0].KillEnvoy())
	eventually(t, load.More(4*replicasRate))
	must(t, load.Err())
	measured("relay_killed_longest_s", load.Longest().Seconds())
	measured("relay_killed_retries", float64(load.Again()))
	// The requests that used the spare edge's tunnels go through gateway-0 again, in new tunnels.
	world.StopEdge(t, spare)
	eventually(t, r.relayed.Works)
	if err := r.edge.Alive(); err != nil {
		t.Error(err)
	}
}
