package envoy_test

import (
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/golden"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/source"
)

const (
	modelFile     = "model.yaml"
	responderFile = "responder.yaml"
	initiatorFile = "initiator.yaml"
)

func TestGolden(t *testing.T) {
	for _, c := range golden.Cases(t, "testdata/*.txtar", modelFile) {
		t.Run(c.Name, func(t *testing.T) {
			fleet := parse(t, c.Input())
			c.Check(t,
				txtar.File{Name: responderFile, Data: marshal(t, responder(gatewayOf(fleet), fleet))},
				txtar.File{Name: initiatorFile, Data: marshal(t, initiator(edgeOf(fleet), fleet))})
		})
	}
}

func TestValidate(t *testing.T) {
	envoytest.Path(t)
	for _, c := range golden.Cases(t, "testdata/*.txtar", modelFile) {
		for _, section := range []string{responderFile, initiatorFile} {
			t.Run(c.Name+"/"+section, func(t *testing.T) {
				t.Parallel()
				envoytest.Validate(t, c.Section(t, section))
			})
		}
	}
}

func TestEveryReferenceOfAGoldenExists(t *testing.T) {
	for _, c := range golden.Cases(t, "testdata/*.txtar", modelFile) {
		fleet := parse(t, c.Input())
		for name, b := range map[string]*bootstrapv3.Bootstrap{
			responderFile: responder(gatewayOf(fleet), fleet),
			initiatorFile: initiator(edgeOf(fleet), fleet),
		} {
			checkReferences(t, c.Name+"/"+name, b)
		}
	}
}

// parse reads model.yaml as production reads it.
func parse(t *testing.T, data []byte) model.Fleet {
	t.Helper()
	fleet, err := source.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return fleet
}

// gatewayOf is the last gateway of a fleet, edgeOf an edge of its first workload cluster.
func gatewayOf(f model.Fleet) envoy.GatewayConfig {
	inst := f.Installation
	return envoy.GatewayConfig{Domain: inst.Domain, Name: inst.Gateways[len(inst.Gateways)-1].Name, XDSServer: inst.Control, Bind: envoy.GatewayBind{
		Public:    model.Endpoint{Host: "0.0.0.0", Port: 443},
		APIServer: model.Endpoint{Host: "0.0.0.0", Port: 6443},
		Connect:   model.Endpoint{Host: "0.0.0.0", Port: 3128},
	}}
}

func edgeOf(f model.Fleet) envoy.EdgeConfig {
	return envoy.EdgeConfig{Domain: f.Installation.Domain, Node: "edge-example", ID: f.Clusters[0].ID, Gateway: f.Installation.Public}
}

// responder is the whole configuration of a gateway, in one bootstrap.
func responder(c envoy.GatewayConfig, f model.Fleet) *bootstrapv3.Bootstrap {
	clusters := envoy.GatewayClusters(f.Installation)
	for _, wc := range f.Clusters {
		clusters = append(clusters, envoy.TunnelClusters(f.Installation, wc)...)
	}
	return envoy.Static(envoy.GatewayBootstrap(c), envoy.GatewayListeners(f.Installation, c.Name, c.Bind), clusters)
}

// initiator is the whole configuration of an edge of the first workload cluster, in one bootstrap.
func initiator(c envoy.EdgeConfig, f model.Fleet) *bootstrapv3.Bootstrap {
	wc := f.Clusters[0]
	return envoy.Static(envoy.EdgeBootstrap(c), envoy.EdgeListeners(f.Installation, wc, c.Node), envoy.EdgeClusters(f.Installation, wc))
}

func endpoint(t *testing.T, s string) model.Endpoint {
	t.Helper()
	e, err := model.ParseEndpoint(s)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func marshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	data, err := envoy.MarshalYAML(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
