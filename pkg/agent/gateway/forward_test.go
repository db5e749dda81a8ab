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
		unsure    bool          // there may be tunnels that are not recorded
		asked     time.Duration // when the xds-servers were asked about gateway-3, ago; 0: never
		serves    string        // a gateway that has a tunnel
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
		"it is assigned to this gateway, which has just started": {
			me: "gateway-0", perTunnel: 2, absent: forwardAfter, want: "to:gateway-3",
		},
		"it is assigned to this gateway, and there may be tunnels that are not recorded": {
			me: "gateway-0", perTunnel: 2, began: time.Hour, absent: forwardAfter, unsure: true,
		},
		"it is assigned to others, and there may be tunnels that are not recorded": {
			me: "gateway-1", perTunnel: 2, began: time.Hour, absent: time.Second, unsure: true,
			want: "to:gateway-0,gateway-3",
		},
		"it is unreachable": {
			me: "gateway-0", perTunnel: 2, began: time.Hour, absent: 2 * unreachableAfter, asked: unreachableAfter,
			want: unreachableForm,
		},
		"it is absent, and another gateway has a tunnel": {
			me: "gateway-0", perTunnel: 2, began: time.Hour, absent: 2 * unreachableAfter, asked: unreachableAfter,
			serves: "gateway-3", want: "to:gateway-3",
		},
		"it is absent, and a gateway to which it is not assigned has a tunnel": {
			me: "gateway-0", perTunnel: 2, began: time.Hour, absent: 2 * unreachableAfter, asked: unreachableAfter,
			serves: "gateway-2", want: "to:gateway-3",
		},
		"the other gateway may have got a tunnel since it was asked": {
			me: "gateway-0", perTunnel: 2, began: time.Hour, absent: 2 * unreachableAfter, asked: unreachableAfter + 1,
			want: "to:gateway-3",
		},
		"no xds-server has ever answered": {
			me: "gateway-0", perTunnel: 2, began: time.Hour, absent: time.Hour, want: "to:gateway-3",
		},
		"no xds-server has answered, and there is no other gateway": {
			me: "gateway-0", perTunnel: 2, alone: true, began: time.Hour, absent: unreachableAfter, want: unreachableForm,
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
			k := newReachability(r, nil, envoyadmin.Client{}, unmeasured(), slog.New(slog.DiscardHandler))
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
			k.others = map[string]other{}
			if tc.asked > 0 {
				k.others["gateway-3"] = other{asked: now.Add(-tc.asked)}
			}
			if tc.serves != "" {
				k.others[tc.serves] = other{asked: k.others[tc.serves].asked, ids: map[string]bool{id: true}}
			}
			k.decide(now, !tc.unsure)
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

// TestAGatewayThatEndsGetsNoNewClients: they would be disconnected with it, although another gateway has the tunnel
// too.
func TestAGatewayThatEndsGetsNoNewClients(t *testing.T) {
	id := idOf(four, four[:1], []model.Gateway{four[0], four[3]}, []model.Gateway{four[0], four[2], four[3]})
	for what, tc := range map[string]struct {
		perTunnel int
		leaving   []int
		want      string
	}{
		"none ends":           {perTunnel: 2, want: "to:gateway-0,gateway-3"},
		"one ends":            {perTunnel: 2, leaving: []int{3}, want: "to:gateway-0,gateway-2"},
		"all end":             {perTunnel: 2, leaving: []int{0, 3}, want: "to:gateway-0,gateway-2,gateway-3"},
		"the only one ends":   {perTunnel: 1, leaving: []int{0}, want: "to:gateway-0,gateway-3"},
		"one without it does": {perTunnel: 2, leaving: []int{2}, want: "to:gateway-0,gateway-3"},
	} {
		gateways := slices.Clone(four)
		for _, i := range tc.leaving {
			gateways[i].Leaving = true
		}
		f := forwarding{me: "gateway-1", domain: "tunnels.example.com"}
		f.set(fleet{gateways, tc.perTunnel})
		if got := f.route(f.domain.TunnelID(id)).form; got != tc.want {
			t.Errorf("%s: got %q, want %q", what, got, tc.want)
		}
	}
}

// TestManyAbsentIDsAreForwardedOverTime: the edges of a whole fleet dial again after a restart, and each change costs
// Envoy time.
func TestManyAbsentIDsAreForwardedOverTime(t *testing.T) {
	const domain, ids = model.TunnelDomain("tunnels.example.com"), 3 * forwardChanges
	r, err := xdsproxy.New(t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	k, now := newReachability(r, nil, envoyadmin.Client{}, unmeasured(), slog.New(slog.DiscardHandler)), time.Now()
	k.forwards.me, k.forwards.domain, k.began = "gateway-0", domain, now
	k.forwards.set(fleet{four[:2], 2})
	for range ids {
		id := model.NewID()
		k.known[id+".prod"], k.absent[domain.TunnelID(id)] = clusterName{id: domain.TunnelID(id)}, now.Add(-forwardAfter)
	}
	forwarded := func() (n int) {
		for name := range k.known {
			if k.Form(name) != "" {
				n++
			}
		}
		return n
	}
	for second := range 4 {
		for part := range 10 {
			k.decide(now.Add(time.Duration(second)*time.Second+time.Duration(part)*time.Second/10), true)
		}
		if n, most := forwarded(), forwardChanges*(second+2); n < min(ids, most-forwardChanges) || n > most {
			t.Errorf("after %d s, %d of %d are forwarded", second+1, n, ids)
		}
	}
	if n := forwarded(); n != ids {
		t.Errorf("at last, %d of %d are forwarded", n, ids)
	}
}

// TestForwardingIsRestored has what an earlier agent left: a running Envoy keeps forwarding.
func TestForwardingIsRestored(t *testing.T) {
	k := &reachability{forms: map[string]string{}}
	k.forwards.me, k.forwards.domain = "gateway-1", "tunnels.example.com"
	k.forwards.set(fleet{four[:2], 1})
	here, there := idOf(four[:2], four[1:2]), idOf(four[:2], four[:1])
	k.known = map[string]clusterName{
		"here.prod":  {id: k.forwards.domain.TunnelID(here)},
		"there.prod": {id: k.forwards.domain.TunnelID(there)},
	}
	k.restoreForms()
	if k.Form("here.prod") != "" || k.Form("there.prod") != "to:gateway-0" {
		t.Errorf("the forms are %v", k.forms)
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
