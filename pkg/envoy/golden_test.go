package envoy_test

import (
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
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
				txtar.File{Name: responderFile, Data: marshal(t, responder(fleet))},
				txtar.File{Name: initiatorFile, Data: marshal(t, initiator(fleet))})
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
			responderFile: responder(fleet),
			initiatorFile: initiator(fleet),
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

// responder is the whole configuration of the last gateway of a fleet, in one bootstrap.
func responder(f model.Fleet) *bootstrapv3.Bootstrap {
	name := f.Installation.Gateways[len(f.Installation.Gateways)-1].Name
	bind := envoy.GatewayBind{
		Public:    model.Endpoint{Host: "0.0.0.0", Port: 443},
		APIServer: model.Endpoint{Host: "0.0.0.0", Port: 6443},
		Connect:   model.Endpoint{Host: "0.0.0.0", Port: 3128},
	}
	var denied model.Denied
	for _, wc := range f.Clusters {
		denied.Edges = append(denied.Edges, wc.RevokedEdges()...)
	}
	return envoy.Static(envoy.GatewayBootstrap(envoy.BootstrapConfig{}), envoy.GatewayListeners(f.Installation, name, bind, denied), gatewayClusters(f))
}

// initiator is the whole configuration of an edge of the first workload cluster, in one bootstrap.
func initiator(f model.Fleet) *bootstrapv3.Bootstrap {
	return edgeConfig(f.Installation, f.Clusters[0], "edge-example", envoy.EdgeDial{})
}

// gatewayClusters are all Envoy clusters of a gateway.
func gatewayClusters(f model.Fleet) []*clusterv3.Cluster {
	clusters := envoy.GatewayClusters(f.Installation)
	for _, wc := range f.Clusters {
		clusters = append(clusters, envoy.TunnelClusters(f.Installation, wc)...)
	}
	return clusters
}

func edgeConfig(inst model.Installation, wc model.WorkloadCluster, node string, dial envoy.EdgeDial) *bootstrapv3.Bootstrap {
	return envoy.Static(envoy.EdgeBootstrap(envoy.BootstrapConfig{}), envoy.EdgeListeners(inst, wc, node, dial), envoy.EdgeClusters(inst, wc, node, dial))
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
