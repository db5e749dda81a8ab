package policy_test

import (
	"strings"
	"testing"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	dfpclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dynamic_forward_proxy/v3"
	dfpcachev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/dynamic_forward_proxy/v3"
	dfpfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/dynamic_forward_proxy/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	headermutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	caresv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/network/dns_resolver/cares/v3"
	upstreamhttpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

// networkSample contains the resources of networks of an edge, of the Envoy beside an apiserver, and of a gateway.
type networkSample struct {
	tunnel, local, socket, public *listenerv3.Listener
	reach, egress, dialled        *clusterv3.Cluster
	scope                         *routev3.ScopedRouteConfiguration
}

func newNetworkSample() networkSample {
	inst, wc := ownInstallation(), ownNetwork()
	inst.Gateways = inst.Gateways[:2]
	apiservers := model.WorkloadCluster{ID: egressID, Egress: true}
	listeners := envoy.EdgeListeners(inst, wc, ownEdge.Node, local)
	bind := envoy.GatewayBind{Public: everywhere, APIServer: everywhere, Connect: everywhere, Version: envoy.Current}
	denied := model.Denied{Edges: []model.EdgeRef{{Node: "edge-b", ID: "bbbbbbbbbbbbbbbbbbbb"}}}
	return networkSample{
		tunnel: listeners[0], local: listeners[2], reach: envoy.EdgeClusters(inst, wc, ownEdge.Node, local)[0],
		socket:  envoy.EdgeListeners(inst, apiservers, ownEgress.Node, local)[0],
		egress:  envoy.EdgeClusters(inst, apiservers, ownEgress.Node, local)[0],
		public:  envoy.GatewayListeners(inst, ownGateway.Node, bind, denied)[0],
		dialled: envoy.TunnelClusters(inst, wc)[1],
		scope:   envoy.NetworkScope(ownInstallation(), egressID, networks()),
	}
}

// rejections returns the errors of the three agents for a sample.
func (s networkSample) rejections(t *testing.T) string {
	t.Helper()
	var got []string
	edge, egress, gateway := networkPolicy(), egressPolicy(), gatewayPolicy(everywhere)
	for _, one := range []struct {
		check func(m proto.Message) error
		m     proto.Message
	}{
		{func(m proto.Message) error { return edge.Check(wrapped(t, m)) }, s.tunnel},
		{func(m proto.Message) error { return edge.Check(wrapped(t, m)) }, s.local},
		{func(m proto.Message) error { return edge.Check(wrapped(t, m)) }, s.reach},
		{func(m proto.Message) error { return egress.Check(wrapped(t, m)) }, s.socket},
		{func(m proto.Message) error { return egress.Check(wrapped(t, m)) }, s.egress},
		{func(m proto.Message) error { return gateway.Check(wrapped(t, m)) }, s.public},
		{func(m proto.Message) error { return gateway.Check(wrapped(t, m)) }, s.dialled},
		{func(m proto.Message) error { return gateway.Check(wrapped(t, m)) }, s.scope},
	} {
		if err := one.check(one.m); err != nil {
			got = append(got, err.Error())
		}
	}
	return strings.Join(got, "\n")
}

// TestAPolicyRejectsEveryKnownAttackOnNetworks tries resources of a compromised xds-server that Fairlead never renders.
func TestAPolicyRejectsEveryKnownAttackOnNetworks(t *testing.T) {
	type attack = func(*testing.T, networkSample)
	filter := func(name string, change func(*dfpfilterv3.FilterConfig)) attack {
		return func(t *testing.T, s networkSample) {
			inside(t, lastFilter(s.tunnel, 0), func(m *hcmv3.HttpConnectionManager) {
				for _, f := range m.HttpFilters {
					if f.GetName() == name {
						inside(t, f.GetTypedConfig(), change)
					}
				}
			})
		}
	}
	cache := func(change func(*dfpcachev3.DnsCacheConfig)) attack {
		return func(t *testing.T, s networkSample) {
			inside(t, s.reach.GetClusterType().GetTypedConfig(), func(c *dfpclusterv3.ClusterConfig) {
				change(c.GetDnsCacheConfig())
			})
		}
	}
	checks := func(change func(*upstreamhttpv3.HttpProtocolOptions)) attack {
		return func(t *testing.T, s networkSample) {
			inside(t, s.reach.GetTypedExtensionProtocolOptions()[typed.HTTPProtocols], change)
		}
	}
	adds := func(address string, bits uint32) func(*dfpcachev3.DnsCacheConfig) {
		return func(c *dfpcachev3.DnsCacheConfig) {
			f := c.GetResolvedAddressFilter()
			f.Ranges = append(f.Ranges, &xdscorev3.CidrRange{AddressPrefix: address, PrefixLen: wrapperspb.UInt32(bits)})
		}
	}
	host := func(change func(*routev3.VirtualHost)) attack {
		return func(t *testing.T, s networkSample) {
			inside(t, lastFilter(s.tunnel, 0), func(m *hcmv3.HttpConnectionManager) {
				change(m.GetRouteConfig().VirtualHosts[0])
			})
		}
	}
	chain := func(name string, change func(*hcmv3.HttpConnectionManager)) attack {
		return func(t *testing.T, s networkSample) {
			for i, c := range s.public.FilterChains {
				if c.GetName() == name+"."+string(domain) {
					inside(t, lastFilter(s.public, i), change)
				}
			}
		}
	}
	identity := func(change func(*corev3.HeaderValueOption)) attack {
		return chain("egress", func(m *hcmv3.HttpConnectionManager) {
			inside(t, m.EarlyHeaderMutationExtensions[0].GetTypedConfig(), func(h *headermutationv3.HeaderMutation) {
				change(h.Mutations[0].GetAppend())
			})
		})
	}
	to := func(cluster string) attack {
		return func(_ *testing.T, s networkSample) {
			s.scope.RouteConfiguration.VirtualHosts[0].Routes[0].GetRoute().ClusterSpecifier = &routev3.RouteAction_Cluster{
				Cluster: cluster,
			}
		}
	}
	for name, tc := range map[string]struct {
		change  attack
		wantErr string
	}{
		"metadata services":          {cache(adds("169.254.0.0", 16)), "no edge dials 169.254.0.0/16"},
		"one metadata service":       {cache(adds("100.100.100.200", 32)), "no edge dials"},
		"the machine itself":         {cache(adds("127.0.0.1", 32)), "no edge dials 127.0.0.0/8"},
		"the machine itself by IPv6": {cache(adds("::1", 128)), "no edge dials"},
		"IPv4 written as IPv6":       {cache(adds("::ffff:169.254.169.254", 128)), "invalid"},
		"all addresses":              {cache(adds("0.0.0.0", 0)), "no edge dials"},
		"bits behind the prefix":     {cache(adds("10.1.2.3", 8)), "invalid"},
		"a prefix that is too long":  {cache(adds("10.1.2.3", 33)), "invalid"},
		"the same for targets": {
			filter("targets", func(c *dfpfilterv3.FilterConfig) { adds("127.0.0.0", 8)(c.GetDnsCacheConfig()) }),
			"no edge dials",
		},
		"no restriction": {
			cache(func(c *dfpcachev3.DnsCacheConfig) { c.ResolvedAddressFilter = nil }), "resolved_address_filter is missing",
		},
		"a restriction to all others": {
			cache(func(c *dfpcachev3.DnsCacheConfig) { c.ResolvedAddressFilter.InvertMatch = false }), "no edge dials",
		},
		"a list of addresses to remove that lacks one": {cache(func(c *dfpcachev3.DnsCacheConfig) {
			c.ResolvedAddressFilter = &matcherv3.AddressMatcher{}
			for _, p := range model.NeverDialled()[1:] {
				adds(p.Addr().String(), uint32(p.Bits()))(c)
			}
		}), "no edge dials " + model.NeverDialled()[0].String()},
		"a list of addresses to remove that is long": {cache(func(c *dfpcachev3.DnsCacheConfig) {
			c.ResolvedAddressFilter = &matcherv3.AddressMatcher{}
			for range 257 {
				adds("0.0.0.0", 0)(c)
			}
		}), "not restricted to a list"},
		"an empty list of addresses to remove": {cache(func(c *dfpcachev3.DnsCacheConfig) {
			c.ResolvedAddressFilter = &matcherv3.AddressMatcher{}
		}), "ranges is missing"},
		"a resolver elsewhere": {cache(func(c *dfpcachev3.DnsCacheConfig) {
			inside(t, c.TypedDnsResolverConfig.GetTypedConfig(), func(r *caresv3.CaresDnsResolverConfig) {
				r.Resolvers = []*corev3.Address{pipe("x")}
			})
		}), "resolvers is set"},
		"names that are resolved without a request": {cache(func(c *dfpcachev3.DnsCacheConfig) {
			c.PreresolveHostnames = []*corev3.SocketAddress{{Address: "metadata"}}
		}), "preresolve_hostnames is set"},
		"a destination from somewhere else": {
			filter("targets", func(c *dfpfilterv3.FilterConfig) { c.AllowDynamicHostFromFilterState = true }),
			"allow_dynamic_host_from_filter_state is set",
		},
		"a target in a header": {host(func(h *routev3.VirtualHost) {
			h.TypedPerFilterConfig["targets"] = wrapped(t, &dfpfilterv3.PerRouteConfig{
				HostRewriteSpecifier: &dfpfilterv3.PerRouteConfig_HostRewriteHeader{HostRewriteHeader: "x"},
			})
		}), "host_rewrite_header is set"},
		"a filter that the owner adds is disabled": {host(func(h *routev3.VirtualHost) {
			h.TypedPerFilterConfig["owner"] = wrapped(t, &routev3.FilterConfig{Disabled: true})
		}), "virtual_hosts."},
		"a filter that checks addresses is disabled": {host(func(h *routev3.VirtualHost) {
			h.TypedPerFilterConfig["permitted"] = wrapped(t, &routev3.FilterConfig{Disabled: true})
		}), "virtual_hosts."},
		"no filter checks addresses": {checks(func(o *upstreamhttpv3.HttpProtocolOptions) {
			o.HttpFilters = o.HttpFilters[2:]
		}), "http_filters"},
		"a filter before the checks": {checks(func(o *upstreamhttpv3.HttpProtocolOptions) {
			o.HttpFilters = append(o.HttpFilters[2:], o.HttpFilters...)
		}), "http_filters"},
		"a route to the agent": {host(func(h *routev3.VirtualHost) {
			h.Routes[0].GetRoute().ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: "agent"}
		}), `cluster is "agent"`},

		"a local listener elsewhere": {
			func(_ *testing.T, s networkSample) { s.local.Address.GetSocketAddress().Address = "0.0.0.0" }, "does not listen at",
		},
		"a local listener at another port": {func(_ *testing.T, s networkSample) {
			s.local.Address.GetSocketAddress().PortSpecifier = &corev3.SocketAddress_PortValue{PortValue: 22}
		}, "does not listen at"},
		"a local listener with a new name": {
			func(_ *testing.T, s networkSample) { s.local.Name = "local_edge-a.1_0.0.0.0:6443" }, "does not belong",
		},
		"a local listener on a socket": {
			func(_ *testing.T, s networkSample) { s.local.Address = pipe("/run/x.sock") }, "pipe is set",
		},
		"a local listener to the agent": {func(t *testing.T, s networkSample) {
			inside(t, lastFilter(s.local, 0), func(p *tcpproxyv3.TcpProxy) {
				p.ClusterSpecifier = &tcpproxyv3.TcpProxy_Cluster{Cluster: "agent"}
			})
		}, `cluster is "agent"`},
		"a socket elsewhere": {
			func(_ *testing.T, s networkSample) { s.socket.Address.GetPipe().Path = "/run/docker.sock" }, "path is",
		},
		"a socket for all users": {
			func(_ *testing.T, s networkSample) { s.socket.Address.GetPipe().Mode = 0o666 }, "mode is",
		},
		"an address beside the socket": {func(_ *testing.T, s networkSample) {
			s.socket.Address = &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address: "0.0.0.0", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 1},
			}}}
		}, "socket_address is set"},
		"an apiserver without TLS": {
			func(_ *testing.T, s networkSample) { s.egress.TransportSocket = nil }, "transport_socket is missing",
		},

		"a scope that leads to a tunnel":   {to("c1.prod.tunnels.example.com"), "cluster is"},
		"a scope that leads to an agent":   {to("agent"), "cluster is"},
		"a scope that leads to apiservers": {to("apiserver/aaaaaaaaaaaaaaaaaaaa.id.tunnels.example.com"), "cluster is"},
		"a scope of another apiserver": {func(_ *testing.T, s networkSample) {
			s.scope.Key.Fragments[0].Type = &routev3.ScopedRouteConfiguration_Key_Fragment_StringKey{
				StringKey: "bbbbbbbbbbbbbbbbbbbb.egress.tunnels.example.com",
			}
		}, "the key is not the name"},
		"a scope that comes later": {
			func(_ *testing.T, s networkSample) { s.scope.RouteConfigurationName = "x" }, "route_configuration_name is set",
		},
		"a scope on demand": {func(_ *testing.T, s networkSample) { s.scope.OnDemand = true }, "on_demand is set"},
		"an identity that the client states": {identity(func(o *corev3.HeaderValueOption) {
			o.Header.Value = "%REQ(X-IDENTITY)%"
		}), "value is"},
		"an identity beside the leaf's": {identity(func(o *corev3.HeaderValueOption) {
			o.AppendAction = corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD
		}), "append_action is missing"},
		"no identity": {
			chain("forward", func(m *hcmv3.HttpConnectionManager) { m.EarlyHeaderMutationExtensions = nil }),
			"early_header_mutation_extensions is missing",
		},
		"no records": {chain("egress", func(m *hcmv3.HttpConnectionManager) { m.AccessLog = nil }), "access_log is missing"},
		"records of the end alone": {
			chain("forward", func(m *hcmv3.HttpConnectionManager) { m.AccessLogOptions = nil }), "access_log_options is missing",
		},
		"apiservers with any leaf": {func(_ *testing.T, s networkSample) {
			for _, c := range s.public.FilterChains {
				if c.GetName() == "egress."+string(domain) {
					c.TransportSocket = s.public.FilterChains[0].TransportSocket
				}
			}
		}, "suffix is"},
		"a socket of the gateway": {
			func(_ *testing.T, s networkSample) { endpointOf(s.dialled).Address = pipe("agent.sock") }, "pipe is set",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newNetworkSample()
			if got := s.rejections(t); got != "" {
				t.Fatalf("the unchanged sample is rejected: %s", got)
			}
			tc.change(t, s)
			if got := s.rejections(t); !strings.Contains(got, tc.wantErr) {
				t.Errorf("got %q, want an error with %q", got, tc.wantErr)
			}
		})
	}
}

// TestOnlyItsOwnerOpensListenersOfAnEdge has an edge and an apiserver whose owners asked for none.
func TestOnlyItsOwnerOpensListenersOfAnEdge(t *testing.T) {
	s := newNetworkSample()
	for _, l := range []*listenerv3.Listener{s.local, s.socket} {
		if edgePolicy().Check(wrapped(t, l)) == nil {
			t.Errorf("an edge opens %s", l.GetName())
		}
	}
	if egressPolicy().Check(wrapped(t, s.tunnel)) == nil {
		t.Error("the Envoy beside an apiserver opens a reverse tunnel")
	}
}
