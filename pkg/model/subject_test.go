package model_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/pkg/model"
)

func TestSubjectsParseBack(t *testing.T) {
	for _, want := range []model.Subject{
		{Role: model.RoleEdge, Node: model.NewNodeName(), ID: model.NewID()},
		{Role: model.RoleGateway, Node: "gateway-3"},
		model.ControlSubject(),
	} {
		got, err := domain.ParseSubject(want.Node, domain.DNSNames(want))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
}

func TestParseSubjectRejects(t *testing.T) {
	edge := domain.TunnelID(model.NewID())
	tests := map[string]struct {
		cn    string
		names []string
	}{
		"no name":                            {cn: "edge-a"},
		"a tunnel hostname":                  {cn: "edge-a", names: []string{"c1.prod.tunnels.example.com"}},
		"two tunnels":                        {cn: "edge-a", names: []string{edge, domain.TunnelID(model.NewID())}},
		"an edge that is also a gateway":     {cn: "edge-a", names: []string{edge, domain.Gateway()}},
		"an edge with a gateway's node name": {cn: "gateway-0", names: []string{edge}},
		"a gateway with another's name": {
			cn:    "gateway-1",
			names: []string{domain.GatewayReplica("gateway-0"), domain.Gateway()},
		},
		"a gateway without the name in the tunnel": {cn: "gateway-0", names: []string{domain.GatewayReplica("gateway-0")}},
		"another domain":           {cn: "control", names: []string{"control.example.com"}},
		"a node name with a colon": {cn: "edge:a", names: []string{edge}},
		"no common name":           {names: []string{edge}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := domain.ParseSubject(tc.cn, tc.names); err == nil {
				t.Errorf("got %v, want an error", got)
			}
		})
	}
}
