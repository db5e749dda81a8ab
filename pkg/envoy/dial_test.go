package envoy_test

import (
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/sds"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestEdgeDialGoesThroughTheNode(t *testing.T) {
	tests := map[string]envoy.EdgeDial{
		"nothing": {},
		"gateways": {
			Gateways: []model.Endpoint{{Host: "gw.example.com", Port: 443}, {Host: "fd00::1", Port: 8443}},
		},
		"a local apiserver": {APIServers: []model.Endpoint{{Host: "127.0.0.1", Port: 6443}}},
		"near":              {Near: true},
		"an edge of a network": {
			Listen: []model.Endpoint{{Host: "10.1.0.1", Port: 6443}, {Host: "fd00::1", Port: 443}},
		},
		"an apiserver": {Socket: "/run/fairlead/egress.sock"},
		"both, out of order": {
			Gateways:   []model.Endpoint{{Host: "b", Port: 2}, {Host: "a", Port: 1}},
			APIServers: []model.Endpoint{{Host: "d", Port: 2}, {Host: "c", Port: 1}},
		},
	}
	for name, want := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := envoy.ParseEdgeDial(&corev3.Node{Metadata: want.Metadata()})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	if got, err := envoy.ParseEdgeDial(nil); err != nil || !cmp.Equal(got, envoy.EdgeDial{}) {
		t.Errorf("without a node: got %v, %v, want nothing", got, err)
	}
}

func TestParseEdgeDialRejects(t *testing.T) {
	tests := map[string]struct {
		in      any
		wantErr string
	}{
		"an address without a port": {in: map[string]any{"gateways": []any{"10.0.0.1"}}, wantErr: "gateways"},
		"a number":                  {in: map[string]any{"apiservers": []any{6443}}, wantErr: "apiservers"},
		"a Unix socket":             {in: map[string]any{"apiservers": []any{"/run/api.sock"}}, wantErr: "apiservers"},
		"a name to listen at":       {in: map[string]any{"listen": []any{"localhost:6443"}}, wantErr: "listen"},
		"a relative socket":         {in: map[string]any{"socket": "egress.sock"}, wantErr: "socket"},
		"a socket out of its path":  {in: map[string]any{"socket": "/run/a/../../etc/x"}, wantErr: "socket"},
		"a socket without end":      {in: map[string]any{"socket": "/" + strings.Repeat("a", 107)}, wantErr: "socket"},
		"far too many": {
			in:      map[string]any{"gateways": slices.Repeat([]any{"10.0.0.1:443"}, 17)},
			wantErr: "at most 16",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			metadata, err := structpb.NewStruct(map[string]any{"fairlead": tc.in})
			if err != nil {
				t.Fatal(err)
			}
			_, err = envoy.ParseEdgeDial(&corev3.Node{Metadata: metadata})
			checkError(t, err, tc.wantErr)
		})
	}
}

func TestAPIServersAreInTheOrderOfPreference(t *testing.T) {
	local, first, other := model.Endpoint{
		Host: "127.0.0.1",
		Port: 6443,
	}, model.Endpoint{
		Host: "10.0.0.1",
		Port: 6443,
	}, model.Endpoint{
		Host: "api.example.com",
		Port: 443,
	}
	wc := model.WorkloadCluster{ID: model.NewID(), APIServer: first, Others: []model.Endpoint{other, first, local}}
	inst := model.Installation{Domain: domain, Public: anyAddress, Gateways: []model.Gateway{{Name: "gateway-0"}}}
	tests := map[string]struct {
		dial envoy.EdgeDial
		want []model.Endpoint
	}{
		"addresses of the Tunnel": {want: []model.Endpoint{first, other, local}},
		"a local one first, and only there": {
			dial: envoy.EdgeDial{APIServers: []model.Endpoint{local}},
			want: []model.Endpoint{local, first, other},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			clusters := envoy.EdgeClusters(inst, wc, "edge-a", tc.dial)
			if diff := cmp.Diff(tc.want, envoy.APIServers(packed(t, clusters[0]))); diff != "" {
				t.Error(diff)
			}
			if got := envoy.APIServers(packed(t, clusters[1])); got != nil {
				t.Errorf("a gateway is taken for the apiservers %v", got)
			}
		})
	}
	if got := envoy.APIServers(packed(t, envoy.EdgeListeners(inst, wc, "edge-a", envoy.EdgeDial{})[0])); got != nil {
		t.Errorf("a listener is taken for the apiservers %v", got)
	}
}

func TestTwoEdgesHaveNoNameInCommon(t *testing.T) {
	inst := model.Installation{
		Domain:   domain,
		Public:   anyAddress,
		Gateways: []model.Gateway{{Name: "gateway-0"}, {Name: "gateway-1"}},
	}
	wc := model.WorkloadCluster{ID: model.NewID(), APIServer: anyAddress}
	seen := map[string]bool{}
	for _, node := range []string{"edge-a", "edge-b"} {
		identity, trust := sds.Names(model.Subject{Role: model.RoleEdge, Node: node, ID: wc.ID})
		names := []string{identity, trust}
		for _, l := range envoy.EdgeListeners(inst, wc, node, envoy.EdgeDial{}) {
			names = append(names, l.GetName())
		}
		for _, c := range envoy.EdgeClusters(inst, wc, node, envoy.EdgeDial{}) {
			names = append(names, c.GetName())
		}
		for _, name := range names {
			if seen[name] || !strings.Contains(name, node) {
				t.Errorf("%s is not of %s alone", name, node)
			}
			seen[name] = true
		}
	}
}

func packed(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	resource, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return resource
}
