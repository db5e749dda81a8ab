package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/peers"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// nearestRequests is how many requests show which gateway serves them.
	nearestRequests = 20
	// nearestLongest bounds a request while the nearest gateway is lost: a connection to it is given up after a second.
	// The rest is for a busy machine.
	nearestLongest = 3 * time.Second
	// nearestTries is how often Envoy may try the lost gateway again in the time of these requests.
	nearestTries = nearestRequests / 4
)

// nearest puts the gateways into two zones. One of the two that have the tunnels of a workload cluster is in the same
// zone as a gateway that has none.
func (f *forwards) nearest(t *testing.T) {
	m := f.members[0]
	with := f.assigned(t, m)
	near, far, from := with[0], with[1], 0
	for slices.Contains(with, from) {
		from++
	}
	zones := slices.Repeat([]string{"b"}, forwardGateways)
	zones[from], zones[near] = "a", "a"
	must(t, f.SetZones(t.Context(), zones...))
	eventually(t, func(ctx context.Context) error { return f.routed(ctx, m, from, near, far) })
	eventually(t, func(ctx context.Context) error { return f.servedBy(ctx, m, from, near, far, 0) })

	must(t, f.Network.LosePeer(t.Context(), from, near))
	begin := time.Now()
	longest, err := f.requests(t.Context(), m, from)
	must(t, err)
	measured("nearest_lost_longest_s", longest.Seconds())
	measured("nearest_lost_all_s", time.Since(begin).Seconds())
	if longest > nearestLongest {
		t.Errorf("a request takes %.1f s after the nearest gateway is lost", longest.Seconds())
	}
	must(t, f.servedBy(t.Context(), m, from, far, near, nearestTries))

	must(t, f.Network.FindPeer(t.Context(), from, near))
	begin = time.Now()
	eventually(t, func(ctx context.Context) error { return f.servedBy(ctx, m, from, near, far, 0) })
	measured("nearest_back_s", time.Since(begin).Seconds())
}

// routed returns nil if fairlead status shows where a gateway forwards.
func (f *forwards) routed(ctx context.Context, m *world.Member, from, near, far int) error {
	cmd, err := f.Command(ctx, "status", "-n", world.Namespace, m.Name, f.Inspection())
	if err != nil {
		return err
	}
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("fairlead status: %w: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if len(words) > 3 && words[0] == netns.GatewayReplica(from) && words[1] == "a" &&
			strings.Contains(line, "are forwarded to "+netns.GatewayReplica(near)+" (zone a, ") &&
			strings.Contains(line, ", then "+netns.GatewayReplica(far)+" (zone b, ") {
			return nil
		}
	}
	return fmt.Errorf("fairlead status does not show the route:\n%s", out)
}

// requests sends requests through a gateway, each on a connection of its own, and returns how long the longest took.
func (f *forwards) requests(ctx context.Context, m *world.Member, from int) (longest time.Duration, err error) {
	for i := range nearestRequests {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		begin := time.Now()
		s, err := m.Path(from, i%2 == 0).Open(ctx)
		if err == nil {
			_, err = s.Get(ctx, "/version")
			s.Close()
		}
		cancel()
		if err != nil {
			return 0, fmt.Errorf("request %d: %w", i, err)
		}
		longest = max(longest, time.Since(begin))
	}
	return longest, nil
}

// servedBy returns nil if the requests through a gateway go to one gateway, and at most some attempts to another.
func (f *forwards) servedBy(ctx context.Context, m *world.Member, from, by, not, attempts int) error {
	before, err := forwarded(ctx, f.Gateways[from])
	if err != nil {
		return err
	}
	if _, err := f.requests(ctx, m, from); err != nil {
		return err
	}
	after, err := forwarded(ctx, f.Gateways[from])
	if err != nil {
		return err
	}
	to, others := netns.GatewayReplica(by), netns.GatewayReplica(not)
	if n, more := after[to]-before[to], after[others]-before[others]; n < nearestRequests || more > attempts {
		return fmt.Errorf("of %d requests, %d go to %s, and %d to %s", nearestRequests, n, to, more, others)
	}
	return nil
}

// forwarded returns how many clients the Envoy of a gateway has forwarded to each other gateway.
func forwarded(ctx context.Context, g *lab.Agent) (map[string]int, error) {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(g.StateDir, envoy.AdminSocket))
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://envoy/clusters?format=json", nil)
	if err != nil {
		return nil, err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	var all struct {
		Statuses []struct {
			Hosts []struct {
				Address struct {
					Internal struct {
						Listener string `json:"server_listener_name"`
					} `json:"envoy_internal_address"`
				}
				Stats []struct{ Name, Value string }
			} `json:"host_statuses"`
		} `json:"cluster_statuses"`
	}
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, fmt.Errorf("reading Envoy clusters: %w", err)
	}
	counts := map[string]int{}
	for _, c := range all.Statuses {
		for _, host := range c.Hosts {
			name, ok := peers.Parse(host.Address.Internal.Listener)
			for _, s := range host.Stats {
				if n := 0; ok && s.Name == "rq_total" {
					_, _ = fmt.Sscan(s.Value, &n)
					counts[name] += n
				}
			}
		}
	}
	return counts, nil
}
