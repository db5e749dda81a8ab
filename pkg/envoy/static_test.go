package envoy_test

import (
	"slices"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/references"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestEveryBootstrapHasTheStaticClusters(t *testing.T) {
	for role, b := range map[model.Role]*bootstrapv3.Bootstrap{
		model.RoleGateway: envoy.GatewayBootstrap(envoy.BootstrapConfig{}),
		model.RoleEdge:    envoy.EdgeBootstrap(envoy.BootstrapConfig{}),
	} {
		var got []string
		for _, c := range b.GetStaticResources().GetClusters() {
			got = append(got, c.GetName())
		}
		if want := envoy.StaticClusters(role); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", role, got, want)
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
	refers, err := references.Of(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range refers {
		if !slices.Contains(have, r) {
			t.Errorf("%s refers to Envoy cluster %s, which it has not", name, r)
		}
	}
}
