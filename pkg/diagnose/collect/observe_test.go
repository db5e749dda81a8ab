package collect

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
)

// TestAnObservationIsCurrent: what is removed would be mistaken for live tunnels, or for edges of this workload
// cluster.
func TestAnObservationIsCurrent(t *testing.T) {
	f := Fleet{
		Gateways: []Gateway{{Name: "gateway-0", Connected: true}, {Name: "gateway-1"}},
		Edges:    []observed.Edge{{Node: "ours", ID: "c1"}, {Node: "another's", ID: "c2"}},
		Tunnels: []Tunnel{
			{Gateway: "gateway-0", Node: "ours"}, {Gateway: "gateway-1", Node: "ours"}, {Gateway: "gateway-9", Node: "ours"},
		},
		Unserved: []UnservedWorkers{{Gateway: "gateway-0", Node: "ours"}, {Gateway: "gateway-1", Node: "ours"}},
	}
	f.keep("c1")
	if len(f.Edges) != 1 || f.Edge("ours") == nil || f.Edge("another's") != nil {
		t.Errorf("edges: %+v", f.Edges)
	}
	if len(f.Tunnels) != 1 || len(f.TunnelsTo("gateway-0")) != 1 || len(f.TunnelsTo("gateway-1")) != 0 {
		t.Errorf("tunnels: %+v", f.Tunnels)
	}
	if len(f.Unserved) != 1 || f.Unserved[0].Gateway != "gateway-0" {
		t.Errorf("holes: %+v", f.Unserved)
	}
}

func TestResourcesOfGateways(t *testing.T) {
	const name = "c1.example.com"
	for sentence, tc := range map[string]struct {
		nodes []Node
		want  []Resource
	}{
		"the gateway accepted it": {
			[]Node{{Name: "gateway-0", Role: model.RoleGateway, Resources: []Resource{{Name: name, Status: Synced}}}},
			[]Resource{{Name: name, Status: Synced}},
		},
		"the gateway was not sent it": {
			[]Node{{Name: "gateway-0", Role: model.RoleGateway, Resources: []Resource{{Name: "other", Status: Synced}}}},
			[]Resource{{Name: name, Status: Missing}},
		},
		"the gateway has no xDS stream": {[]Node{{Name: "gateway-1", Role: model.RoleGateway}}, nil},
		"an edge has the gateway's name": {
			[]Node{{Name: "gateway-0", Role: model.RoleEdge, Resources: []Resource{{Name: name, Status: Synced}}}}, nil,
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := Fleet{Gateways: []Gateway{{Name: "gateway-0"}}}
			f.addResources(tc.nodes, []string{name})
			if diff := cmp.Diff(tc.want, f.Gateways[0].Resources); diff != "" {
				t.Error(diff)
			}
		})
	}
}
