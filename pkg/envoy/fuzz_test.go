package envoy_test

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/policy"
	"github.com/fairlead/fairlead/pkg/model"
)

// dialNode returns a seed: an encoded node with this metadata.
func dialNode(f *testing.F, metadata map[string]any) []byte {
	f.Helper()
	m, err := structpb.NewStruct(map[string]any{"fairlead": metadata})
	if err != nil {
		f.Fatal(err)
	}
	data, err := proto.Marshal(&corev3.Node{Id: "CN=edge-1", Metadata: m})
	if err != nil {
		f.Fatal(err)
	}
	return data
}

// FuzzEdgeDial parses arbitrary metadata of an edge. An accepted result is small, is parsed again unchanged, and leads
// to resources that the agent of that edge accepts: so within the policy of any edge.
func FuzzEdgeDial(f *testing.F) {
	f.Add(dialNode(f, nil))
	f.Add(
		dialNode(
			f,
			map[string]any{
				"near":       true,
				"gateways":   []any{"gw.example.com:443", "[fd00::1]:8443"},
				"apiservers": []any{"127.0.0.1:6443", "a.b:1", "[::1]:2"},
			},
		),
	)
	f.Add(
		dialNode(
			f, map[string]any{"gateways": []any{"[fe80::1%eth0]:443"}, "apiservers": []any{"10.0.0.1:6443", "10.0.0.1:6443"}},
		),
	)
	f.Add(dialNode(f, map[string]any{"gateways": "unix:///admin.sock", "apiservers": []any{nil, 1, "/run/agent.sock"}}))
	id := "aaaaaaaaaaaaaaaaaaaa"
	wc := model.WorkloadCluster{
		Key:       model.Key{Namespace: "ns", Name: "c"},
		ID:        id,
		APIServer: model.Endpoint{Host: "127.0.0.1", Port: 6443},
	}
	inst := model.Installation{
		Domain: domain, Public: model.Endpoint{Host: "gw.example.com", Port: 443}, Control: model.Endpoint{
			Host: "xds",
			Port: 18000,
		},
		Gateways: []model.Gateway{{Name: "gateway-0"}},
	}
	allowed := policy.Of(
		policy.Scope{Domain: domain, Subject: model.Subject{Role: model.RoleEdge, Node: "edge-1", ID: id}},
	)
	f.Fuzz(func(t *testing.T, data []byte) {
		node := &corev3.Node{}
		if proto.Unmarshal(data, node) != nil {
			return
		}
		dial, err := envoy.ParseEdgeDial(node)
		if err != nil {
			if !cmp.Equal(dial, envoy.EdgeDial{}) {
				t.Errorf("an error and %v", dial)
			}
			return
		}
		if len(dial.Gateways) > 16 || len(dial.APIServers) > 16 {
			t.Fatalf("%d gateways, %d apiservers", len(dial.Gateways), len(dial.APIServers))
		}
		again, err := envoy.ParseEdgeDial(&corev3.Node{Metadata: dial.Metadata()})
		if diff := cmp.Diff(dial, again); err != nil || diff != "" {
			t.Errorf("read again: %v %s", err, diff)
		}
		for _, r := range envoy.EdgeClusters(inst, wc, "edge-1", dial) {
			checkAllowed(t, allowed, r)
		}
		for _, r := range envoy.EdgeListeners(inst, wc, "edge-1", dial) {
			checkAllowed(t, allowed, r)
		}
	})
}

// checkAllowed fails the test if a resource is invalid, or if an agent would reject it.
func checkAllowed(t *testing.T, allowed *policy.Policy, r proto.Message) {
	t.Helper()
	if v, ok := r.(interface{ ValidateAll() error }); ok {
		if err := v.ValidateAll(); err != nil {
			t.Errorf("Envoy would refuse it: %v", err)
		}
	}
	packed, err := anypb.New(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := allowed.Check(packed); err != nil {
		t.Error(err)
	}
}

// FuzzGatewayBind parses arbitrary metadata of a gateway.
func FuzzGatewayBind(f *testing.F) {
	f.Add(dialNode(f, nil))
	good := envoy.GatewayBind{
		Public:    model.Endpoint{Host: "0.0.0.0", Port: 443},
		APIServer: model.Endpoint{Host: "::", Port: 6443},
		Connect:   model.Endpoint{Host: "10.0.0.1", Port: 3128},
	}
	data, err := proto.Marshal(&corev3.Node{Metadata: good.Metadata()})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		node := &corev3.Node{}
		if proto.Unmarshal(data, node) != nil {
			return
		}
		bind, err := envoy.ParseGatewayBind(node)
		if err != nil {
			return
		}
		again, err := envoy.ParseGatewayBind(&corev3.Node{Metadata: bind.Metadata()})
		if diff := cmp.Diff(bind, again); err != nil || diff != "" {
			t.Errorf("read again: %v %s", err, diff)
		}
	})
}
