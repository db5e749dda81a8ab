// Package envoy_test keeps the example bootstraps of this folder as the agents write them.
package envoy_test

import (
	"os"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/golden"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/source"
)

func TestBootstrapsAreAsTheAgentsWriteThem(t *testing.T) {
	for path, b := range bootstraps(t) {
		made, err := envoy.MarshalYAML(b)
		if err != nil {
			t.Fatal(err)
		}
		golden.CheckFile(t, path, made)
	}
}

func TestEnvoyAcceptsTheBootstraps(t *testing.T) {
	for path := range bootstraps(t) {
		config, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		envoytest.Validate(t, config)
	}
}

// bootstraps are those of fleet.yaml, by file.
func bootstraps(t *testing.T) map[string]*bootstrapv3.Bootstrap {
	t.Helper()
	data, err := os.ReadFile("fleet.yaml")
	if err != nil {
		t.Fatal(err)
	}
	fleet, err := source.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	inst := fleet.Installation
	return map[string]*bootstrapv3.Bootstrap{
		"gateway.yaml": envoy.GatewayBootstrap(envoy.GatewayConfig{Domain: inst.Domain, Name: "gateway-0", XDSServer: inst.Control, Bind: envoy.GatewayBind{
			Public:    model.Endpoint{Host: "0.0.0.0", Port: 443},
			APIServer: model.Endpoint{Host: "0.0.0.0", Port: 6443},
			Connect:   model.Endpoint{Host: "0.0.0.0", Port: 3128},
		}}),
		"edge.yaml": envoy.EdgeBootstrap(envoy.EdgeConfig{Domain: inst.Domain, Node: "edge-example", ID: fleet.Clusters[0].ID, Gateway: inst.Public}),
	}
}
