package policy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	accessv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/policy"
	"github.com/fairlead/fairlead/pkg/model"
)

const domain model.TunnelDomain = "tunnels.example.com"

var (
	ownEdge    = model.Subject{Role: model.RoleEdge, Node: "edge-a.1", ID: "aaaaaaaaaaaaaaaaaaaa"}
	ownGateway = model.Subject{Role: model.RoleGateway, Node: "gateway-1"}
)

func ownInstallation() model.Installation {
	inst := model.Installation{
		Domain: domain, Public: model.Endpoint{Host: "gw.example.com", Port: 443},
		Control: model.Endpoint{Host: "xds-server.fairlead.svc", Port: 18000},
	}
	inst.Workers = 4
	for i := range 12 {
		inst.Gateways = append(
			inst.Gateways,
			model.Gateway{Name: fmt.Sprintf("gateway-%d", i), Peer: model.Endpoint{Host: "192.0.2.10", Port: uint16(1 + i)}},
		)
	}
	return inst
}

func ownCluster() model.WorkloadCluster {
	return model.WorkloadCluster{
		ID:         ownEdge.ID,
		Hostname:   "c1.prod.tunnels.example.com",
		ExtraNames: []string{"api.c1.example.org"},
		APIServer:  model.Endpoint{Host: "10.0.0.1", Port: 6443},
	}
}

func TestAllRenderedEdgeResourcesAreAllowed(t *testing.T) {
	name := model.Endpoint{Host: "api_1.example.com", Port: 6443}
	others := []model.Endpoint{{Host: "10.0.0.2", Port: 6443}, {Host: "2001:db8::1", Port: 443}}
	dials := map[string]envoy.EdgeDial{
		"nothing of its own": {},
		"a proxy":            {Gateways: []model.Endpoint{{Host: "127.0.0.1", Port: 40000}}},
		"a short way":        {Near: true},
		"many addresses": {
			Gateways:   []model.Endpoint{{Host: "::1", Port: 1}, name},
			APIServers: []model.Endpoint{name, {Host: "127.0.0.1", Port: 6443}},
		},
	}
	var edge []proto.Message
	for _, dial := range dials {
		for _, wc := range []model.WorkloadCluster{{APIServer: name}, {APIServer: others[1]}, {
			APIServer: others[0],
			Others:    append(others, name),
		}, {APIServer: others[0], Others: others}} {
			wc.ID, wc.Hostname = ownEdge.ID, "c1.prod.tunnels.example.com"
			for _, which := range []model.AccessLog{"", model.AccessLogFailed, model.AccessLogAll} {
				inst := ownInstallation()
				inst.AccessLog, inst.Lanes = which, 2
				for _, version := range []envoy.Version{envoy.Oldest, envoy.Current} {
					dial.Version = version
					edge = append(edge, messages(envoy.EdgeListeners(inst, wc, ownEdge.Node, dial))...)
				}
				wc.Limits.Bandwidth = 1 << 20
			}
			inst := ownInstallation()
			inst.Lanes, wc.Limits.Bandwidth = 2, 0
			edge = append(edge, messages(envoy.EdgeClusters(inst, wc, ownEdge.Node, dial))...)
		}
	}
	allowed := edgePolicy()
	for _, m := range edge {
		if err := allowed.Check(wrapped(t, m)); err != nil {
			t.Error(err)
		}
	}
}

func TestAllRenderedGatewayResourcesAreAllowed(t *testing.T) {
	single := ownInstallation()
	single.Gateways, single.Control = []model.Gateway{{Name: ownGateway.Node}}, model.Endpoint{Host: "::1", Port: 1}
	denied := model.Denied{
		Edges: []model.EdgeRef{{Node: "edge-b", ID: "bbbbbbbbbbbbbbbbbbbb"}, {Node: "a.b", ID: "cccccccccccccccccccc"}},
		IDs:   []string{"bbbbbbbbbbbbbbbbbbbb"},
	}
	all := ownInstallation()
	all.Lanes, all.GatewaysPerTunnel = 2, 3
	for _, inst := range []model.Installation{ownInstallation(), single, all} {
		for i, host := range []string{"0.0.0.0", "::", "127.0.0.1", "2001:db8::2"} {
			inst.AccessLog = []model.AccessLog{"", model.AccessLogFailed, model.AccessLogAll, model.AccessLogFailed}[i]
			at := model.Endpoint{Host: host, Port: 8443}
			made := append(messages(envoy.GatewayClusters(inst)), messages(envoy.TunnelClusters(inst, ownCluster()))...)
			for _, d := range []model.Denied{{}, denied} {
				bind := envoy.GatewayBind{
					Public:    at,
					APIServer: at,
					Connect:   at,
					Version:   []envoy.Version{envoy.Oldest, envoy.Current}[i%2],
				}
				made = append(made, messages(envoy.GatewayListeners(inst, ownGateway.Node, bind, d))...)
			}
			allowed := gatewayPolicy(at)
			for _, m := range made {
				if err := allowed.Check(wrapped(t, m)); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

func edgePolicy() *policy.Policy { return policy.Of(policy.Scope{Domain: domain, Subject: ownEdge}) }

// gatewayPolicy returns the policy of a gateway that listens at one address.
func gatewayPolicy(at model.Endpoint) *policy.Policy {
	bind := envoy.GatewayBind{Public: at, APIServer: at, Connect: at}
	return policy.Of(policy.Scope{Domain: domain, Subject: ownGateway, Listens: bind})
}

func messages[M proto.Message](all []M) (out []proto.Message) {
	for _, m := range all {
		out = append(out, m)
	}
	return out
}

func wrapped(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	p, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// inside changes a message that is packed in another.
func inside[M proto.Message](t *testing.T, in *anypb.Any, change func(M)) {
	t.Helper()
	m, err := in.UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	change(m.(M))
	if err := in.MarshalFrom(m); err != nil {
		t.Fatal(err)
	}
}

func agentService() *corev3.GrpcService {
	return &corev3.GrpcService{
		TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: "agent"}},
	}
}

func TestAnEdgeAcceptsNothingElse(t *testing.T) {
	route := func(change func(*routev3.RouteAction)) func(*testing.T, *listenerv3.Listener, *clusterv3.Cluster) {
		return func(t *testing.T, l *listenerv3.Listener, _ *clusterv3.Cluster) {
			inside(t, l.FilterChains[0].Filters[0].GetTypedConfig(), func(m *hcmv3.HttpConnectionManager) {
				change(m.GetRouteConfig().VirtualHosts[0].Routes[0].GetRoute())
			})
		}
	}
	secrets := func(change func(*tlsv3.CommonTlsContext)) func(*testing.T, *listenerv3.Listener, *clusterv3.Cluster) {
		return func(t *testing.T, l *listenerv3.Listener, _ *clusterv3.Cluster) {
			inside(
				t, l.FilterChains[0].TransportSocket.GetTypedConfig(),
				func(m *tlsv3.DownstreamTlsContext) { change(m.CommonTlsContext) },
			)
		}
	}
	cluster := func(change func(*clusterv3.Cluster)) func(*testing.T, *listenerv3.Listener, *clusterv3.Cluster) {
		return func(_ *testing.T, _ *listenerv3.Listener, c *clusterv3.Cluster) { change(c) }
	}
	listener := func(change func(*listenerv3.Listener)) func(*testing.T, *listenerv3.Listener, *clusterv3.Cluster) {
		return func(_ *testing.T, l *listenerv3.Listener, _ *clusterv3.Cluster) { change(l) }
	}
	at := func(address string) func(*testing.T, *listenerv3.Listener, *clusterv3.Cluster) {
		return listener(func(l *listenerv3.Listener) { l.Address.GetSocketAddress().Address = address })
	}
	tests := map[string]struct {
		change  func(*testing.T, *listenerv3.Listener, *clusterv3.Cluster)
		wantErr string // empty: accepted
	}{
		"nothing is changed": {change: cluster(func(*clusterv3.Cluster) {})},
		"another number, or time": {change: func(_ *testing.T, l *listenerv3.Listener, c *clusterv3.Cluster) {
			c.ConnectTimeout = durationpb.New(time.Minute)
			l.TcpBacklogSize = wrapperspb.UInt32(7)
		}},
		"a route to the agent": {
			change:  route(func(r *routev3.RouteAction) { r.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: "agent"} }),
			wantErr: `route.cluster is "agent"`,
		},
		"a route to another membership": {change: route(func(r *routev3.RouteAction) {
			r.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: "apiserver_edge-b"}
		}), wantErr: `cluster is "apiserver_edge-b"`},
		"a route that the client chooses": {change: route(func(r *routev3.RouteAction) {
			r.ClusterSpecifier = &routev3.RouteAction_ClusterHeader{ClusterHeader: "x"}
		}), wantErr: "cluster_header is set"},
		"a route to several": {change: route(func(r *routev3.RouteAction) {
			r.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: &routev3.WeightedCluster{}}
		}), wantErr: "weighted_clusters is set"},
		"a mirror": {change: route(func(r *routev3.RouteAction) {
			r.RequestMirrorPolicies = []*routev3.RouteAction_RequestMirrorPolicy{{Cluster: "agent"}}
		}), wantErr: "request_mirror_policies is set"},
		"a TCP proxy": {change: listener(func(l *listenerv3.Listener) {
			l.FilterChains[0].Filters = []*listenerv3.Filter{
				{Name: "x", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: wrapped(t, &tcpproxyv3.TcpProxy{
					ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: "agent"},
				})}},
			}
		}), wantErr: "filters."},
		"an access log": {change: listener(func(l *listenerv3.Listener) {
			l.AccessLog = []*accesslogv3.AccessLog{
				{ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: wrapped(t, &accessv3.TcpGrpcAccessLogConfig{
					CommonConfig: &accessv3.CommonGrpcAccessLogConfig{GrpcService: agentService()},
				})}},
			}
		}), wantErr: "access_log is set"},
		"the key of another membership": {
			change:  secrets(func(c *tlsv3.CommonTlsContext) { c.TlsCertificateSdsSecretConfigs[0].Name = "identity_edge-b" }),
			wantErr: `name is "identity_edge-b"`,
		},
		"its trust": {change: secrets(func(c *tlsv3.CommonTlsContext) {
			c.GetCombinedValidationContext().ValidationContextSdsSecretConfig.Name = "trust_edge-b"
		}), wantErr: `name is "trust_edge-b"`},
		"secrets of somewhere else": {change: secrets(func(c *tlsv3.CommonTlsContext) {
			source := c.TlsCertificateSdsSecretConfigs[0].SdsConfig.GetApiConfigSource()
			source.GrpcServices[0].GetEnvoyGrpc().ClusterName = "gateway-0_edge-a.1"
		}), wantErr: "cluster_name is"},
		"keys in a file": {
			change:  secrets(func(c *tlsv3.CommonTlsContext) { c.TlsCertificates = []*tlsv3.TlsCertificate{{}} }),
			wantErr: "tls_certificates is set",
		},
		"no TLS": {
			change:  listener(func(l *listenerv3.Listener) { l.FilterChains[0].TransportSocket = nil }),
			wantErr: "is missing",
		},

		"a listener for others": {change: at("0.0.0.0"), wantErr: `address is "0.0.0.0"`},
		"a listener on a socket": {
			change:  listener(func(l *listenerv3.Listener) { l.Address = pipe("x.sock") }),
			wantErr: "pipe is set",
		},
		"a listener without an address": {
			change:  listener(func(l *listenerv3.Listener) { l.Address = nil }),
			wantErr: "address is missing",
		},
		"a tunnel that listens besides": {
			change:  listener(func(l *listenerv3.Listener) { l.AdditionalAddresses = []*listenerv3.AdditionalAddress{{}} }),
			wantErr: "additional_addresses is set",
		},
		"a tunnel of the agent": {
			change:  at("rc://CN=edge-a.1:aaaaaaaaaaaaaaaaaaaa.id.tunnels.example.com:fairlead@agent:2"),
			wantErr: "@agent",
		},
		"more tunnels": {
			change: at("rc://CN=edge-a.1:aaaaaaaaaaaaaaaaaaaa.id.tunnels.example.com:fairlead@gateway-0_edge-a.1:128"),
		},
		"tunnels without number": {
			change:  at("rc://CN=edge-a.1:aaaaaaaaaaaaaaaaaaaa.id.tunnels.example.com:fairlead@gateway-0_edge-a.1:x"),
			wantErr: ":x",
		},
		"more tunnels than any configuration has": {
			change:  at("rc://CN=edge-a.1:aaaaaaaaaaaaaaaaaaaa.id.tunnels.example.com:fairlead@gateway-0_edge-a.1:10000"),
			wantErr: ":10000",
		},
		"a tunnel of another membership": {
			change:  at("rc://CN=edge-a.1:aaaaaaaaaaaaaaaaaaaa.id.tunnels.example.com:fairlead@gateway-0_edge-b:2"),
			wantErr: "edge-b",
		},
		"a tunnel of two memberships": {
			change:  at("rc://CN=edge-a.1:aaaaaaaaaaaaaaaaaaaa.id.tunnels.example.com:fairlead@gateway-0_edge-b:2_edge-a.1:2"),
			wantErr: "edge-b",
		},
		"a tunnel in the name of another": {
			change:  at("rc://CN=edge-b:aaaaaaaaaaaaaaaaaaaa.id.tunnels.example.com:fairlead@gateway-0_edge-a.1:2"),
			wantErr: "CN=edge-b",
		},
		"a name that only looks like ours": {
			change:  listener(func(l *listenerv3.Listener) { l.Name = "tunnel_edge-aX1_gateway-0" }),
			wantErr: "does not belong to this subject",
		},
		"the listener of another membership": {
			change:  listener(func(l *listenerv3.Listener) { l.Name = "tunnel_edge-b_gateway-0" }),
			wantErr: "does not belong to this subject",
		},

		"the agent itself": {
			change:  cluster(func(c *clusterv3.Cluster) { c.Name = "agent" }),
			wantErr: "does not belong to this subject",
		},
		"apiservers of another membership": {
			change:  cluster(func(c *clusterv3.Cluster) { c.Name = "apiserver_edge-b" }),
			wantErr: "does not belong to this subject",
		},
		"a socket of the machine": {
			change:  cluster(func(c *clusterv3.Cluster) { endpointOf(c).Address = pipe("agent.sock") }),
			wantErr: "pipe is set",
		},
		"an address only for health checks": {
			change: cluster(
				func(c *clusterv3.Cluster) { endpointOf(c).HealthCheckConfig = &endpointv3.Endpoint_HealthCheckConfig{} },
			),
			wantErr: "health_check_config is set",
		},
		"a port by name": {
			change:  cluster(func(c *clusterv3.Cluster) { endpointOf(c).Address.GetSocketAddress().ResolverName = "x" }),
			wantErr: "resolver_name is set",
		},
		"any destination of the client": {
			change:  discovery(clusterv3.Cluster_ORIGINAL_DST),
			wantErr: `type is "ORIGINAL_DST"`,
		},
		"endpoints that come later": {change: discovery(clusterv3.Cluster_EDS), wantErr: `type is "EDS"`},
		"another way to find them": {change: cluster(func(c *clusterv3.Cluster) {
			c.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{Name: "x"}}
		}), wantErr: `name is "x"`},
		"a TLS context that presents a leaf": {
			change:  cluster(func(c *clusterv3.Cluster) { c.TransportSocket = &corev3.TransportSocket{} }),
			wantErr: "transport_socket is set",
		},
		"an extension": {
			change:  cluster(func(c *clusterv3.Cluster) { c.Filters = []*clusterv3.Filter{{}} }),
			wantErr: "filters is set",
		},
		"another socket option": {change: cluster(func(c *clusterv3.Cluster) {
			c.UpstreamBindConfig = &corev3.BindConfig{SocketOptions: []*corev3.SocketOption{{Level: 1}}}
		}), wantErr: "upstream_bind_config is set"},
		"a field of a newer Envoy": {change: cluster(func(c *clusterv3.Cluster) {
			c.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 5000, protowire.VarintType), 1))
		}), wantErr: "does not support"},
	}
	allowed := edgePolicy()
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l := envoy.EdgeListeners(ownInstallation(), ownCluster(), ownEdge.Node, envoy.EdgeDial{})[0]
			c := envoy.EdgeClusters(ownInstallation(), ownCluster(), ownEdge.Node, envoy.EdgeDial{})[0]
			tc.change(t, l, c)
			got := fmt.Sprint(allowed.Check(wrapped(t, l)), allowed.Check(wrapped(t, c)))
			if taken := got == "<nil> <nil>"; taken != (tc.wantErr == "") || !strings.Contains(got, tc.wantErr) {
				t.Errorf("got %s, want an error with %q", got, tc.wantErr)
			}
		})
	}
	if err := allowed.Check(wrapped(t, &routev3.RouteConfiguration{Name: "r"})); err == nil {
		t.Error("a type that an edge has not is taken")
	}
}

func discovery(by clusterv3.Cluster_DiscoveryType) func(*testing.T, *listenerv3.Listener, *clusterv3.Cluster) {
	return func(_ *testing.T, _ *listenerv3.Listener, c *clusterv3.Cluster) {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: by}
	}
}

func pipe(path string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
}

func endpointOf(c *clusterv3.Cluster) *endpointv3.Endpoint {
	return c.LoadAssignment.Endpoints[0].LbEndpoints[0].GetEndpoint()
}

func TestNoResourceOfAGatewayLeadsToItsAgent(t *testing.T) {
	tests := map[string]struct {
		change  func(listeners []*listenerv3.Listener, tunnel *clusterv3.Cluster)
		wantErr string
	}{
		"a chain of the public port": {change: func(l []*listenerv3.Listener, _ *clusterv3.Cluster) {
			inside(
				t, l[0].FilterChains[1].Filters[0].GetTypedConfig(),
				func(p *tcpproxyv3.TcpProxy) { p.ClusterSpecifier = &tcpproxyv3.TcpProxy_Cluster{Cluster: "agent"} },
			)
		}, wantErr: `cluster is "agent"`},
		"a chain for all others": {change: func(l []*listenerv3.Listener, _ *clusterv3.Cluster) {
			l[0].DefaultFilterChain = l[0].FilterChains[1]
		}, wantErr: "default_filter_chain is set"},
		"an SNI of any form": {
			change:  func(l []*listenerv3.Listener, _ *clusterv3.Cluster) { l[1].FilterChainMatcher = nil },
			wantErr: "filter_chain_matcher is missing",
		},
		"an authority of any form": {change: func(l []*listenerv3.Listener, _ *clusterv3.Cluster) {
			inside(t, l[3].FilterChains[0].Filters[0].GetTypedConfig(), func(m *hcmv3.HttpConnectionManager) {
				m.GetRouteConfig().VirtualHosts[0].Routes[0].Match.Headers = nil
			})
		}, wantErr: "headers is missing"},
		"the port for CONNECT": {change: func(l []*listenerv3.Listener, _ *clusterv3.Cluster) {
			inside(t, l[2].FilterChains[0].Filters[0].GetTypedConfig(), func(p *tcpproxyv3.TcpProxy) {
				p.ClusterSpecifier = &tcpproxyv3.TcpProxy_Cluster{Cluster: "agent"}
			})
		}, wantErr: `cluster is "agent"`},
		"the agent itself": {
			change:  func(_ []*listenerv3.Listener, c *clusterv3.Cluster) { c.Name = "agent" },
			wantErr: "does not belong to this subject",
		},
		"its socket": {change: func(_ []*listenerv3.Listener, c *clusterv3.Cluster) {
			c.LoadAssignment = &endpointv3.ClusterLoadAssignment{
				Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
					HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: pipe("agent.sock")}},
				}}}},
			}
		}, wantErr: "load_assignment is set"},
	}
	at := model.Endpoint{Host: "0.0.0.0", Port: 1}
	allowed := gatewayPolicy(at)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l := envoy.GatewayListeners(
				ownInstallation(), ownGateway.Node, envoy.GatewayBind{Public: at, APIServer: at, Connect: at}, model.Denied{},
			)
			c := envoy.TunnelClusters(ownInstallation(), ownCluster())[0]
			tc.change(l, c)
			got := ""
			for _, m := range append(messages(l), c) {
				if err := allowed.Check(wrapped(t, m)); err != nil {
					got += err.Error()
				}
			}
			if !strings.Contains(got, tc.wantErr) {
				t.Errorf("got %q, want an error with %q", got, tc.wantErr)
			}
		})
	}
}

func BenchmarkPolicy(b *testing.B) {
	allowed, tunnel := gatewayPolicy(
		model.Endpoint{Host: "0.0.0.0", Port: 1},
	), wrapped(b, envoy.TunnelClusters(ownInstallation(), ownCluster())[0])
	for b.Loop() {
		if err := allowed.Check(tunnel); err != nil {
			b.Fatal(err)
		}
	}
}
