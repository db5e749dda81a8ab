package envoy_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
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

// TestConnectionsHaveReverseTunnelsOfTheirOwn has two gateways, of which an edge knows only the first one's address, so
// that this relays lanes too. Connections use lanes as long as one is free, and share the usual reverse tunnels
// otherwise.
func TestConnectionsHaveReverseTunnelsOfTheirOwn(t *testing.T) {
	const lanes = 2
	each := model.TunnelsInLanes(lanes)
	workload := newAuthority(t)
	hostname := "c1.prod." + string(domain)
	api := newAPIServer(t, "api-0", workload, hostname)
	c1 := cluster(t, "c1", endpoint(t, api.Listener.Addr().String()))
	in := newInstallation(t, 2, c1)
	in.workload = workload
	in.withLanes(t, lanes)
	edge := in.startDialling(t, c1, envoy.EdgeDial{Version: envoy.Current})
	count := func(what string) int { return edge.Sum(t, "^http[.]tunnel[.]"+what+"$") }
	for _, g := range in.gateways {
		ready := func() {
			t.Helper()
			envoytest.Eventually(t, g.name+" has all tunnels", func() error {
				up := edge.Sum(t, "^listener[.]tunnel_.*_"+g.name+"[.]downstream_cx_active$")
				if up < model.TunnelsPerWorker+each {
					return fmt.Errorf("it has %d", up)
				}
				return nil
			})
		}
		for _, route := range []string{"SNI", "CONNECT"} {
			ready()
			own, shared := count("downstream_cx_http1_total"), count("downstream_rq_total")
			var open []*http.Client
			ask := func(c *http.Client) {
				response, err := c.Get("https://" + hostname + ":6443/")
				if err != nil {
					t.Errorf("%s, %s, connection %d: %v", g.name, route, len(open), err)
					return
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			}
			add := func(n int) {
				for range n {
					c := in.client(g, hostname)
					if route == "CONNECT" {
						transport := c.Transport.(*http.Transport)
						transport.DialContext = nil
						transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: g.bind.Connect.String()})
					}
					open = append(open, c)
					ask(c)
				}
			}
			add(each)
			if n := count("downstream_cx_http1_total") - own; n < each-2 || n > each { // one of 16 uses a usual one at once
				t.Errorf("%s, %s: %d of %d connections have a reverse tunnel of their own", g.name, route, n, each)
			}
			const more = 20
			add(more)
			if n := count("downstream_rq_total") - shared; n != each+more {
				t.Errorf("%s, %s: %d of %d connections reached the edge", g.name, route, n, each+more)
			}
			if n := count("downstream_cx_http1_total") - own; n != each {
				t.Errorf("%s, %s: %d reverse tunnels carry one connection, of %d", g.name, route, n, each)
			}
			for _, c := range open {
				ask(c)
				c.CloseIdleConnections()
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

// TestALaneBelongsToItsEdge: the ids of a lane are those of the leaf with a mark, so none leads to another edge, or to
// its usual reverse tunnels.
func TestALaneBelongsToItsEdge(t *testing.T) {
	in := newInstallation(t, 1)
	in.withLanes(t, 2)
	self := model.Subject{Role: model.RoleEdge, Node: model.NewNodeName(), ID: model.NewID()}
	identity, tunnel, other := in.ca.issue(t, self), domain.TunnelID(self.ID), domain.TunnelID(model.NewID())
	first, second := domain.Lane("gateway-0", 1), domain.Lane("gateway-0", 2)
	lane, lanes := func(node string) string { return model.NodeID(node) + model.LaneMark }, tunnel+model.LaneMark
	envoytest.Eventually(t, "the gateway accepts lanes", func() error {
		got, err := sendHandshake(dialPublicAs(t, in, identity, first), claim{lane(self.Node), lanes})
		if err != nil || got != http.StatusOK {
			return fmt.Errorf("%d, %w", got, err)
		}
		return nil
	})
	for name, tc := range map[string]struct {
		sni, node, tunnel string
		want              int
	}{
		"the second lane":                 {second, lane(self.Node), lanes, http.StatusOK},
		"another edge's lane":             {first, lane(model.NewNodeName()), lanes, http.StatusForbidden},
		"another edge":                    {first, model.NodeID(model.NewNodeName()), lanes, http.StatusForbidden},
		"another workload cluster's lane": {first, lane(self.Node), other + model.LaneMark, http.StatusForbidden},
		"its own node id":                 {first, self.NodeID(), lanes, http.StatusForbidden},
		"its own tunnel id":               {first, lane(self.Node), tunnel, http.StatusForbidden},
		"its own ids":                     {first, self.NodeID(), tunnel, http.StatusForbidden},
		"a lane at the gateway's own name": {
			domain.GatewayReplica("gateway-0"), lane(self.Node), lanes, http.StatusForbidden,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := sendHandshake(dialPublicAs(t, in, identity, tc.sni), claim{tc.node, tc.tunnel})
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
		if n := strings.Count(string(data), `"`+lane(self.Node)+`"`); err == nil && n < 2 {
			err = fmt.Errorf("%d are in %s", n, data)
		}
		return err
	})
}
