package envoy_test

import (
	"slices"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestReferences(t *testing.T) {
	inst := model.Installation{
		Domain: "tunnels.example.com",
		Gateways: []model.Gateway{
			{Name: "gateway-0", Peer: model.Endpoint{Host: "192.0.2.10", Port: 443}},
			{Name: "gateway-1", Peer: model.Endpoint{Host: "192.0.2.11", Port: 443}},
		},
	}
	wc := model.WorkloadCluster{ID: "aaaaaaaaaaaaaaaaaaaa", Hostname: "c1.prod.tunnels.example.com"}
	gateway := envoy.GatewayListeners(inst, "gateway-0", envoy.GatewayBind{}, model.Denied{})
	edge := envoy.EdgeListeners(inst, wc, "edge-a", envoy.EdgeDial{})
	tests := map[string]struct {
		in   proto.Message
		want []string
	}{
		"a gateway's public listener names the control channel, the other replicas and the agent": {
			in:   gateway[0],
			want: []string{"agent", "control_channel", "peer_gateway-1"},
		},
		"its apiserver listener has no default route": {
			in:   gateway[1],
			want: []string{"no_such_tunnel"},
		},
		"its connect listener names nothing": {in: gateway[2]},
		"an edge's listener dials its gateway and serves its apiserver": {
			in:   edge[1],
			want: []string{"agent", "apiserver_edge-a", "gateway-1_edge-a"},
		},
		"a tunnel gets its certificates from the agent": {
			in:   envoy.TunnelClusters(inst, wc)[0],
			want: []string{"agent"},
		},
		"a bootstrap names the agent": {
			in:   envoy.EdgeBootstrap(envoy.BootstrapConfig{}),
			want: []string{"agent"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := envoy.References(tc.in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestEveryBootstrapHasTheStaticClusters(t *testing.T) {
	for name, b := range map[string]*bootstrapv3.Bootstrap{
		"gateway": envoy.GatewayBootstrap(envoy.BootstrapConfig{}),
		"edge":    envoy.EdgeBootstrap(envoy.BootstrapConfig{}),
	} {
		var got []string
		for _, c := range b.GetStaticResources().GetClusters() {
			got = append(got, c.GetName())
		}
		if !slices.Equal(got, envoy.StaticClusters()) {
			t.Errorf("%s: got %v, want %v", name, got, envoy.StaticClusters())
		}
	}
}

// checkReferences fails the test if a bootstrap without dynamic resources refers to a missing Envoy cluster.
func checkReferences(t *testing.T, name string, b *bootstrapv3.Bootstrap) {
	t.Helper()
	var have []string
	for _, c := range b.GetStaticResources().GetClusters() {
		have = append(have, c.GetName())
	}
	refers, err := envoy.References(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range refers {
		if !slices.Contains(have, r) {
			t.Errorf("%s refers to Envoy cluster %s, which it has not", name, r)
		}
	}
}
