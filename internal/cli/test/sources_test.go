package test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/observed"
)

func TestJudgeSources(t *testing.T) {
	own := map[netip.Addr]string{
		netip.MustParseAddr("10.0.0.7"):     "the Node cp-0",
		netip.MustParseAddr("198.51.100.9"): "the load balancer",
	}
	edge := observed.Edge{Node: "edge-1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7")}}
	for name, c := range map[string]struct {
		keys []string // of the tunnels of edge-1
		edge observed.Edge
		want check.Status
		text string
	}{
		"no tunnel":                        {want: check.Skipped, text: "no tunnel"},
		"a tunnel without a known address": {keys: []string{""}, want: check.Skipped, text: "no tunnel"},
		"a NAT before the load balancer": {
			keys: []string{"192.0.2.1:40000>10.0.0.1:443", "192.0.2.1:40001>10.0.0.1:443"}, want: check.OK, text: "1 addresses",
		},
		"kube-proxy replaces the address": {
			keys: []string{"192.0.2.1:40000>10.0.0.1:443", "10.0.0.7:40000>10.0.0.1:443"}, want: check.Warning,
			text: "10.0.0.7, the address of the Node cp-0",
		},
		"the same as an address of IPv6": {
			keys: []string{"[::ffff:198.51.100.9]:40000>10.0.0.1:443"}, want: check.Warning, text: "the load balancer",
		},
		"the edge runs on that Node": {
			keys: []string{"10.0.0.7:40000>10.0.0.1:443"}, edge: edge, want: check.OK,
			text: "1 of them are addresses of the edges'",
		},
	} {
		t.Run(name, func(t *testing.T) {
			fleet := collect.Fleet{Edges: []observed.Edge{c.edge}}
			for _, key := range c.keys {
				fleet.Tunnels = append(fleet.Tunnels, collect.Tunnel{Key: key, Node: "edge-1"})
			}
			got := judgeSources(fleet, own)
			if got.Status != c.want || !strings.Contains(got.Detail, c.text) {
				t.Errorf("got %+v, want %s with %q", got, c.want, c.text)
			}
			if got.Status == check.Warning && (got.Cause == "" || got.Cure == "") {
				t.Errorf("a warning without cause or cure: %+v", got)
			}
		})
	}
}
