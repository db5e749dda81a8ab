package policy_test

import (
	"net/netip"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/policy"
	"github.com/fairlead/fairlead/pkg/model"
)

const egressID = "eeeeeeeeeeeeeeeeeeee"

var (
	ownEgress = model.Subject{Role: model.RoleEgress, Node: "egress-a", ID: egressID}
	// local are the addresses for which the owner of an edge and of an apiserver asked.
	local = envoy.EdgeDial{
		Version: envoy.Current, Socket: "/run/fairlead/egress.sock",
		Listen: []model.Endpoint{{Host: "10.1.0.6", Port: 6443}, {Host: "::", Port: 443}},
	}
)

// ownNetwork returns a network with everything that one may have.
func ownNetwork() model.WorkloadCluster {
	return model.WorkloadCluster{
		Key: model.Key{Namespace: "prod", Name: "c1.site.network"}, ID: ownEdge.ID,
		Network: &model.Network{
			Name: "site", Cluster: model.Key{Namespace: "prod", Name: "c1"}, EgressID: egressID,
			CIDRs:    []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/64")},
			Suffixes: []string{"svc.a1.test", "test"},
			Ports:    []model.PortRange{{First: 443, Last: 443}, {First: 1000, Last: 2000}},
			Targets: []model.Target{
				{Name: "vcenter.site.c1.prod.tunnels.example.com", Address: model.Endpoint{Host: "10.9.0.1", Port: 443}},
				{Name: "bmc.site.c1.prod.tunnels.example.com", Address: model.Endpoint{Host: "fd00:9::1", Port: 443}},
			},
			APIServers: []model.Endpoint{{Host: "192.0.2.30", Port: 6443}},
		},
	}
}

// networks returns networks of each form.
func networks() []model.WorkloadCluster {
	everything, byName, forwarded := ownNetwork(), ownNetwork(), ownNetwork()
	everything.Network.CIDRs = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	everything.Network.Ports, everything.Network.Targets, everything.Network.Suffixes = nil, nil, nil
	byName.Network.Targets[0].Address.Host = "bmc.example.com"
	byName.Limits.Bandwidth = 1 << 20
	forwarded.Network.EgressID, forwarded.Network.APIServers = "", nil
	forwarded.Network.APIServerID, forwarded.Network.Targets = ownCluster().ID, nil
	return []model.WorkloadCluster{ownNetwork(), everything, byName, forwarded}
}

func networkPolicy() *policy.Policy {
	return policy.Of(policy.Scope{Domain: domain, Subject: ownEdge, Dial: local})
}

func egressPolicy() *policy.Policy {
	return policy.Of(policy.Scope{Domain: domain, Subject: ownEgress, Dial: local})
}

func TestAllRenderedResourcesOfNetworksAreAllowed(t *testing.T) {
	for _, wc := range networks() {
		for _, log := range []model.AccessLog{"", model.AccessLogFailed, model.AccessLogAll} {
			inst := ownInstallation()
			inst.AccessLog = log
			allows(t, networkPolicy(), messages(envoy.EdgeListeners(inst, wc, ownEdge.Node, local))...)
			allows(t, networkPolicy(), messages(envoy.EdgeClusters(inst, wc, ownEdge.Node, local))...)
			allows(t, gatewayPolicy(everywhere), messages(envoy.TunnelClusters(inst, wc))...)
			allows(t, gatewayPolicy(everywhere), envoy.NetworkScope(ownInstallation(), egressID, networks()))
			apiservers := model.WorkloadCluster{ID: egressID, Egress: true}
			allows(t, egressPolicy(), messages(envoy.EdgeListeners(inst, apiservers, ownEgress.Node, local))...)
			allows(t, egressPolicy(), messages(envoy.EdgeClusters(inst, apiservers, ownEgress.Node, local))...)
			if len(envoy.TunnelClusters(inst, apiservers)) > 0 {
				t.Error("gateways dial the Envoy beside an apiserver")
			}
		}
	}
}

func allows(t *testing.T, p *policy.Policy, all ...proto.Message) {
	t.Helper()
	if len(all) == 0 {
		t.Error("nothing is rendered")
	}
	for _, m := range all {
		if err := p.Check(wrapped(t, m)); err != nil {
			t.Error(err)
		}
	}
}
