package envoy_test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// withLanes gives gateways that run and edges that start later this many lanes.
func (in *installation) withLanes(t *testing.T, lanes int) {
	t.Helper()
	in.Lanes = lanes
	for _, g := range in.gateways {
		g.bind.Version = envoy.Current
		g.deny(t, in, model.Denied{})
	}
}

// TestStreamsSpreadOverLanes has two gateways, of which an edge knows only the first one's address, so that this relays
// lanes too.
func TestStreamsSpreadOverLanes(t *testing.T) {
	const lanes = 3
	workload := newAuthority(t)
	hostname := "c1.prod." + string(domain)
	api := newAPIServer(t, "api-0", workload, hostname)
	c1 := cluster(t, "c1", endpoint(t, api.Listener.Addr().String()))
	in := newInstallation(t, 2, c1)
	in.workload = workload
	in.withLanes(t, lanes)
	edge := in.startDialling(t, c1, envoy.EdgeDial{Version: envoy.Current})
	streams := func(gateway string, lane int) int {
		of := fmt.Sprintf("tunnel_[a-z0-9-]*_%s", gateway)
		if lane > 0 {
			of = fmt.Sprintf("tunnel_[a-z0-9-]*_lane-%d_%s", lane, gateway)
		}
		return edge.Sum(t, "^listener[.]"+of+"[.].*http[.]tunnel[.]downstream_rq_2xx$")
	}
	for _, g := range in.gateways {
		envoytest.Eventually(t, g.name+" has all tunnels", func() error {
			up := edge.Sum(t, "^listener[.]tunnel_.*_"+g.name+"[.]downstream_cx_active$")
			if up < 2+lanes {
				return fmt.Errorf("it has %d", up)
			}
			return nil
		})
		const each = 10
		for range each * (1 + lanes) {
			works(t, in.getBySNI, g, hostname, "api-0 "+hostname)
		}
		for lane := range 1 + lanes {
			if n := streams(g.name, lane); n < each/2 || n > 2*each {
				t.Errorf("%s: lane %d had %d of %d streams", g.name, lane, n, each*(1+lanes))
			}
		}
	}
	t.Run("an edge without lanes serves too, and the end of the other fails no request", func(t *testing.T) {
		before := in.startEdge(t, c1)
		envoytest.Eventually(t, "the second edge has tunnels", func() error {
			if n := before.Sum(t, "^listener[.]tunnel_.*_gateway-0[.]downstream_cx_active$"); n < 2 {
				return fmt.Errorf("it has %d", n)
			}
			return nil
		})
		l := in.load(t, hostname)
		begin := time.Now()
		l.more(t, 20)
		edge.Kill()
		l.more(t, 100)
		l.stop()
		if c := l.count(begin, time.Now()); c.failed > 0 {
			t.Errorf("%v, want none failed", c)
		}
	})
}

// TestALaneBelongsToItsEdge: the node id of a lane consists of the leaf's subject and the name that the edge has
// selected, so none leads to another edge, or counts as another lane.
func TestALaneBelongsToItsEdge(t *testing.T) {
	in := newInstallation(t, 1)
	in.withLanes(t, 2)
	self := model.Subject{Role: model.RoleEdge, Node: model.NewNodeName(), ID: model.NewID()}
	identity, tunnel := in.ca.issue(t, self), domain.TunnelID(self.ID)
	first, second := domain.Lane("gateway-0", 1), domain.Lane("gateway-0", 2)
	lane := func(node string, n int) string { return domain.LaneNodeID(node, "gateway-0", n) }
	envoytest.Eventually(t, "the gateway accepts lanes", func() error {
		got, err := sendHandshake(dialPublicAs(t, in, identity, first), claim{lane(self.Node, 1), tunnel})
		if err != nil || got != http.StatusOK {
			return fmt.Errorf("%d, %w", got, err)
		}
		return nil
	})
	for name, tc := range map[string]struct {
		sni, node string
		want      int
	}{
		"the second lane":                  {second, lane(self.Node, 2), http.StatusOK},
		"another edge's lane":              {first, lane(model.NewNodeName(), 1), http.StatusForbidden},
		"another edge":                     {first, model.NodeID(model.NewNodeName()), http.StatusForbidden},
		"its own node id, without a lane":  {first, self.NodeID(), http.StatusForbidden},
		"another lane than it has dialled": {first, lane(self.Node, 2), http.StatusForbidden},
		"a lane at the gateway's own name": {domain.GatewayReplica("gateway-0"), lane(self.Node, 1), http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := sendHandshake(dialPublicAs(t, in, identity, tc.sni), claim{tc.node, tunnel})
			if err != nil || got != tc.want {
				t.Errorf("got %d, %v, want %d", got, err, tc.want)
			}
		})
	}
	t.Run("a lane that there is not", func(t *testing.T) {
		if _, err := dialPublicAs(t, in, identity, domain.Lane("gateway-0", 3)).Read(make([]byte, 1)); err == nil {
			t.Error("it was accepted")
		}
	})
	envoytest.Eventually(t, "the gateway records both lanes", func() error {
		data, err := os.ReadFile(in.gateways[0].log)
		for n := 1; n <= 2; n++ {
			if err == nil && !strings.Contains(string(data), `"`+lane(self.Node, n)+`"`) {
				err = fmt.Errorf("lane %d is not in %s", n, data)
			}
		}
		return err
	})
}
