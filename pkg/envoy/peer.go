package envoy

import (
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	upstreamhttpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fairlead/fairlead/pkg/envoy/accesslog"
	"github.com/fairlead/fairlead/pkg/envoy/multiplex"
	"github.com/fairlead/fairlead/pkg/envoy/peers"
	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

// forwardedName is a regular expression of the Envoy clusters to which gateways forward clients: of tunnels only.
const forwardedName = `((network|apiserver)/)?` + dnsNamePattern

// forwards reports whether the gateways of an installation forward clients to each other. Otherwise they receive
// nothing for it.
func forwards(inst model.Installation, version Version) bool {
	return inst.GatewaysPerTunnel > 0 && version.has(forwarded)
}

// peerListeners returns the internal listeners of a gateway for the others.
func peerListeners(inst model.Installation, me string, version Version) (all []*listenerv3.Listener) {
	for _, g := range inst.Gateways {
		if forwards(inst, version) && g.Name != me && g.Peer != (model.Endpoint{}) {
			all = append(all, peers.Listener(g.Name, tcpProxy("peers", peers.Name(g.Name))))
		}
	}
	return all
}

// PeerClusters returns the Envoy clusters by which gateways forward clients to each other. They are among those of
// GatewayClusters if the gateways forward.
func PeerClusters(inst model.Installation) (all []*clusterv3.Cluster) {
	for _, g := range inst.Gateways {
		if g.Peer != (model.Endpoint{}) {
			all = append(all, forwardedCluster(inst, g))
		}
	}
	return all
}

// forwardedCluster encrypts connections for another gateway.
func forwardedCluster(inst model.Installation, g model.Gateway) *clusterv3.Cluster {
	c := dialledCluster(peers.Name(g.Name), g.Peer, tunnelKeepalive())
	c.ConnectTimeout = durationpb.New(gatewayTimeout)
	self := model.Subject{Role: model.RoleGateway}
	c.TransportSocket = clientTLSBy(self, inst.Domain.Peers(), inst.Domain.GatewayReplica(g.Name), "h2")
	noticeSilence(c)
	c.Metadata = peers.Describe(g, inst.GatewaysPerTunnel)
	return c
}

// noticeSilence has connections of an Envoy cluster end soon after the other machine no longer acknowledges data. The
// pings of the HTTP/2 connections in them are such data: see multiplex.Peer and multiplex.PingOften.
func noticeSilence(c *clusterv3.Cluster) {
	const userTimeout = 18 // TCP_USER_TIMEOUT of Linux
	c.UpstreamBindConfig = tcpOption("TCP_USER_TIMEOUT", userTimeout, peerSilence.Milliseconds())
}

// peerChain returns the filter chain of the public listener for clients that other gateways forward.
func peerChain(inst model.Installation, me string, version Version) []*listenerv3.FilterChain {
	others := slices.ContainsFunc(inst.Gateways, func(g model.Gateway) bool { return g.Name != me })
	if !others || !forwards(inst, version) {
		return nil
	}
	manager := connectManager(record.OwnerPeer, nil)
	peers.Manager(manager, forwardedName, retry(peerAttempts, lostBackoff))
	manager.Http2ProtocolOptions = multiplex.Edge()
	manager.RequestHeadersTimeout = durationpb.New(helloTimeout)
	manager.AccessLog = append(
		accesslog.Finished(accesslog.Of(inst.AccessLog, record.OwnerPeer, true)), record.Requests(record.OwnerPeer),
	)
	manager.AccessLogOptions = &hcmv3.HttpConnectionManager_HcmAccessLogOptions{FlushAccessLogOnNewRequest: true}
	chain := chainFor(inst.Domain.Peers(), managerFilter(manager))
	chain.TransportSocket = serverTLS(
		model.Subject{Role: model.RoleGateway, Node: me}, exactly(inst.Domain.Gateway()), "h2",
	)
	chain.TransportSocketConnectTimeout = durationpb.New(handshakeTimeout)
	return []*listenerv3.FilterChain{chain}
}

// Forward returns the Envoy cluster of a tunnel as one that forwards to other gateways: see peers.Forward.
func (t Tunnel) Forward(to [][]string) *anypb.Any {
	c := &clusterv3.Cluster{}
	if t.Plain.UnmarshalTo(c) != nil {
		return t.Plain
	}
	peers.Forward(c, to, &upstreamhttpv3.HttpProtocolOptions{
		CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(multiplex.UnusedAfter)},
		UpstreamProtocolOptions: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
					Http2ProtocolOptions: multiplex.Peer(),
				},
			},
		},
	})
	return typed.Pack(c)
}
