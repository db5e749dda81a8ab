package envoy

import (
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	reverseclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/reverse_connection/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fairlead/fairlead/pkg/envoy/lane"
	"github.com/fairlead/fairlead/pkg/envoy/multiplex"
	"github.com/fairlead/fairlead/pkg/envoy/peers"
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
	// Plain is the Envoy cluster with the default limits, after Complete.
	Plain *anypb.Any
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
	if Complete(c) || len(limits) > 0 {
		t.Plain = typed.Pack(c)
	}
	return t, true
}

// Plain returns a resource as an Envoy of a gateway runs it, if its agent has chosen no form for it: a tunnel after
// Complete with the default limits, or another gateway without its description. Any other resource is returned itself.
func Plain(resource *anypb.Any) *anypb.Any {
	if tunnel, ok := TunnelOf(resource); ok {
		return tunnel.Plain
	}
	_, _, plain, _ := peers.Described(resource)
	return plain
}

// Complete changes an Envoy cluster of a tunnel as the agent of a gateway does: see multiplex.CloseUnused and
// lane.First. It returns false if nothing has changed.
func Complete(c *clusterv3.Cluster) bool {
	closes, first := multiplex.CloseUnused(c), lane.First(c, usedKeepalive())
	return closes || first
}

// limitPrefix begins the keys of limits in Envoy's runtime.
const limitPrefix = "circuit_breakers."

// IsLimit reports whether a key of Envoy's runtime is that of a limit of an Envoy cluster: see Tunnel.
func IsLimit(key string) bool { return strings.HasPrefix(key, limitPrefix) }

// runtimeLimits returns thresholds by the keys with which Envoy's runtime overrides them. Missing ones have Envoy's
// default.
func runtimeLimits(cluster string, at *clusterv3.CircuitBreakers_Thresholds) map[string]string {
	limits := map[string]string{}
	for key, value := range map[string]interface{ GetValue() uint32 }{
		"max_requests": at.GetMaxRequests(), "max_pending_requests": at.GetMaxPendingRequests(),
		"max_retries": at.GetMaxRetries(),
	} {
		if value.GetValue() > 0 {
			limits[limitPrefix+cluster+".default."+key] = strconv.FormatUint(uint64(value.GetValue()), 10)
		}
	}
	return limits
}

// UnreachableCluster replaces the Envoy cluster of a name whose workload cluster is unreachable, because it has no
// reverse tunnel: it leads to the agent, which rejects each connection at once.
func UnreachableCluster(name string) *anypb.Any {
	socket := lbEndpoint(&corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: UnreachableSocket}}})
	return typed.Pack(&clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(dialTimeout),
		LoadAssignment:       typed.LoadAssignment(name, []*endpointv3.LbEndpoint{socket}),
	})
}
