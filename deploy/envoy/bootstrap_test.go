// Package envoy_test checks that the example bootstraps of this directory are as the agents write them.
package envoy_test

import (
	"os"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/golden"
	"github.com/fairlead/fairlead/pkg/envoy"
)

func TestBootstrapsAreAsTheAgentsWriteThem(t *testing.T) {
	for path, b := range bootstraps() {
		made, err := envoy.MarshalYAML(b)
		if err != nil {
			t.Fatal(err)
		}
		golden.CheckFile(t, path, made)
	}
}

func TestEnvoyAcceptsTheBootstraps(t *testing.T) {
	for path := range bootstraps() {
		config, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		envoytest.Validate(t, config)
	}
}

// bootstraps returns the bootstraps that agents write without any flag for them, by file.
func bootstraps() map[string]*bootstrapv3.Bootstrap {
	return map[string]*bootstrapv3.Bootstrap{
		"gateway.yaml": envoy.GatewayBootstrap(envoy.BootstrapConfig{}),
		"edge.yaml":    envoy.EdgeBootstrap(envoy.BootstrapConfig{}),
	}
}
