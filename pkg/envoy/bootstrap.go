package envoy

import (
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	downstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/bootstrap/reverse_tunnel/downstream_socket_interface/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/bootstrap/reverse_tunnel/upstream_socket_interface/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/pkg/model"
)

// GatewayConfig is what the bootstrap of a gateway is made from.
type GatewayConfig struct {
	Domain    model.TunnelDomain
	Name      string // gateway-<i>
	XDSServer model.Endpoint
	Bind      GatewayBind
}

// EdgeConfig is what the bootstrap of an edge is made from.
type EdgeConfig struct {
	Domain  model.TunnelDomain
	Node    string         // the node name
	ID      string         // of the Tunnel
	Gateway model.Endpoint // the gateways' public port, behind which the xds-server is too
}

// Validate checks every field; GatewayBootstrap needs all of them.
func (c GatewayConfig) Validate() error {
	if err := c.Domain.Validate(); err != nil {
		return err
	}
	if err := model.ValidateGatewayName(c.Name); err != nil {
		return err
	}
	if err := c.XDSServer.Validate(); err != nil {
		return fmt.Errorf("checking address of the xds-server: %w", err)
	}
	return c.Bind.Validate()
}

// Validate checks every field; EdgeBootstrap needs all of them.
func (c EdgeConfig) Validate() error {
	if err := c.Domain.Validate(); err != nil {
		return err
	}
	if err := model.ValidateNodeName(c.Node); err != nil {
		return err
	}
	if err := model.ValidateID(c.ID); err != nil {
		return err
	}
	if err := c.Gateway.Validate(); err != nil {
		return fmt.Errorf("checking address of the gateways: %w", err)
	}
	return nil
}

// GatewayBootstrap is what the Envoy of a gateway starts with. All else comes over ADS from the xds-server.
func GatewayBootstrap(c GatewayConfig) *bootstrapv3.Bootstrap {
	b := bootstrap(
		&corev3.Node{Id: model.NodeID(c.Name), Cluster: string(model.RoleGateway), Metadata: c.Bind.Metadata()},
		xdsCluster(c.Domain, c.XDSServer),
		&corev3.TypedExtensionConfig{
			Name:        "envoy.bootstrap.reverse_tunnel.upstream_socket_interface",
			TypedConfig: pack(&upstreamv3.UpstreamReverseConnectionSocketInterface{StatPrefix: "reverse_tunnel"}),
		},
	)
	b.LayeredRuntime = keepLastBytes()
	return b
}

// keepLastBytes has clients of a gateway read what it still holds for them when a stream in a tunnel is reset. Envoy 1.40
// would reset their connections too, and the kernel then drops what it has not delivered: see docs/rationale.md.
func keepLastBytes() *bootstrapv3.LayeredRuntime {
	off := structpb.NewBoolValue(false)
	return &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{{
		Name: "keep_last_bytes",
		LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: &structpb.Struct{Fields: map[string]*structpb.Value{
			"envoy.reloadable_features.map_http_stream_reset_to_tcp_rst":                  off,
			"envoy.reloadable_features.propagate_upstream_rst_through_tunneled_tcp_proxy": off,
		}}},
	}}}
}

// EdgeBootstrap is what the Envoy of an edge starts with. All else comes over ADS from the xds-server, which it reaches
// through the gateways' public port.
func EdgeBootstrap(c EdgeConfig) *bootstrapv3.Bootstrap {
	return bootstrap(
		&corev3.Node{Id: model.NodeID(c.Node), Cluster: c.Domain.TunnelID(c.ID)},
		xdsCluster(c.Domain, c.Gateway),
		&corev3.TypedExtensionConfig{
			Name: "envoy.bootstrap.reverse_tunnel.downstream_socket_interface",
			TypedConfig: pack(&downstreamv3.DownstreamReverseConnectionSocketInterface{
				StatPrefix:          "reverse_tunnel",
				MaintainInterval:    durationpb.New(maintainInterval),
				MaxReconnectBackoff: durationpb.New(maxReconnectBackoff),
			}),
		},
	)
}

// Static returns a copy of a bootstrap that has the resources in itself and asks no xds-server for any.
func Static(b *bootstrapv3.Bootstrap, listeners []*listenerv3.Listener, clusters []*clusterv3.Cluster) *bootstrapv3.Bootstrap {
	b = proto.CloneOf(b)
	b.DynamicResources = nil
	b.StaticResources.Listeners = append(b.StaticResources.Listeners, listeners...)
	b.StaticResources.Clusters = append(b.StaticResources.Clusters, clusters...)
	return b
}

func bootstrap(node *corev3.Node, xdsServer *clusterv3.Cluster, extension *corev3.TypedExtensionConfig) *bootstrapv3.Bootstrap {
	return &bootstrapv3.Bootstrap{
		Node: node,
		Admin: &bootstrapv3.Admin{Address: &corev3.Address{
			Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: AdminSocket, Mode: 0o600}},
		}},
		BootstrapExtensions: []*corev3.TypedExtensionConfig{extension},
		DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{
			LdsConfig: overADS(),
			CdsConfig: overADS(),
			AdsConfig: &corev3.ApiConfigSource{
				ApiType:                   corev3.ApiConfigSource_DELTA_GRPC,
				TransportApiVersion:       corev3.ApiVersion_V3,
				SetNodeOnFirstMessageOnly: true,
				GrpcServices:              []*corev3.GrpcService{grpcService(xdsServerCluster)},
			},
		},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{agentSocketCluster(), xdsServer}},
	}
}

// overADS waits for the first answer as long as it takes: an Envoy that calls itself ready has its configuration.
func overADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		InitialFetchTimeout:   durationpb.New(0),
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	}
}

// grpcService is a gRPC service in an Envoy cluster, that is dialled again soon after it went away.
func grpcService(cluster string) *corev3.GrpcService {
	return &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
		ClusterName: cluster,
		RetryPolicy: &corev3.RetryPolicy{RetryBackOff: &corev3.BackoffStrategy{
			BaseInterval: durationpb.New(configBackoffBase),
			MaxInterval:  durationpb.New(configBackoff),
		}},
	}}}
}
