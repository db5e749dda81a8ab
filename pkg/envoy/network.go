package envoy

import (
	"net/netip"
	"slices"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tcppoolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/tcp/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/network"
	"github.com/fairlead/fairlead/pkg/envoy/peers"
	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

// NetworkScope returns the routes of the apiservers that enrolled with an id: to the networks among the workload
// clusters whose Network.EgressID is that id. If two of them have the same CIDR or suffix, the first one counts.
func NetworkScope(
	inst model.Installation, egressID string, networks []model.WorkloadCluster,
) *routev3.ScopedRouteConfiguration {
	var to []network.Destination
	for _, wc := range networks {
		if wc.Network != nil && wc.Network.EgressID == egressID {
			to = append(to, network.Destination{Cluster: networkCluster(inst.Domain.TunnelID(wc.ID)), Network: *wc.Network})
		}
	}
	return network.Scope(ScopeName(inst.Domain, egressID), retryTunnel(inst, quickRetries), to)
}

// ScopeName returns the name of the result of NetworkScope.
func ScopeName(d model.TunnelDomain, egressID string) string { return d.EgressID(egressID) }

// retryTunnel retries after errors of the reverse tunnel; an edge's own 503 is forwarded. Until there is an answer, no
// data of the client has been sent, so a request in a reverse tunnel that ends can be repeated.
func retryTunnel(inst model.Installation, version Version) *routev3.RetryPolicy {
	attempts, first := connectAttempts, connectBackoff
	if version.has(quickRetries) {
		attempts, first = lostAttempts, lostBackoff
	}
	policy := retry(attempts, first)
	if forwards(inst, version) {
		return peers.Retry(policy)
	}
	return policy
}

// retry repeats a request that has had no answer. The wait is random between zero and first, which doubles up to
// connectBackoff.
func retry(attempts int, first time.Duration) *routev3.RetryPolicy {
	return &routev3.RetryPolicy{
		RetryOn:    "connect-failure,refused-stream,reset",
		NumRetries: wrapperspb.UInt32(uint32(attempts - 1)),
		RetryBackOff: &routev3.RetryPolicy_RetryBackOff{
			BaseInterval: durationpb.New(first),
			MaxInterval:  durationpb.New(connectBackoff),
		},
	}
}

// forNetwork returns the Envoy clusters through which gateways reach a network: for apiservers, and for machines of the
// network that reach their apiserver. Their names contain a slash, so that no client can select them: see
// dnsNamePattern.
func forNetwork(inst model.Installation, wc model.WorkloadCluster) []*clusterv3.Cluster {
	id := inst.Domain.TunnelID(wc.ID)
	var clusters []*clusterv3.Cluster
	if wc.Network.EgressID != "" {
		clusters = append(clusters, tunnelCluster(networkCluster(id), id, wc.Limits))
	}
	switch {
	case len(wc.Network.APIServers) > 0:
		clusters = append(clusters, dialledAPIServer(forwardCluster(id), wc.Network.APIServers, wc.Limits))
	case wc.Network.APIServerID != "":
		clusters = append(
			clusters, tunnelCluster(forwardCluster(id), inst.Domain.TunnelID(wc.Network.APIServerID), wc.Limits.Forwarded()),
		)
	}
	return clusters
}

// tcpPool makes an Envoy cluster answer CONNECT, and forward the bytes that follow.
const tcpPool = "envoy.filters.connection_pools.http.tcp"

// dialledAPIServer dials apiservers. It answers CONNECT itself: the route is also for apiservers behind a reverse
// tunnel, where the edge answers.
func dialledAPIServer(name string, at []model.Endpoint, limits model.Limits) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name:                      name,
		ConnectTimeout:            durationpb.New(tunnelConnectTimeout),
		LoadAssignment:            typed.LoadAssignment(name, endpoints(at...)),
		UpstreamConnectionOptions: &clusterv3.UpstreamConnectionOptions{TcpKeepalive: clientKeepalive()},
		CircuitBreakers:           breaker(tunnelLimits(limits)),
		UpstreamConfig:            typed.Extension(tcpPool, &tcppoolv3.TcpConnectionPoolProto{}),
	}
	c.CircuitBreakers.Thresholds[0].MaxConnections = wrapperspb.UInt32(limits.MaxConnections())
	discoverAll(c, at)
	return c
}

// networkEdge returns the parts of an edge's resources that decide what it dials in its network.
func networkEdge(inst model.Installation, wc model.WorkloadCluster, node string, dial EdgeDial) network.Edge {
	e := network.Edge{
		Domain: inst.Domain, Node: node, Network: *wc.Network, Buffer: dial.buffers().apiserver,
		Keepalive: clientKeepalive(), Limits: breaker(unlimited()),
	}
	for _, a := range slices.Concat(inst.GatewayAddresses(), model.Addresses(dial.Gateways...)) {
		e.Excluded = append(e.Excluded, netip.PrefixFrom(a, a.BitLen()))
	}
	return e
}

// scopeSource is the source of scopes. The public listener does not wait for them for ever, because edges need it too.
func scopeSource() *corev3.ConfigSource {
	source := overADS()
	source.InitialFetchTimeout = durationpb.New(scopesTimeout)
	return source
}
