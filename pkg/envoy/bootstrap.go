package envoy

import (
	"regexp"
	"strings"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	internalv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/bootstrap/internal_listener/v3"
	downstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/bootstrap/reverse_tunnel/downstream_socket_interface/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/bootstrap/reverse_tunnel/upstream_socket_interface/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/pkg/envoy/network"
	"github.com/fairlead/fairlead/pkg/envoy/overload"
	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

// BootstrapConfig configures the bootstrap of an Envoy. The zero value selects defaults.
type BootstrapConfig struct {
	MaxHeap        uint64 // limit of Envoy's heap in bytes; 0: a default that depends on the role
	MaxConnections uint64 // limit of downstream connections, of clients and edges; 0: a default
	// ClusterStatistics enables a gateway's statistics for each Envoy cluster, and so for each workload cluster: those
	// that the constant of this name matches.
	ClusterStatistics bool
}

// GatewayBootstrap returns the bootstrap of a gateway's Envoy. Its agent sends everything else.
func GatewayBootstrap(c BootstrapConfig) *bootstrapv3.Bootstrap {
	b := bootstrap(model.RoleGateway, &corev3.TypedExtensionConfig{
		Name: "envoy.bootstrap.reverse_tunnel.upstream_socket_interface",
		TypedConfig: typed.Pack(&upstreamv3.UpstreamReverseConnectionSocketInterface{
			StatPrefix: "reverse_tunnel",
			AccessLog:  []*accesslogv3.AccessLog{record.Tunnels()},
		}),
	})
	b.BootstrapExtensions = append(b.BootstrapExtensions, internalListeners())
	b.StaticResources.Clusters = append(b.StaticResources.Clusters, behindConnect())
	b.LayeredRuntime = &bootstrapv3.LayeredRuntime{
		Layers: []*bootstrapv3.RuntimeLayer{keepLastBytes(), listenerLimit(c), limitsLayer()},
	}
	b.OverloadManager = overload.Gateway(c.MaxHeap, c.MaxConnections)
	// Most workload clusters are idle most of the time: their traffic counters are created on first use.
	b.DeferredStatOptions = &bootstrapv3.Bootstrap_DeferredStatOptions{EnableDeferredCreationStats: true}
	b.MemoryAllocatorManager = releaseMemory()
	b.StatsConfig = noClusterStatistics()
	if c.ClusterStatistics {
		b.StatsConfig = fewClusterStatistics()
	}
	return b
}

// internalListeners lets an Envoy have internal listeners.
func internalListeners() *corev3.TypedExtensionConfig {
	return typed.Extension("envoy.bootstrap.internal_listener", &internalv3.InternalListener{})
}

// releaseMemory returns unused memory to the kernel every second, which Envoy used while it read thousands of Envoy
// clusters or opened as many reverse tunnels. By default Envoy keeps up to 100 MB of it.
func releaseMemory() *bootstrapv3.MemoryAllocatorManager {
	return &bootstrapv3.MemoryAllocatorManager{
		BytesToRelease:        16 << 20,
		MemoryReleaseInterval: durationpb.New(time.Second),
	}
}

// noClusterStatistics excludes the statistics of all Envoy clusters, including the few that are not for workload
// clusters. Envoy matches a prefix quickly, and would have to match each name for anything finer. Nothing depends on
// these statistics.
func noClusterStatistics() *metricsv3.StatsConfig {
	return &metricsv3.StatsConfig{
		StatsMatcher: &metricsv3.StatsMatcher{StatsMatcher: &metricsv3.StatsMatcher_ExclusionList{
			ExclusionList: &matcherv3.ListStringMatcher{Patterns: []*matcherv3.StringMatcher{{
				MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: "cluster."},
			}}},
		}},
	}
}

// ClusterStatistics matches the statistics of Envoy clusters that an agent publishes, by Envoy's names.
const ClusterStatistics = `^cluster\..*\.(` +
	`upstream_cx_(active|total|connect_fail|connect_timeout|rx_bytes_total|tx_bytes_total)` +
	`|upstream_rq_(active|total|pending_overflow)|membership_(healthy|total))$`

// fewClusterStatistics excludes the statistics of Envoy clusters that ClusterStatistics does not match, which are most:
// each query for statistics visits all that exist, and keeps Envoy's main thread busy meanwhile.
func fewClusterStatistics() *metricsv3.StatsConfig {
	var patterns []*matcherv3.StringMatcher
	for _, names := range []string{withoutPrefix("cluster."), ClusterStatistics} {
		patterns = append(patterns, &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: names}},
		})
	}
	return &metricsv3.StatsConfig{
		StatsMatcher: &metricsv3.StatsMatcher{StatsMatcher: &metricsv3.StatsMatcher_InclusionList{
			InclusionList: &matcherv3.ListStringMatcher{Patterns: patterns},
		}},
	}
}

// withoutPrefix returns a regular expression that matches the strings that differ from prefix in one of its bytes. RE2
// has no lookahead, with which that would be shorter.
func withoutPrefix(prefix string) string {
	var alternatives []string
	for i := range prefix {
		alternatives = append(alternatives, regexp.QuoteMeta(prefix[:i])+"[^"+prefix[i:i+1]+"].*")
	}
	return strings.Join(alternatives, "|")
}

// keepLastBytes lets clients of a gateway read the data that it still holds for them when a stream in a reverse tunnel
// is reset. By default Envoy 1.40 also resets their connections, and the kernel then drops undelivered data: see
// docs/decisions/0025-last-bytes.md.
func keepLastBytes() *bootstrapv3.RuntimeLayer {
	off := structpb.NewBoolValue(false)
	return staticLayer("keep_last_bytes", map[string]*structpb.Value{
		"envoy.reloadable_features.map_http_stream_reset_to_tcp_rst":                  off,
		"envoy.reloadable_features.propagate_upstream_rst_through_tunneled_tcp_proxy": off,
	})
}

// limitsLayer is where the agent sets the limits of workload clusters: see Tunnel.
func limitsLayer() *bootstrapv3.RuntimeLayer {
	return &bootstrapv3.RuntimeLayer{
		Name:           "limits",
		LayerSpecifier: &bootstrapv3.RuntimeLayer_AdminLayer_{AdminLayer: &bootstrapv3.RuntimeLayer_AdminLayer{}},
	}
}

// listenerLimit reserves half of a gateway's connections for clients, whatever arrives at the public listener. It uses
// that listener's own limit, and not ignore_global_conn_limit on the others: Envoy 1.40 subtracts each of their
// connections from the global limit when it ends, although it was never added.
func listenerLimit(c BootstrapConfig) *bootstrapv3.RuntimeLayer {
	return staticLayer("listener_limit", map[string]*structpb.Value{
		"envoy.resource_limits.listener." + publicListener + ".connection_limit": structpb.NewNumberValue(
			float64(overload.PublicConnections(c.MaxConnections)),
		),
	})
}

func staticLayer(name string, fields map[string]*structpb.Value) *bootstrapv3.RuntimeLayer {
	return &bootstrapv3.RuntimeLayer{
		Name:           name,
		LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: &structpb.Struct{Fields: fields}},
	}
}

// EdgeBootstrap returns the bootstrap of an edge's Envoy. Its agent sends everything else.
func EdgeBootstrap(c BootstrapConfig) *bootstrapv3.Bootstrap {
	b := bootstrap(model.RoleEdge, &corev3.TypedExtensionConfig{
		Name: "envoy.bootstrap.reverse_tunnel.downstream_socket_interface",
		TypedConfig: typed.Pack(&downstreamv3.DownstreamReverseConnectionSocketInterface{
			StatPrefix:          "reverse_tunnel",
			MaintainInterval:    durationpb.New(maintainInterval),
			MaxReconnectBackoff: durationpb.New(maxReconnectBackoff),
		}),
	})
	b.OverloadManager = overload.Edge(c.MaxHeap, c.MaxConnections)
	return b
}

// Static returns a copy of a bootstrap that contains the resources, and requests only secrets from its agent. Its
// listeners use the scopes; without any they keep requesting them.
func Static(
	b *bootstrapv3.Bootstrap, listeners []*listenerv3.Listener, clusters []*clusterv3.Cluster,
	scopes ...*routev3.ScopedRouteConfiguration,
) *bootstrapv3.Bootstrap {
	b = proto.CloneOf(b)
	b.DynamicResources = nil
	for _, l := range listeners {
		if len(scopes) > 0 {
			l = network.WithScopes(l, scopes)
		}
		b.StaticResources.Listeners = append(b.StaticResources.Listeners, l)
	}
	b.StaticResources.Clusters = append(b.StaticResources.Clusters, clusters...)
	return b
}

// bootstrap does not depend on the installation. The node is the role: each agent serves only its own Envoy.
func bootstrap(role model.Role, extension *corev3.TypedExtensionConfig) *bootstrapv3.Bootstrap {
	return &bootstrapv3.Bootstrap{
		Node: &corev3.Node{Id: string(role), Cluster: string(role)},
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
				GrpcServices:              []*corev3.GrpcService{agentService()},
			},
		},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{
			Listeners: []*listenerv3.Listener{loopListener()},
			Clusters:  []*clusterv3.Cluster{agentSocketCluster()},
		},
	}
}

// overADS waits without a limit for the first response: an Envoy that reports ready has its configuration.
func overADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		InitialFetchTimeout:   durationpb.New(0),
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	}
}

// agentService is the agent's gRPC service, with a short reconnect backoff.
func agentService() *corev3.GrpcService {
	return &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
		ClusterName: agentCluster,
		RetryPolicy: &corev3.RetryPolicy{RetryBackOff: &corev3.BackoffStrategy{
			BaseInterval: durationpb.New(configBackoffBase),
			MaxInterval:  durationpb.New(configBackoff),
		}},
	}}}
}
