package envoy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	fileaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	listenproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	directresponsev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/direct_response/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/proxy_protocol/v3"
	rawbufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/envoy/typed"
)

// Operators of Envoy's access log for the addresses of the kernel's socket, whatever a PROXY header contains.
const (
	directRemoteAddress = "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS%"
	directLocalAddress  = "%DOWNSTREAM_DIRECT_LOCAL_ADDRESS%"
)

// ProxyProtocol configures a gateway that edges reach through load balancers which send the address of each client in
// a PROXY header, version 1 or 2. The zero value is a gateway without it.
type ProxyProtocol struct {
	Balancers []netip.Prefix // networks of the load balancers; none: connections have no PROXY header
	// Gateways are the networks of the other gateways, which relay reverse tunnels to this one with such a header.
	Gateways []netip.Prefix
}

// Enabled reports whether connections to the public listener have a PROXY header.
func (p ProxyProtocol) Enabled() bool { return len(p.Balancers) > 0 }

// Trusts reports whether the PROXY header of a connection from an address decides its source.
func (p ProxyProtocol) Trusts(from netip.Addr) bool {
	return p.Enabled() && slices.ContainsFunc(p.networks(), func(n netip.Prefix) bool {
		return n.Contains(from.Unmap().WithZone(""))
	})
}

func (p ProxyProtocol) networks() []netip.Prefix { return slices.Concat(p.Balancers, p.Gateways) }

// Form identifies the form of a resource with these settings; empty: they change nothing.
func (p ProxyProtocol) Form() string {
	if !p.Enabled() {
		return ""
	}
	sum := sha256.Sum256(fmt.Append(nil, p.Balancers, p.Gateways))
	return "-proxy-1-" + hex.EncodeToString(sum[:8])
}

// Accept returns a gateway's public listener, with the filters of AddAdmission, as one that requires a PROXY header of
// every connection. The header decides the source of a connection from a load balancer, and from another gateway if the
// connection is for a reverse tunnel to this gateway. Each other connection goes to a filter chain that calls the agent
// for the address of its socket, within the rate that a flood may have, and closes it.
//
// Records of reverse tunnels have the addresses in the header: Envoy 1.40 does not keep those of the socket, which all
// other records have.
func (p ProxyProtocol) Accept(resource *anypb.Any) *anypb.Any {
	l := &listenerv3.Listener{}
	if !p.Enabled() || resource.UnmarshalTo(l) != nil || l.GetName() != publicListener {
		return resource
	}
	l.ListenerFilters = slices.Insert(l.GetListenerFilters(), 0, readAddress())
	flood := tunnelRate(l) // the first limit of each filter chain is for floods
	balancers, trusted := typed.CIDRRanges(p.Balancers), typed.CIDRRanges(p.networks())
	for _, chain := range l.GetFilterChains() {
		if chain.FilterChainMatch == nil {
			chain.FilterChainMatch = &listenerv3.FilterChainMatch{}
		}
		chain.FilterChainMatch.DirectSourcePrefixRanges = balancers
		if record.Owner(chain) == record.OwnerTunnel {
			chain.FilterChainMatch.DirectSourcePrefixRanges = trusted
		}
	}
	l.DefaultFilterChain = &listenerv3.FilterChain{Name: "untrusted", Filters: []*listenerv3.Filter{
		connectionLimit("backstop", flood), callForConnection("%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%", false),
		typed.NetworkFilter("envoy.filters.network.direct_response", &directresponsev3.Config{}),
	}}
	return typed.Pack(l)
}

// PeerAddresses returns the IP addresses and DNS names at which an Envoy cluster reaches another gateway. It returns
// nil for any other resource.
func PeerAddresses(resource *anypb.Any) (hosts []string) {
	c := &clusterv3.Cluster{}
	if resource.UnmarshalTo(c) != nil {
		return nil
	}
	if _, ok := PeerOf(c.GetName()); !ok {
		return nil
	}
	for _, group := range c.GetLoadAssignment().GetEndpoints() {
		for _, e := range group.GetLbEndpoints() {
			hosts = append(hosts, e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress())
		}
	}
	return hosts
}

// recordSocket makes the last filter of a filter chain record the addresses of the socket, because the agent compares
// records with the kernel's sockets.
func recordSocket(chain *listenerv3.FilterChain) {
	for _, f := range chain.GetFilters() {
		proxy, manager := &tcpproxyv3.TcpProxy{}, &hcmv3.HttpConnectionManager{}
		switch {
		case f.GetTypedConfig().UnmarshalTo(proxy) == nil:
			recordsOfSocket(proxy.GetAccessLog())
			f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: typed.Pack(proxy)}
		case f.GetTypedConfig().UnmarshalTo(manager) == nil:
			recordsOfSocket(manager.GetAccessLog())
			f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: typed.Pack(manager)}
		}
	}
}

// recordsOfSocket makes the records among access logs have the addresses of the socket.
func recordsOfSocket(logs []*accesslogv3.AccessLog) {
	for _, log := range logs {
		file := &fileaccesslogv3.FileAccessLog{}
		if log.GetTypedConfig().UnmarshalTo(file) == nil && file.GetPath() == record.TunnelLog {
			ofSocket(file.GetLogFormat().GetJsonFormat().GetFields())
			log.ConfigType = &accesslogv3.AccessLog_TypedConfig{TypedConfig: typed.Pack(file)}
		}
	}
}

// ofSocket makes a record have the addresses of the socket.
func ofSocket(fields map[string]*structpb.Value) {
	fields["peer"] = structpb.NewStringValue(directRemoteAddress)
	fields["local"] = structpb.NewStringValue(directLocalAddress)
}

// Send returns the Envoy cluster of another gateway such that each relayed connection begins with a PROXY header with
// the source of the connection that it relays.
func (p ProxyProtocol) Send(resource *anypb.Any) *anypb.Any {
	c := &clusterv3.Cluster{}
	if !p.Enabled() || resource.UnmarshalTo(c) != nil {
		return resource
	}
	c.TransportSocket = sendAddress()
	return typed.Pack(c)
}

// readAddress requires a PROXY header, version 1 or 2, at the begin of each connection, and takes the client's address
// from it.
func readAddress() *listenerv3.ListenerFilter {
	return &listenerv3.ListenerFilter{
		Name:       "envoy.filters.listener.proxy_protocol",
		ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: typed.Pack(&listenproxyv3.ProxyProtocol{})},
	}
}

// sendAddress sends the client's address before each connection (PROXY protocol, version 2).
func sendAddress() *corev3.TransportSocket {
	config := &proxyprotocolv3.ProxyProtocolUpstreamTransport{
		Config:          &corev3.ProxyProtocolConfig{Version: corev3.ProxyProtocolConfig_V2},
		TransportSocket: transportSocket("envoy.transport_sockets.raw_buffer", &rawbufferv3.RawBuffer{}),
	}
	return transportSocket("envoy.transport_sockets.upstream_proxy_protocol", config)
}
