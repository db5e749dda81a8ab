// Package render is the command render: its input is files with objects, its output is the configuration of an Envoy.
// It needs no cluster.
package render

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/pkg/capi/egress"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/rollout"
	"github.com/fairlead/fairlead/pkg/source"
)

// renderFlags are the flags of render.
type renderFlags struct {
	files                      []string
	gateway                    string // the name of a gateway, or
	edge                       string // namespace/name of the Tunnel of an edge; neither: all of them
	node                       string
	gateways, localAPIServers  []string // addresses that an edge dials because of its own flags
	listen                     []string // where an edge of a network listens because of its own flags
	socket                     string   // of the Envoy beside an apiserver
	near                       bool     // see envoy.EdgeDial
	forward                    []string // networks of apiservers that gateways dial, a flag of the controller
	public, apiserver, connect string
	lanes, nodes               int // as xds-servers have them: see model.Installation.LanesFor
	validate                   bool
	envoy                      string
}

// Command returns the command render.
func Command() *cobra.Command {
	var f renderFlags
	cmd := &cobra.Command{
		Use:   "render",
		Short: "Print the complete Envoy configuration of gateways and edges, without a Kubernetes cluster",
		Long: strings.TrimSpace(`
Print the Envoy configuration of gateways and edges as bootstrap files that "envoy -c" can run. The Envoy
requests only its certificates from the agent. Without --gateway and --edge, print one YAML document for each
gateway and for an edge of each Tunnel: of each workload cluster, of each RemoteNetwork (<name>.network), and
for the Envoy beside the apiservers of a Cluster with RemoteNetworks (<cluster>.egress).

-f accepts YAML files with several documents, folders (*.yaml, *.yml and *.json) and - for standard input:
  - Kubernetes objects: Clusters, Tunnels and RemoteNetworks, and for the settings of the installation the
    ConfigMap fairlead-settings and the StatefulSet of the gateways. Other objects are ignored.
  - a fleet in one file, such as deploy/envoy/fleet.yaml.
Missing settings are assumed and listed in comments. Errors name the file, line and field.

Needs: the input files, and an Envoy for --validate; no Kubernetes cluster.
Changes: nothing.
Exit codes: 0 success; 1 the input is invalid, Envoy rejected a configuration, or the command failed; 2 the
command line is invalid.`),
		Example: "  fairlead render -f cluster.yaml --edge prod/c1\n  fairlead render -f networks.yaml --edge " +
			"prod/site1.network\n  kubectl get clusters,tunnels,remotenetworks -A -o yaml | fairlead render -f - --gateway " +
			"gateway-0\n  fairlead render -f clusters/ --validate --envoy /usr/local/bin/envoy",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.addTo(cmd)
	return cmd
}

func (f *renderFlags) addTo(cmd *cobra.Command) {
	set := cmd.Flags()
	set.StringSliceVarP(
		&f.files, "file", "f", nil, "YAML file, folder, or - for the standard input; repeat it for several (required)",
	)
	set.StringVar(&f.gateway, "gateway", "", "name of the one gateway to print")
	set.StringVar(&f.edge, "edge", "", "namespace/name of the one Tunnel whose edge to print")
	set.StringVar(&f.node, "node", "edge-example", "node name of the edge")
	set.StringSliceVar(
		&f.gateways, "gateway-address", nil,
		"host:port at which the edge reaches the gateways, instead of the installation's",
	)
	set.StringSliceVar(&f.localAPIServers, "local-apiserver", nil, "host:port of an apiserver that the edge prefers")
	set.StringSliceVar(
		&f.listen, "edge-listen", nil, "host:port of --apiserver-listen of the edge of a network; repeat it for several",
	)
	set.StringVar(&f.socket, "egress-socket", egress.Socket, "path of the Unix socket of the Envoy beside an apiserver")
	set.BoolVar(&f.near, "near", false, "the round trip from the edge to the gateways is shorter than 2 ms")
	set.StringSliceVar(
		&f.forward, "apiserver-cidrs", nil, "--apiserver-cidrs of the controller: networks of apiservers that gateways dial",
	)
	set.StringVar(&f.public, "public-listen", ":443", "where the gateway listens for edges")
	set.StringVar(&f.apiserver, "apiserver-listen", ":6443", "where the gateway listens for clients, by SNI")
	set.StringVar(&f.connect, "connect-listen", ":3128", "where the gateway listens for clients, by CONNECT")
	set.IntVar(&f.lanes, "lanes", model.DefaultLanes, "--lanes of the xds-servers")
	set.IntVar(
		&f.nodes, "nodes", 0,
		"how many gateways and edges are connected, which decides how many of the lanes edges get (default: one for each "+
			"gateway and Tunnel of the input)",
	)
	set.BoolVar(&f.validate, "validate", false, "validate each configuration with an Envoy, and print its answer")
	set.StringVar(&f.envoy, "envoy", "envoy", "Envoy for --validate: a path, or a name to be found in PATH")
	_ = cmd.MarkFlagRequired("file") // the only error is an unknown flag
	cmd.MarkFlagsMutuallyExclusive("gateway", "edge")
}

// rendered is the configuration of one Envoy.
type rendered struct {
	of   string // gateway <name>, or edge of <namespace>/<name of its Tunnel>
	text []byte
}

func (f renderFlags) run(cmd *cobra.Command) error {
	inputs, err := readInputs(f.files, cmd.InOrStdin())
	if err != nil {
		return err
	}
	var forward []netip.Prefix
	for _, cidr := range f.forward {
		p, err := model.ValidateCIDR(cidr)
		if err != nil {
			return fmt.Errorf("--apiserver-cidrs: %w", err)
		}
		forward = append(forward, p)
	}
	loaded, err := source.Load(inputs, forward)
	if err != nil {
		return err
	}
	if inst := &loaded.Fleet.Installation; inst.Lanes == 0 || cmd.Flags().Changed("lanes") {
		inst.Lanes = f.lanes
		if err := inst.ValidateShared(); err != nil {
			return fmt.Errorf("--lanes: %w", err)
		}
	}
	all, err := f.render(loaded.Fleet)
	if err != nil {
		return err
	}
	if f.validate {
		return f.validateAll(cmd, all)
	}
	return printRendered(cmd.OutOrStdout(), loaded.Assumed, all)
}

func printRendered(out io.Writer, assumed []string, all []rendered) error {
	var b bytes.Buffer
	for _, text := range assumed {
		fmt.Fprintf(&b, "# assumed: %s\n", text)
	}
	for _, r := range all {
		if len(all) > 1 {
			fmt.Fprintf(&b, "---\n# %s\n", r.of)
		}
		b.Write(r.text)
	}
	_, err := out.Write(b.Bytes())
	return err
}

// render returns the requested configurations.
func (f renderFlags) render(fleet model.Fleet) (all []rendered, err error) {
	add := func(of string, bootstrap *bootstrapv3.Bootstrap, err error) error {
		if err != nil {
			return err
		}
		text, err := envoy.MarshalYAML(bootstrap)
		all = append(all, rendered{of, text})
		return err
	}
	for _, g := range fleet.Installation.Gateways {
		if f.gateway == g.Name || f.gateway == "" && f.edge == "" {
			bootstrap, err := f.gatewayBootstrap(fleet, g.Name)
			if err := add("gateway "+g.Name, bootstrap, err); err != nil {
				return nil, err
			}
		}
	}
	for _, wc := range fleet.Clusters {
		if key := wc.Key.String(); f.edge == key || f.gateway == "" && f.edge == "" {
			inst := fleet.Installation
			size := rollout.SizeOf(cmp.Or(f.nodes, len(inst.Gateways)+len(fleet.Clusters)))
			inst.Lanes = inst.LanesFor(size, wc)
			bootstrap, err := f.edgeBootstrap(inst, wc)
			if err := add("edge of "+key, bootstrap, err); err != nil {
				return nil, err
			}
		}
	}
	switch {
	case len(all) > 0:
		return all, nil
	case f.gateway != "":
		return nil, fmt.Errorf(
			"--gateway: the input has no gateway %q: it has %s", f.gateway,
			listed(fleet.Installation.Gateways, func(g model.Gateway) string { return g.Name }),
		)
	}
	return nil, fmt.Errorf(
		"--edge: the input has no Tunnel %q: it has %s", f.edge,
		listed(fleet.Clusters, func(wc model.WorkloadCluster) string { return wc.Key.String() }),
	)
}

// listed returns the first names of a list.
func listed[T any](all []T, name func(T) string) string {
	const most = 10
	var names []string
	for _, one := range all[:min(len(all), most)] {
		names = append(names, name(one))
	}
	if more := len(all) - most; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return cmp.Or(strings.Join(names, ", "), "none")
}

func (f renderFlags) gatewayBootstrap(fleet model.Fleet, name string) (*bootstrapv3.Bootstrap, error) {
	inst := fleet.Installation
	bind, err := f.bind()
	if err != nil {
		return nil, err
	}
	clusters := envoy.GatewayClusters(inst)
	var denied model.Denied
	var scopes []*routev3.ScopedRouteConfiguration
	for _, wc := range fleet.Clusters {
		clusters = append(clusters, envoy.TunnelClusters(inst, wc)...)
		denied.Edges = append(denied.Edges, wc.RevokedEdges()...)
		if wc.Egress {
			scopes = append(scopes, envoy.NetworkScope(inst, wc.ID, fleet.Clusters))
		}
	}
	return envoy.Static(
		envoy.GatewayBootstrap(envoy.BootstrapConfig{}),
		envoy.GatewayListeners(inst, name, bind, denied), clusters,
		scopes...,
	), nil
}

func (f renderFlags) bind() (envoy.GatewayBind, error) {
	b := envoy.GatewayBind{Version: envoy.Current}
	for _, listen := range []struct {
		to   *model.Endpoint
		from string
	}{{&b.Public, f.public}, {&b.APIServer, f.apiserver}, {&b.Connect, f.connect}} {
		e, err := envoy.ParseListen(listen.from, true)
		if err != nil {
			return envoy.GatewayBind{}, err
		}
		*listen.to = e
	}
	return b, b.Validate()
}

func (f renderFlags) edgeBootstrap(inst model.Installation, wc model.WorkloadCluster) (*bootstrapv3.Bootstrap, error) {
	if err := model.ValidateNodeName(f.node); err != nil {
		return nil, err
	}
	dial, err := f.dial()
	if err != nil {
		return nil, err
	}
	listeners, clusters := envoy.EdgeListeners(inst, wc, f.node, dial), envoy.EdgeClusters(inst, wc, f.node, dial)
	return envoy.Static(envoy.EdgeBootstrap(envoy.BootstrapConfig{}), listeners, clusters), nil
}

func (f renderFlags) dial() (envoy.EdgeDial, error) {
	d := envoy.EdgeDial{Version: envoy.Current, Near: f.near, Socket: f.socket}
	for _, addresses := range []struct {
		to   *[]model.Endpoint
		from []string
	}{{&d.Gateways, f.gateways}, {&d.APIServers, f.localAPIServers}, {&d.Listen, f.listen}} {
		for _, address := range addresses.from {
			e, err := model.ParseEndpoint(address)
			if err != nil {
				return envoy.EdgeDial{}, err
			}
			*addresses.to = append(*addresses.to, e)
		}
	}
	for _, e := range d.Listen {
		if err := envoy.CheckListen(e); err != nil {
			return envoy.EdgeDial{}, fmt.Errorf("--edge-listen: %w", err)
		}
	}
	if err := envoy.CheckSocket(d.Socket); err != nil {
		return envoy.EdgeDial{}, fmt.Errorf("--egress-socket: %w", err)
	}
	return d, nil
}
