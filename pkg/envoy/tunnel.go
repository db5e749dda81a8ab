package envoy

import (
	"strconv"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	reverseclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/reverse_connection/v3"
	upstreamhttpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

// Tunnel describes an Envoy cluster of a gateway that is one name of a workload cluster.
type Tunnel struct {
	ID string // the tunnel id, with the tunnel domain
	// Limits are the limits that differ from the defaults, by the keys of Envoy's runtime. They are not part of Plain:
	// an Envoy cluster that is updated leaves its reverse tunnels to the connections that use them, and has none for
	// new ones.
	Limits map[string]string
	Plain  *anypb.Any // the Envoy cluster with the default limits, after CloseUnused
}

// TunnelOf parses an Envoy cluster of a gateway. ok is false if it is not a tunnel.
func TunnelOf(resource *anypb.Any) (t Tunnel, ok bool) {
	c, reverse := &clusterv3.Cluster{}, &reverseclusterv3.ReverseConnectionClusterConfig{}
	if resource.UnmarshalTo(c) != nil || c.GetClusterType().GetTypedConfig().UnmarshalTo(reverse) != nil ||
		len(c.GetCircuitBreakers().GetThresholds()) != 1 {
		return Tunnel{}, false
	}
	t = Tunnel{ID: reverse.GetHostIdFormat(), Plain: resource}
	defaults := tunnelLimits(model.Limits{})
	limits := runtimeLimits(c.GetName(), c.CircuitBreakers.Thresholds[0])
	for key, value := range runtimeLimits(c.GetName(), defaults) {
		if limits[key] == value {
			delete(limits, key)
		}
	}
	if len(limits) > 0 {
		c.CircuitBreakers = breaker(defaults)
		t.Limits = limits
	}
	if CloseUnused(c) || len(limits) > 0 {
		t.Plain = pack(c)
	}
	return t, true
}

// CloseUnused changes an Envoy cluster of a tunnel so that a reverse tunnel is closed once it has carried no connection
// for a minute. Its edge then dials another, which has no HTTP/2 pings until it is used. CloseUnused returns false if
// nothing has changed. A gateway's agent does this, not the xds-server: an Envoy cluster that changes while it is in
// use loses its reverse tunnels, and agents of versions before would reject the change.
func CloseUnused(c *clusterv3.Cluster) bool {
	options := &upstreamhttpv3.HttpProtocolOptions{}
	if c.GetTypedExtensionProtocolOptions()[typed.HTTPProtocols].UnmarshalTo(options) != nil ||
		options.GetCommonHttpProtocolOptions() != nil {
		return false
	}
	options.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(unusedAfter)}
	c.TypedExtensionProtocolOptions[typed.HTTPProtocols] = pack(options)
	return true
}

// runtimeLimits returns thresholds by the keys with which Envoy's runtime overrides them. Missing ones have Envoy's
// default.
func runtimeLimits(cluster string, at *clusterv3.CircuitBreakers_Thresholds) map[string]string {
	limits := map[string]string{}
	for key, value := range map[string]interface{ GetValue() uint32 }{
		"max_requests": at.GetMaxRequests(), "max_pending_requests": at.GetMaxPendingRequests(),
		"max_retries": at.GetMaxRetries(),
	} {
		if value.GetValue() > 0 {
			limits["circuit_breakers."+cluster+".default."+key] = strconv.FormatUint(uint64(value.GetValue()), 10)
		}
	}
	return limits
}

// UnreachableCluster replaces the Envoy cluster of a name whose workload cluster is unreachable, because it has no
// reverse tunnel: it leads to the agent, which rejects each connection at once.
func UnreachableCluster(name string) *anypb.Any {
	socket := lbEndpoint(&corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: UnreachableSocket}}})
	return pack(&clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(dialTimeout),
		LoadAssignment:       assignment(name, []*endpointv3.LbEndpoint{socket}),
	})
}
