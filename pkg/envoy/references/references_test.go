package references_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/references"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestOf(t *testing.T) {
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
		"its connect listener has the other one behind it": {in: gateway[2], want: []string{"clients/connect"}},
		"which names nothing":                              {in: gateway[3]},
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
			got, err := references.Of(tc.in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
