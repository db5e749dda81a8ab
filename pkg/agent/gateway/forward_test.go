package gateway

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"

	"github.com/fairlead/fairlead/pkg/agent/envoyadmin"
	"github.com/fairlead/fairlead/pkg/assignment"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/peers"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

// four are the gateways of the tests.
var four = []model.Gateway{{Name: "gateway-0"}, {Name: "gateway-1"}, {Name: "gateway-2"}, {Name: "gateway-3"}}

// idOf returns a tunnel id that is assigned to exactly these gateways of some.
func idOf(some []model.Gateway, wants ...[]model.Gateway) string {
	for {
		id, all := model.NewID(), true
		for _, want := range wants {
			all = all && slices.Equal(assignment.Of(id, len(want), some), want)
		}
		if all {
			return id
		}
	}
}

// TestWhereClientsAreForwarded has a tunnel id that is assigned to gateway-0, and gateway-3 if it has two gateways.
func TestWhereClientsAreForwarded(t *testing.T) {
	const domain = model.TunnelDomain("tunnels.example.com")
	gateways := []model.Gateway{four[3], four[1], four[0], four[2]}
	id := domain.TunnelID(idOf(four, four[:1], []model.Gateway{four[0], four[3]}))
	now := time.Now()
	for name, tc := range map[string]struct {
		me        string
		perTunnel int
		began     time.Duration // ago
		absent    time.Duration // how long it has had no tunnel here; 0: it has one
		alone     bool          // there is no other gateway
		want      string
	}{
		"a tunnel is here, although it is assigned to others": {me: "gateway-1", perTunnel: 2, began: time.Hour},
		"it is assigned to others": {
			me: "gateway-1", perTunnel: 2, began: time.Hour, absent: time.Millisecond, want: "to:gateway-0,gateway-3",
		},
		"it is assigned to others, and this gateway has just started": {
			me: "gateway-1", perTunnel: 2, absent: time.Millisecond, want: "to:gateway-0,gateway-3",
		},
		"it is assigned to others for longer than unreachable clusters may be absent": {
			me: "gateway-1", perTunnel: 2, began: time.Hour, absent: time.Hour, want: "to:gateway-0,gateway-3",
		},
		"it is assigned to this gateway, and a tunnel has just ended": {
			me: "gateway-0", perTunnel: 2, began: time.Hour, absent: forwardAfter / 2,
		},
		"it is assigned to this gateway, and absent": {
			me: "gateway-0", perTunnel: 2, began: time.Hour, absent: forwardAfter, want: "to:gateway-3",
		},
		"it is assigned to this gateway, which has just started": {me: "gateway-0", perTunnel: 2, absent: forwardAfter},
		"it is unreachable": {
			me: "gateway-0", perTunnel: 2, began: time.Hour, absent: unreachableAfter, want: unreachableForm,
		},
		"it is assigned to all, and absent": {
			me: "gateway-0", perTunnel: model.MaxGateways, began: time.Hour, absent: forwardAfter,
			want: "to:gateway-1,gateway-2,gateway-3",
		},
		"tunnels have no number of gateways, the default": {me: "gateway-0", began: time.Hour, absent: forwardAfter},
		"it is assigned to one": {
			me: "gateway-2", perTunnel: 1, began: time.Hour, absent: time.Second, want: "to:gateway-0",
		},
		"there is no other gateway": {me: "gateway-0", alone: true, began: time.Hour, absent: forwardAfter},
		"forwarding is off":         {perTunnel: 2, began: time.Hour, absent: forwardAfter},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := xdsproxy.New(t.TempDir(), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			k := newReachability(r, nil, envoyadmin.Client{}, slog.New(slog.DiscardHandler))
			k.forwards.me, k.forwards.domain = tc.me, domain
			if !tc.alone {
				k.forwards.set(fleet{gateways, tc.perTunnel})
			}
			k.began, k.known = now.Add(-tc.began), map[string]clusterName{"c1.prod": {id: id}}
			if tc.absent == 0 {
				k.counts[id] = 1
			} else {
				k.absent[id] = now.Add(-tc.absent)
			}
			k.decide(now, true)
			if got := k.Form("c1.prod"); got != tc.want {
				t.Errorf("got the form %q, want %q", got, tc.want)
			}
			k.counts[id] = 1
			if k.decide(now, true); k.Form("c1.prod") != "" {
				t.Error("a gateway with a tunnel does not use it")
			}
		})
	}
}

func TestAssignedIDs(t *testing.T) {
	f := forwarding{me: "gateway-2", domain: "tunnels.example.com"}
	assigned := func(id string) bool { return f.route(f.domain.TunnelID(id)).assigned }
	c, d := idOf(four, []model.Gateway{four[0], four[2]}), idOf(four, []model.Gateway{four[0], four[3]})
	for !slices.Contains(assignment.Of(d, 2, four[:3]), four[2]) {
		d = idOf(four, []model.Gateway{four[0], four[3]})
	}
	if !assigned(c) || !assigned(d) {
		t.Error("without other gateways, an id is not assigned to this one")
	}
	f.set(fleet{four, 2})
	if !assigned(c) || assigned(d) {
		t.Errorf("assigned: c %t, d %t; want only c", assigned(c), assigned(d))
	}
	f.set(fleet{four[:3], 2})
	if !assigned(d) {
		t.Error("d is not assigned to this gateway, although gateway-3 has gone")
	}
}

// TestFormsOfForwarding applies forms to the resources of an xds-server.
func TestFormsOfForwarding(t *testing.T) {
	wc := model.WorkloadCluster{ID: "d", Hostname: "c1.prod.tunnels.example.com"}
	inst := model.Installation{
		Domain: "tunnels.example.com", Control: model.Endpoint{Host: "xds", Port: 1}, GatewaysPerTunnel: 2,
		Gateways: []model.Gateway{
			{Name: "gateway-0", Peer: model.Endpoint{Host: "g0", Port: 1}},
			{Name: "gateway-1", Peer: model.Endpoint{Host: "g1", Port: 1}, Joining: true},
		},
	}
	k := &reachability{}
	c := &clusterv3.Cluster{}
	forwarding := k.Apply(wc.Hostname, "to:gateway-1,gateway-3", packed(t, envoy.TunnelClusters(inst, wc)[0]))
	if err := forwarding.UnmarshalTo(c); err != nil {
		t.Fatal(err)
	}
	var to []string
	for _, host := range c.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints() {
		to = append(to, host.GetEndpoint().GetAddress().GetEnvoyInternalAddress().GetServerListenerName())
	}
	if len(to) != 2 || to[0] != "peers/gateway-1" || to[1] != "peers/gateway-3" || c.GetName() != wc.Hostname {
		t.Errorf("%s leads to %q", c.GetName(), to)
	}
	described := 0
	for _, common := range envoy.GatewayClusters(inst) {
		g, perTunnel, _, ok := peers.Described(packed(t, common))
		if !ok {
			continue
		}
		described++
		if perTunnel != 2 || g.Joining != (g.Name == "gateway-1") || g.Leaving {
			t.Errorf("%s is described as %+v with %d gateways for each tunnel", common.GetName(), g, perTunnel)
		}
		if err := k.Apply(common.GetName(), "", packed(t, common)).UnmarshalTo(c); err != nil || c.GetMetadata() != nil {
			t.Errorf("Envoy receives the description of %s (%v)", common.GetName(), err)
		}
	}
	if described != 2 {
		t.Errorf("%d gateways are described, want 2", described)
	}
}
