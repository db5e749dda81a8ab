package main

import (
	"fmt"
	"os"
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/source"
)

// renderFlags are the command line of render.
type renderFlags struct {
	file                       string
	gateway                    string // the name of one, or
	edge                       string // namespace/name of the workload cluster of one
	node                       string
	gateways, localAPIServers  []string // what an edge dials by its own flags
	public, apiserver, connect string
}

func renderCommand() *cobra.Command {
	var f renderFlags
	cmd := &cobra.Command{
		Use:   "render",
		Short: "Print the whole Envoy configuration of a gateway or an edge",
		Long: "Print what a gateway's or an edge's Envoy starts with and gets from its agent, in one file. Such an Envoy asks\n" +
			"the agent for certificates alone.",
		Example: "  fairlead render -f fleet.yaml --gateway gateway-0\n  fairlead render -f fleet.yaml --edge prod/c1",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out, err := f.render()
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(out)
			return err
		},
	}
	set := cmd.Flags()
	set.StringVarP(&f.file, "file", "f", "", "YAML file with the installation and its workload clusters (required)")
	set.StringVar(&f.gateway, "gateway", "", "name of the gateway to print")
	set.StringVar(&f.edge, "edge", "", "namespace/name of the workload cluster whose edge to print")
	set.StringVar(&f.node, "node", "edge-example", "node name of the edge")
	set.StringSliceVar(&f.gateways, "gateway-address", nil, "host:port at which the edge reaches the gateways, instead of the installation's")
	set.StringSliceVar(&f.localAPIServers, "local-apiserver", nil, "host:port of an apiserver that the edge prefers")
	set.StringVar(&f.public, "public-listen", "0.0.0.0:443", "where the gateway listens for edges")
	set.StringVar(&f.apiserver, "apiserver-listen", "0.0.0.0:6443", "where the gateway listens for clients, by SNI")
	set.StringVar(&f.connect, "connect-listen", "0.0.0.0:3128", "where the gateway listens for clients, by CONNECT")
	_ = cmd.MarkFlagRequired("file") // an error would say that there is no such flag
	cmd.MarkFlagsOneRequired("gateway", "edge")
	cmd.MarkFlagsMutuallyExclusive("gateway", "edge")
	return cmd
}

func (f renderFlags) render() ([]byte, error) {
	data, err := os.ReadFile(f.file)
	if err != nil {
		return nil, err
	}
	fleet, err := source.Parse(data)
	if err != nil {
		return nil, err
	}
	bootstrap, err := f.bootstrap(fleet)
	if err != nil {
		return nil, err
	}
	return envoy.MarshalYAML(bootstrap)
}

func (f renderFlags) bootstrap(fleet model.Fleet) (*bootstrapv3.Bootstrap, error) {
	if f.gateway != "" {
		return f.gatewayBootstrap(fleet)
	}
	return f.edgeBootstrap(fleet)
}

func (f renderFlags) gatewayBootstrap(fleet model.Fleet) (*bootstrapv3.Bootstrap, error) {
	inst := fleet.Installation
	if !slices.ContainsFunc(inst.Gateways, func(g model.Gateway) bool { return g.Name == f.gateway }) {
		return nil, fmt.Errorf("the file has no gateway %q", f.gateway)
	}
	bind, err := f.bind()
	if err != nil {
		return nil, err
	}
	clusters := envoy.GatewayClusters(inst)
	var denied model.Denied
	for _, wc := range fleet.Clusters {
		clusters = append(clusters, envoy.TunnelClusters(inst, wc)...)
		denied.Edges = append(denied.Edges, wc.RevokedEdges()...)
	}
	return envoy.Static(envoy.GatewayBootstrap(envoy.BootstrapConfig{}), envoy.GatewayListeners(inst, f.gateway, bind, denied), clusters), nil
}

func (f renderFlags) bind() (envoy.GatewayBind, error) {
	var b envoy.GatewayBind
	for _, listen := range []struct {
		to   *model.Endpoint
		from string
	}{{&b.Public, f.public}, {&b.APIServer, f.apiserver}, {&b.Connect, f.connect}} {
		e, err := model.ParseEndpoint(listen.from)
		if err != nil {
			return envoy.GatewayBind{}, err
		}
		*listen.to = e
	}
	return b, b.Validate()
}

func (f renderFlags) edgeBootstrap(fleet model.Fleet) (*bootstrapv3.Bootstrap, error) {
	i := slices.IndexFunc(fleet.Clusters, func(wc model.WorkloadCluster) bool { return wc.Key.String() == f.edge })
	if i < 0 {
		return nil, fmt.Errorf("the file has no workload cluster %q", f.edge)
	}
	if err := model.ValidateNodeName(f.node); err != nil {
		return nil, err
	}
	dial, err := f.dial()
	if err != nil {
		return nil, err
	}
	inst, wc := fleet.Installation, fleet.Clusters[i]
	listeners, clusters := envoy.EdgeListeners(inst, wc, f.node), envoy.EdgeClusters(inst, wc, f.node, dial)
	return envoy.Static(envoy.EdgeBootstrap(envoy.BootstrapConfig{}), listeners, clusters), nil
}

func (f renderFlags) dial() (envoy.EdgeDial, error) {
	var d envoy.EdgeDial
	for _, addresses := range []struct {
		to   *[]model.Endpoint
		from []string
	}{{&d.Gateways, f.gateways}, {&d.APIServers, f.localAPIServers}} {
		for _, address := range addresses.from {
			e, err := model.ParseEndpoint(address)
			if err != nil {
				return envoy.EdgeDial{}, err
			}
			*addresses.to = append(*addresses.to, e)
		}
	}
	return d, nil
}
