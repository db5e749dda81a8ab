// Package peers renders how a gateway forwards a client to another gateway, which has a reverse tunnel that it has not
// itself. In go names and the options that package envoy chooses; out come Envoy resources. It does not know which
// gateways have which reverse tunnels.
//
// At the gateway of the client, the Envoy cluster of a tunnel name (Forward) dials an internal listener for each other
// gateway (Listener). This encrypts the connection for that gateway (Cluster), so all tunnels share one TLS context and
// one DNS name per gateway. There, a filter chain of the public listener (Manager) leads each CONNECT to the Envoy
// cluster with the same name, if that is a reverse tunnel.
//
// A client is forwarded once at most: the routes of Manager select hosts by metadata (SecondHop) that a forwarding
// Envoy cluster rejects, and that an Envoy cluster of reverse tunnels ignores. So gateways that disagree about which
// has a reverse tunnel form no loop.
package peers

import (
	"strconv"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	headermutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	codecv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/upstream_codec/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	upstreamhttpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/nearest"
	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// prefix of the names of Listener and Cluster, followed by the name of a gateway. A client cannot select such an
	// Envoy cluster, because its name has a slash.
	prefix = "peers/"

	// ClusterHeader is the name of the Envoy cluster of a forwarded request. Forward adds it to requests of HTTP
	// connection managers. A TCP proxy has to add it itself, because that of Envoy 1.40 does not run the filters of
	// Envoy clusters.
	ClusterHeader = "x-fairlead-cluster"

	// SNIListener is the name of the listener of a gateway for clients by SNI.
	SNIListener = "apiserver"

	// RefusedHeader is in the answer to a forwarded client that this gateway cannot serve, and that another one may.
	RefusedHeader = "x-fairlead-refused"

	// hop is the key of the metadata that a forwarding Envoy cluster rejects.
	hop        = "fairlead_hop"
	lbMetadata = "envoy.lb"

	// metadata is the key of the metadata of Describe, and the others are its fields and their values.
	metadata    = "fairlead"
	countField  = "gateways_per_tunnel"
	zoneField   = "zone"
	changeField = "change"
	joining     = "joining"
	leaving     = "leaving"
)

// Name returns the name of the internal listener for another gateway, and of the Envoy cluster that it uses.
func Name(gateway string) string { return prefix + gateway }

// Parse is the inverse of Name. It returns false for any other name.
func Parse(name string) (gateway string, ok bool) { return strings.CutPrefix(name, prefix) }

// Describe returns the metadata of Cluster from which an agent computes where it forwards clients: which gateway it is,
// its zone, and how many gateways each tunnel has. Envoy does not need it. It is nil if there is nothing to describe
// besides the name.
func Describe(g model.Gateway, perTunnel int) *corev3.Metadata {
	fields := map[string]*structpb.Value{}
	if perTunnel > 0 {
		fields[countField] = structpb.NewStringValue(strconv.Itoa(perTunnel))
	}
	if g.Zone != "" {
		fields[zoneField] = structpb.NewStringValue(g.Zone)
	}
	switch {
	case g.Joining:
		fields[changeField] = structpb.NewStringValue(joining)
	case g.Leaving:
		fields[changeField] = structpb.NewStringValue(leaving)
	}
	if len(fields) == 0 {
		return nil
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{metadata: {Fields: fields}}}
}

// Described is the inverse of Describe for an Envoy cluster. It also returns the Envoy cluster without the description.
// ok is false for any other resource. Only the name, the zone, the change and, from the Envoy cluster, the peer address
// of the gateway are set.
func Described(resource *anypb.Any) (g model.Gateway, perTunnel int, plain *anypb.Any, ok bool) {
	c := &clusterv3.Cluster{}
	if resource.UnmarshalTo(c) != nil {
		return g, 0, resource, false
	}
	if g.Name, ok = Parse(c.GetName()); !ok {
		return g, 0, resource, false
	}
	fields := c.GetMetadata().GetFilterMetadata()[metadata].GetFields()
	perTunnel, _ = strconv.Atoi(fields[countField].GetStringValue())
	g.Joining = fields[changeField].GetStringValue() == joining
	g.Leaving = fields[changeField].GetStringValue() == leaving
	g.Zone = fields[zoneField].GetStringValue()
	g.Peer = dialled(c)
	c.Metadata = nil
	return g, perTunnel, typed.Pack(c), true
}

// dialled returns the one address of an Envoy cluster; zero: it has none.
func dialled(c *clusterv3.Cluster) model.Endpoint {
	for _, group := range c.GetLoadAssignment().GetEndpoints() {
		for _, host := range group.GetLbEndpoints() {
			at := host.GetEndpoint().GetAddress().GetSocketAddress()
			return model.Endpoint{Host: at.GetAddress(), Port: uint16(at.GetPortValue())}
		}
	}
	return model.Endpoint{}
}

// Listener returns the internal listener for another gateway. proxy is a TCP proxy to Cluster.
func Listener(gateway string, proxy *tcpproxyv3.TcpProxy) *listenerv3.Listener {
	return typed.InternalListener(Name(gateway), "peers", typed.NetworkFilter("envoy.filters.network.tcp_proxy", proxy))
}

// Forward changes an Envoy cluster of a tunnel such that it forwards to other gateways, and uses no reverse tunnel. to
// has at least one group of at least one gateway, the preferred group first: the clients of a group that fails use the
// next one, as nearest.Prefer describes. It keeps the name and the limits, and with them the limits that an agent has
// set for that name in Envoy's runtime. options are the HTTP options of connections to other gateways.
func Forward(c *clusterv3.Cluster, to [][]string, options *upstreamhttpv3.HttpProtocolOptions) {
	var groups [][]*endpointv3.LbEndpoint
	for _, group := range to {
		var hosts []*endpointv3.LbEndpoint
		for _, gateway := range group {
			hosts = append(hosts, typed.InternalHost(Name(gateway)))
		}
		groups = append(groups, hosts)
	}
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	c.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
	nearest.Prefer(c, groups...)
	nearest.SkipRefusals(c, options, RefusedHeader)
	c.LbSubsetConfig = &clusterv3.Cluster_LbSubsetConfig{
		FallbackPolicy: clusterv3.Cluster_LbSubsetConfig_ANY_ENDPOINT, // without SecondHop
		SubsetSelectors: []*clusterv3.Cluster_LbSubsetConfig_LbSubsetSelector{{
			Keys: []string{hop}, FallbackPolicy: clusterv3.Cluster_LbSubsetConfig_LbSubsetSelector_NO_FALLBACK,
		}},
	}
	c.TransportSocket = nil
	options.HttpFilters = []*hcmv3.HttpFilter{
		typed.HTTPFilter("cluster", &headermutationv3.HeaderMutation{Mutations: &headermutationv3.Mutations{
			RequestMutations: []*mutationv3.HeaderMutation{{
				Action: &mutationv3.HeaderMutation_Append{Append: AddCluster(c.GetName())},
			}},
		}}),
		typed.HTTPFilter("envoy.filters.http.upstream_codec", &codecv3.UpstreamCodec{}),
	}
	c.TypedExtensionProtocolOptions = typed.HTTPOptions(options)
}

// AddCluster sets ClusterHeader.
func AddCluster(value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: ClusterHeader, Value: value},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// Forwards reports whether a gateway forwards clients for which it has no reverse tunnel, by its SNIListener: the TCP
// proxy adds ClusterHeader. It is false for nil.
func Forwards(resource *anypb.Any) bool {
	l := &listenerv3.Listener{}
	if resource.UnmarshalTo(l) != nil {
		return false
	}
	for _, chain := range l.GetFilterChains() {
		for _, f := range chain.GetFilters() {
			proxy := &tcpproxyv3.TcpProxy{}
			if f.GetTypedConfig().UnmarshalTo(proxy) == nil && len(proxy.GetTunnelingConfig().GetHeadersToAdd()) > 0 {
				return true
			}
		}
	}
	return false
}

// Retry changes a retry policy so that a client that one gateway cannot serve is forwarded to the next.
func Retry(policy *routev3.RetryPolicy) *routev3.RetryPolicy {
	return typed.RetryAnswers(policy, RefusedHeader)
}

// Manager makes an HTTP connection manager accept the CONNECT of other gateways. names is a regular expression of the
// Envoy clusters to which they may lead. retry is the policy for an attempt that finds no free lane: everything else is
// retried by the other gateway, at the next one.
func Manager(manager *hcmv3.HttpConnectionManager, names string, retry *routev3.RetryPolicy) {
	match := typed.ConnectMatch()
	match.Headers = []*routev3.HeaderMatcher{{
		Name: ClusterHeader,
		HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: names}},
		}},
	}}
	host := manager.GetRouteConfig().GetVirtualHosts()[0]
	host.Routes = []*routev3.Route{{
		Match:                  match,
		RequestHeadersToRemove: []string{ClusterHeader},
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier:            &routev3.RouteAction_ClusterHeader{ClusterHeader: ClusterHeader},
			ClusterNotFoundResponseCode: routev3.RouteAction_NOT_FOUND,
			MetadataMatch:               SecondHop(),
			Timeout:                     durationpb.New(0), // a connection lasts until one of its ends closes
			RetryPolicy:                 retry,
		}},
	}}
	manager.LocalReplyConfig = &hcmv3.LocalReplyConfig{Mappers: []*hcmv3.ResponseMapper{{
		Filter: &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
			ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: refused()},
		}},
		HeadersToAdd: []*corev3.HeaderValueOption{{
			Header: &corev3.HeaderValue{Key: RefusedHeader, Value: "no-tunnel"},
		}},
	}}}
	manager.CodecType = hcmv3.HttpConnectionManager_HTTP2
	// An agent distinguishes clients by SNI and by CONNECT by the request id, which only an HTTP connection manager
	// adds.
	manager.GenerateRequestId = wrapperspb.Bool(false)
}

// refused are Envoy's flags of clients that get RefusedHeader. No data of a client has been sent when it gets an answer
// of the gateway, so another gateway may serve it. There is no flag of limits (UO), which must not be circumvented.
func refused() []string {
	return []string{
		"NC", // no Envoy cluster, because this gateway does not know it yet
		"UH", // no reverse tunnel, or SecondHop
		// No reverse tunnel either: Envoy 1.40 uses an address that does not exist for a tunnel id that it has not had
		// since its start.
		"UF",
		"UC", "UR", "LR", // the reverse tunnel has ended, or its stream was reset
	}
}

// SecondHop is the metadata of the routes of forwarded clients.
func SecondHop() *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		lbMetadata: {Fields: map[string]*structpb.Value{hop: structpb.NewStringValue("second")}},
	}}
}
