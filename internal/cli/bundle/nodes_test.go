package bundle

import (
	"slices"
	"testing"

	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestABundleHasTheEdgesOfItsNamespace(t *testing.T) {
	nodes := []collect.Node{
		{Name: "gateway-0", Role: model.RoleGateway}, {Name: "edge-a", Role: model.RoleEdge, ID: "other"},
		{Name: "edge-b", Role: model.RoleEdge, ID: "own"}, {Name: "egress-a", Role: model.RoleEgress, ID: "other"},
		{Name: "gateway-0", Role: model.RoleGateway, Server: "b"},
	}
	for name, tc := range map[string]struct {
		ids  map[string]bool
		want []string
	}{
		"all namespaces":              {nil, []string{"gateway-0", "edge-a", "edge-b", "egress-a"}},
		"one namespace":               {map[string]bool{"own": true}, []string{"gateway-0", "edge-b"}},
		"a namespace without tunnels": {map[string]bool{}, []string{"gateway-0"}},
	} {
		if got := namesOf(nodes, tc.ids); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
