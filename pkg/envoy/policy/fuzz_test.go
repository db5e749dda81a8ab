package policy_test

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/policy"
	"github.com/fairlead/fairlead/pkg/model"
)

// FuzzPolicy checks arbitrary resources of a compromised xds-server: Check returns, and never panics.
func FuzzPolicy(f *testing.F) {
	id := "aaaaaaaaaaaaaaaaaaaa"
	subject := model.Subject{Role: model.RoleEdge, Node: "edge-1", ID: id}
	allowed := policy.Of(policy.Scope{Domain: domain, Subject: subject})
	wc := model.WorkloadCluster{ID: id, APIServer: model.Endpoint{Host: "127.0.0.1", Port: 6443}}
	inst := model.Installation{
		Domain:   domain,
		Public:   model.Endpoint{Host: "gw.example.com", Port: 443},
		Gateways: []model.Gateway{{Name: "gateway-0"}},
	}
	add := func(r proto.Message) {
		packed, err := anypb.New(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(packed.GetTypeUrl(), packed.GetValue())
	}
	for _, r := range envoy.EdgeClusters(inst, wc, "edge-1", envoy.EdgeDial{}) {
		add(r)
	}
	for _, r := range envoy.EdgeListeners(inst, wc, "edge-1", envoy.EdgeDial{}) {
		add(r)
	}
	f.Add("type.googleapis.com/google.protobuf.Struct", []byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, url string, value []byte) {
		first, second := allowed.Check(
			&anypb.Any{TypeUrl: url, Value: value},
		), allowed.Check(
			&anypb.Any{TypeUrl: url, Value: value},
		)
		if (first == nil) != (second == nil) {
			t.Errorf("checked once: %v, checked twice: %v", first, second)
		}
	})
}
