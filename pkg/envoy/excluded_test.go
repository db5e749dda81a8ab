package envoy_test

import (
	"net/netip"
	"slices"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/network"
	"github.com/fairlead/fairlead/pkg/model"
)

// besideGateways is an installation whose gateways have addresses in the network, by a pattern.
func besideGateways(gateways ...string) model.Installation {
	inst := model.Installation{
		Domain: "tunnels.example.com", Public: model.Endpoint{Host: "10.1.0.9", Port: 443},
		ReplicaAddress: "10.1.0.1{i}:443",
	}
	for _, name := range gateways {
		at, err := inst.ReplicaAddress.Of(name)
		if err != nil {
			panic(err)
		}
		inst.Gateways = append(inst.Gateways, model.Gateway{
			Name: name, Public: at, Peer: model.Endpoint{Host: "10.1.0.8", Port: 8443},
		})
	}
	return inst
}

func siteOf(targets ...string) model.WorkloadCluster {
	wc := model.WorkloadCluster{
		Key: model.Key{Namespace: "prod", Name: "site.network"}, ID: "aaaaaaaaaaaaaaaaaaaa",
		Network: &model.Network{
			Name: "site", EgressID: "eeeeeeeeeeeeeeeeeeee", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")},
		},
	}
	for _, host := range targets {
		wc.Network.Targets = append(wc.Network.Targets, model.Target{
			Name: "t.site.c1.prod.tunnels.example.com", Address: model.Endpoint{Host: host, Port: 443},
		})
	}
	return wc
}

// TestAnEdgeNeverDialsAGateway neither as a destination of apiservers nor as a target: not at the address of all
// gateways, of each one, for the other gateways, or of the edge's own flags.
func TestAnEdgeNeverDialsAGateway(t *testing.T) {
	inst := besideGateways("gateway-0", "gateway-1")
	dial := envoy.EdgeDial{Version: envoy.Current, Gateways: []model.Endpoint{{Host: "10.1.0.7", Port: 443}}}
	gateways := []string{"10.1.0.7", "10.1.0.8", "10.1.0.9", "10.1.0.10", "10.1.0.11", "10.1.0.19", "10.1.0.110"}
	for name, wc := range map[string]model.WorkloadCluster{
		"without targets": siteOf(), "a target by name": siteOf("vcenter.example.com"),
		"targets by address": siteOf(append([]string{"10.1.0.5"}, gateways...)...),
	} {
		all := []proto.Message{}
		for _, l := range envoy.EdgeListeners(inst, wc, "edge-a", dial) {
			all = append(all, l)
		}
		for _, c := range envoy.EdgeClusters(inst, wc, "edge-a", dial) {
			all = append(all, c)
		}
		restricted := 0
		for _, resource := range all {
			dialled, err := network.Dials(packed(t, resource))
			if err != nil {
				t.Fatal(err)
			}
			has := func(text string) bool {
				address := netip.MustParseAddr(text)
				return slices.ContainsFunc(dialled, func(p netip.Prefix) bool { return p.Contains(address) })
			}
			for _, gateway := range gateways {
				if has(gateway) {
					t.Errorf("%s: %v dials %s", name, resource.ProtoReflect().Descriptor().Name(), gateway)
				}
			}
			if len(dialled) > 0 {
				restricted++
				if !has("10.1.0.5") {
					t.Errorf("%s: nothing dials a machine beside the gateways", name)
				}
			}
		}
		if restricted == 0 {
			t.Errorf("%s: no resource dials something", name)
		}
	}
}

// TestScalingDoesNotChangeTheListenersOfOtherGateways: a listener that changes loses its reverse tunnels.
func TestScalingDoesNotChangeTheListenersOfOtherGateways(t *testing.T) {
	dial := envoy.EdgeDial{Version: envoy.Current}
	listener := func(gateways ...string) *listenerv3.Listener {
		return envoy.EdgeListeners(besideGateways(gateways...), siteOf("vcenter.example.com"), "edge-a", dial)[0]
	}
	if !proto.Equal(listener("gateway-0"), listener("gateway-0", "gateway-1", "gateway-2")) {
		t.Error("the listener of gateway-0 differs with three gateways")
	}
}
