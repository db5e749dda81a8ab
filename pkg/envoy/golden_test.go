package envoy_test

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

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
	scopeFile     = "scope.yaml"
)

// goldens returns fleets in the format of `fairlead render`, and the same fleets with options.
func goldens(t *testing.T) []golden.Case {
	t.Helper()
	return append(
		golden.Cases(t, "testdata/*.txtar", modelFile),
		golden.Cases(t, "testdata/options/*.txtar", modelFile)...)
}

func TestGolden(t *testing.T) {
	for _, c := range goldens(t) {
		t.Run(c.Name, func(t *testing.T) {
			in := parse(t, c.Input())
			files := append([]txtar.File{{Name: responderFile, Data: marshal(t, in.responder(t))}}, in.scope(t)...)
			c.Check(t, append(files, txtar.File{Name: initiatorFile, Data: marshal(t, in.initiator())})...)
		})
	}
}

func TestValidate(t *testing.T) {
	envoytest.Path(t)
	for _, c := range goldens(t) {
		for _, section := range []string{responderFile, initiatorFile} {
			t.Run(c.Name+"/"+section, func(t *testing.T) {
				t.Parallel()
				envoytest.Validate(t, c.Section(t, section))
			})
		}
	}
}

func TestEveryReferenceOfAGoldenExists(t *testing.T) {
	for _, c := range goldens(t) {
		in := parse(t, c.Input())
		for name, b := range map[string]*bootstrapv3.Bootstrap{
			responderFile: in.responder(t),
			initiatorFile: in.initiator(),
		} {
			checkReferences(t, c.Name+"/"+name, b)
		}
	}
}

// input is model.yaml: a fleet and, after ---, the flags of Fairlead's programs and the state that affect its
// resources.
type input struct {
	model.Fleet
	options
}

// options are the second document of model.yaml.
type options struct {
	AccessLog  model.AccessLog `json:"accessLog"`  // of xds-servers
	Handshakes int             `json:"handshakes"` // of xds-servers
	Lanes      int             `json:"lanes"`      // of xds-servers
	Statistics bool            `json:"statistics"` // of gateways
	Admission  bool            `json:"admission"`  // filters that the agent of a gateway adds to its public listener
	Dark       []string        `json:"dark"`       // tunnel hostnames without a reverse tunnel
	Current    bool            `json:"current"`    // the agents have the current version, and not the oldest
	Edge       struct {
		Near       bool     `json:"near"`
		Gateways   []string `json:"gateways"`
		APIServers []string `json:"apiServers"`
		Listen     []string `json:"listen"`
		Socket     string   `json:"socket"`
	} `json:"edge"`
	Network *networkOptions `json:"network"` // of the first workload cluster, which then is that network
	Egress  bool            `json:"egress"`  // the first workload cluster is the apiservers of a Cluster
	dial    envoy.EdgeDial
}

// networkOptions are a network.
type networkOptions struct {
	EgressID    string            `json:"egressID"`
	CIDRs       []string          `json:"cidrs"`
	Suffixes    []string          `json:"suffixes"`
	Ports       [][2]uint16       `json:"ports"`
	Targets     map[string]string `json:"targets"`
	APIServers  []string          `json:"apiServers"`
	APIServerID string            `json:"apiServerID"`
}

func (o networkOptions) parse(t *testing.T) *model.Network {
	t.Helper()
	n := &model.Network{
		Name: "site", Cluster: model.Key{Namespace: "prod", Name: "c1"}, EgressID: o.EgressID, Suffixes: o.Suffixes,
		APIServerID: o.APIServerID,
	}
	for _, cidr := range o.CIDRs {
		n.CIDRs = append(n.CIDRs, netip.MustParsePrefix(cidr))
	}
	for _, p := range o.Ports {
		n.Ports = append(n.Ports, model.PortRange{First: p[0], Last: p[1]})
	}
	for _, name := range slices.Sorted(maps.Keys(o.Targets)) {
		n.Targets = append(n.Targets, model.Target{Name: name, Address: endpoint(t, o.Targets[name])})
	}
	for _, at := range o.APIServers {
		n.APIServers = append(n.APIServers, endpoint(t, at))
	}
	return n
}

// scope returns the routes of the apiservers that use the network, if there is one.
func (in input) scope(t *testing.T) []txtar.File {
	t.Helper()
	n := in.Clusters[0].Network
	if n == nil || n.EgressID == "" {
		return nil
	}
	scope := envoy.NetworkScope(in.Installation, n.EgressID, in.Clusters)
	return []txtar.File{{Name: scopeFile, Data: marshal(t, scope)}}
}

// parse reads the fleet of model.yaml with production code.
func parse(t *testing.T, data []byte) input {
	t.Helper()
	first, second, options := strings.Cut(string(data), "---\n")
	fleet, err := source.Parse([]byte(first))
	if err != nil {
		t.Fatal(err)
	}
	in := input{Fleet: fleet}
	in.Current = !options // like `fairlead render`
	if err := yaml.UnmarshalStrict([]byte(second), &in.options); err != nil {
		t.Fatal(err)
	}
	in.Installation.AccessLog, in.Installation.Handshakes = in.AccessLog, in.Handshakes
	in.Installation.Lanes = in.Lanes
	in.dial = envoy.EdgeDial{Near: in.Edge.Near, Version: in.version()}
	for _, at := range in.Edge.Gateways {
		in.dial.Gateways = append(in.dial.Gateways, endpoint(t, at))
	}
	for _, at := range in.Edge.APIServers {
		in.dial.APIServers = append(in.dial.APIServers, endpoint(t, at))
	}
	for _, at := range in.Edge.Listen {
		in.dial.Listen = append(in.dial.Listen, endpoint(t, at))
	}
	in.dial.Socket = in.Edge.Socket
	if in.Network != nil {
		in.Clusters[0].Network = in.Network.parse(t)
	}
	in.Clusters[0].Egress = in.Egress
	return in
}

func (in input) version() envoy.Version {
	if in.Current {
		return envoy.Current
	}
	return envoy.Oldest
}

// responder returns the whole configuration of the last gateway of a fleet, in one bootstrap.
func (in input) responder(t *testing.T) *bootstrapv3.Bootstrap {
	t.Helper()
	name := in.Installation.Gateways[len(in.Installation.Gateways)-1].Name
	bind := envoy.GatewayBind{
		Public:    model.Endpoint{Host: "::", Port: 443},
		APIServer: model.Endpoint{Host: "::", Port: 6443},
		Connect:   model.Endpoint{Host: "::", Port: 3128},
		Version:   in.version(),
	}
	var denied model.Denied
	for _, wc := range in.Clusters {
		denied.Edges = append(denied.Edges, wc.RevokedEdges()...)
	}
	listeners, clusters := envoy.GatewayListeners(in.Installation, name, bind, denied), gatewayClusters(in.Fleet)
	if in.Admission {
		with, ok := envoy.AddAdmission(packed(t, listeners[0]))
		if err := with.UnmarshalTo(listeners[0]); err != nil || !ok {
			t.Fatalf("adding admission: %t, %v", ok, err)
		}
	}
	for _, hostname := range in.Dark {
		i := slices.IndexFunc(clusters, func(c *clusterv3.Cluster) bool { return c.GetName() == hostname })
		if i < 0 {
			t.Fatalf("there is no tunnel %q", hostname)
		}
		if err := envoy.UnreachableCluster(hostname).UnmarshalTo(clusters[i]); err != nil {
			t.Fatal(err)
		}
	}
	return envoy.Static(
		envoy.GatewayBootstrap(envoy.BootstrapConfig{ClusterStatistics: in.Statistics}), listeners, clusters,
	)
}

// initiator returns the whole configuration of an edge of the first workload cluster, in one bootstrap.
func (in input) initiator() *bootstrapv3.Bootstrap {
	return edgeConfig(in.Installation, in.Clusters[0], "edge-example", in.dial)
}

// gatewayClusters returns all Envoy clusters of a gateway.
func gatewayClusters(f model.Fleet) []*clusterv3.Cluster {
	clusters := envoy.GatewayClusters(f.Installation)
	for _, wc := range f.Clusters {
		clusters = append(clusters, envoy.TunnelClusters(f.Installation, wc)...)
	}
	return clusters
}

func edgeConfig(
	inst model.Installation, wc model.WorkloadCluster, node string, dial envoy.EdgeDial,
) *bootstrapv3.Bootstrap {
	return envoy.Static(
		envoy.EdgeBootstrap(envoy.BootstrapConfig{}), envoy.EdgeListeners(inst, wc, node, dial),
		envoy.EdgeClusters(inst, wc, node, dial),
	)
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
