package envoy_test

import (
	"slices"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/references"
)

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
