package policy_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	fileaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	localratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/local_ratelimit/v3"
	rbacfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	reversetunnelv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/reverse_tunnel/v3"
	setstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/set_filter_state/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// sample contains the resources of an edge and a gateway.
type sample struct {
	tunnel                     *listenerv3.Listener // of the edge
	gateway, apiservers        *clusterv3.Cluster   // of the edge
	public, apiserver, connect *listenerv3.Listener // of the gateway
	port                       *listenerv3.Listener // of the gateway, before connect
	workload, peer, control    *clusterv3.Cluster   // of the gateway
}

var everywhere = model.Endpoint{Host: "0.0.0.0", Port: 8443}

func newSample() sample {
	inst := ownInstallation()
	inst.AccessLog = model.AccessLogFailed
	wc := ownCluster()
	wc.Limits.Bandwidth = 1 << 20
	wc.Others = []model.Endpoint{{Host: "apiserver.example.com", Port: 6443}}
	listeners := envoy.GatewayListeners(
		inst, ownGateway.Node, envoy.GatewayBind{Public: everywhere, APIServer: everywhere, Connect: everywhere},
		model.Denied{Edges: []model.EdgeRef{{Node: "edge-b", ID: "bbbbbbbbbbbbbbbbbbbb"}}},
	)
	edge, gateway := envoy.EdgeClusters(inst, wc, ownEdge.Node, envoy.EdgeDial{}), envoy.GatewayClusters(inst)
	return sample{
		tunnel: envoy.EdgeListeners(inst, wc, ownEdge.Node, envoy.EdgeDial{})[0], apiservers: edge[0], gateway: edge[1],
		public: listeners[0], apiserver: listeners[1], port: listeners[2], connect: listeners[3],
		workload: envoy.TunnelClusters(inst, wc)[0], control: gateway[1], peer: gateway[2],
	}
}

// rejections returns the errors of an edge and a gateway for a sample.
func (s sample) rejections(t *testing.T) string {
	t.Helper()
	var got []string
	edge, gateway := edgePolicy(), gatewayPolicy(everywhere)
	for _, m := range []proto.Message{s.tunnel, s.apiservers, s.gateway} {
		if err := edge.Check(wrapped(t, m)); err != nil {
			got = append(got, err.Error())
		}
	}
	for _, m := range []proto.Message{s.public, s.apiserver, s.port, s.connect, s.workload, s.peer, s.control} {
		if err := gateway.Check(wrapped(t, m)); err != nil {
			got = append(got, err.Error())
		}
	}
	return strings.Join(got, "\n")
}

// lastFilter returns the configuration of the last filter of a chain.
func lastFilter(l *listenerv3.Listener, chain int) *anypb.Any {
	filters := l.FilterChains[chain].Filters
	return filters[len(filters)-1].GetTypedConfig()
}

func unknownField(m proto.Message) {
	m.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 5000, protowire.VarintType), 1))
}

// TestAPolicyRejectsEveryKnownAttack tries resources of a compromised xds-server that Fairlead never renders.
func TestAPolicyRejectsEveryKnownAttack(t *testing.T) {
	log := func(change func(*structpb.Struct)) func(*testing.T, sample) {
		return func(t *testing.T, s sample) {
			inside(t, lastFilter(s.connect, 0), func(m *hcmv3.HttpConnectionManager) {
				inside(
					t, m.AccessLog[0].GetTypedConfig(), func(l *streamv3.StdoutAccessLog) { change(l.GetLogFormat().GetJsonFormat()) },
				)
			})
		}
	}
	format := func(value string) func(*testing.T, sample) {
		return log(func(s *structpb.Struct) { s.Fields["x"] = structpb.NewStringValue(value) })
	}
	relay := func(change func(*tcpproxyv3.TcpProxy)) func(*testing.T, sample) {
		return func(t *testing.T, s sample) { inside(t, lastFilter(s.public, 2), change) }
	}
	record := func(change func(*fileaccesslogv3.FileAccessLog)) func(*testing.T, sample) {
		return relay(func(p *tcpproxyv3.TcpProxy) { inside(t, p.AccessLog[0].GetTypedConfig(), change) })
	}
	responder := func(change func(*reversetunnelv3.ReverseTunnel)) func(*testing.T, sample) {
		return func(t *testing.T, s sample) { inside(t, lastFilter(s.public, 0), change) }
	}
	for name, tc := range map[string]struct {
		change  func(*testing.T, sample)
		wantErr string
	}{
		"records that are written again and again": {relay(func(p *tcpproxyv3.TcpProxy) {
			p.AccessLogOptions.AccessLogFlushInterval = durationpb.New(time.Millisecond)
		}), "access_log_flush_interval"},
		"the same by the older field": {relay(func(p *tcpproxyv3.TcpProxy) {
			p.AccessLogFlushInterval = durationpb.New(time.Millisecond) //nolint:staticcheck // Envoy still obeys it
		}), "access_log_flush_interval"},
		"counts under another name":        {func(_ *testing.T, s sample) { s.public.StatPrefix = "x" }, "stat_prefix"},
		"clients that drain under another": {func(_ *testing.T, s sample) { s.port.StatPrefix = "public" }, "stat_prefix"},
		"more tunnels in a second than any": {func(t *testing.T, s sample) {
			inside(t, s.public.FilterChains[0].Filters[0].GetTypedConfig(), func(
				l *localratelimitv3.LocalRateLimit,
			) {
				l.TokenBucket.MaxTokens = math.MaxUint32
			})
		}, "max_tokens"},
		"limits twice": {func(_ *testing.T, s sample) {
			b := s.workload.CircuitBreakers
			b.Thresholds = append(b.Thresholds, b.Thresholds[0])
		}, "thresholds"},
		"a share that is not a number": {func(_ *testing.T,
			s sample,
		) {
			s.apiservers.CommonLbConfig.HealthyPanicThreshold.Value = math.NaN()
		}, "healthy_panic_threshold"},
		"fields of a log without end": {log(func(s *structpb.Struct) {
			for i := range 100 {
				s.Fields[fmt.Sprint("k", i)] = structpb.NewStringValue("x")
			}
		}), "keys, more than"},
		"a field with a name of lines": {
			log(func(s *structpb.Struct) { s.Fields["a\n{"] = structpb.NewStringValue("x") }),
			"has \"a\\n{\"",
		},
		"a file in a log":            {format("%FILE_CONTENT(/var/lib/fairlead/identity.pem)%"), "FILE_CONTENT"},
		"a secret in a log":          {format("%SECRET(identity)%"), "SECRET"},
		"the environment in a log":   {format("%ENVIRONMENT(HOME)%"), "ENVIRONMENT"},
		"metadata in a log":          {format("%DYNAMIC_METADATA(envoy.reverse_tunnel.lifecycle)%"), "DYNAMIC_METADATA"},
		"any header in a log":        {format("%REQ(AUTHORIZATION)%"), "REQ(AUTHORIZATION)"},
		"an operator behind another": {format("%START_TIME%%FILTER_STATE(x)%"), "FILTER_STATE"},
		"a log that is nested": {log(func(s *structpb.Struct) {
			s.Fields["x"] = structpb.NewStructValue(
				&structpb.Struct{Fields: map[string]*structpb.Value{"y": structpb.NewStringValue("%SECRET(identity)%")}})
		}), "fields.x is"},
		"a formatter of a log": {func(t *testing.T, s sample) {
			inside(t, lastFilter(s.connect, 0), func(m *hcmv3.HttpConnectionManager) {
				inside(t, m.AccessLog[0].GetTypedConfig(), func(l *streamv3.StdoutAccessLog) {
					l.GetLogFormat().Formatters = []*corev3.TypedExtensionConfig{{Name: "x"}}
				})
			})
		}, "formatters is set"},
		"a log in a file": {func(t *testing.T, s sample) {
			inside(t, lastFilter(s.tunnel, 0), func(m *hcmv3.HttpConnectionManager) {
				m.AccessLog = []*accesslogv3.AccessLog{{ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: wrapped(t,
					&fileaccesslogv3.FileAccessLog{Path: "/etc/cron.d/x"})}}}
			})
		}, "access_log.typed_config is a"},

		"records in another file": {
			record(func(l *fileaccesslogv3.FileAccessLog) { l.Path = "/dev/null" }),
			`path is "/dev/null"`,
		},
		"records of another owner": {record(func(l *fileaccesslogv3.FileAccessLog) {
			l.GetLogFormat().GetJsonFormat().Fields["owner"] = structpb.NewStringValue("tunnel")
		}), `owner is "tunnel"`},
		"records with more in them": {record(func(l *fileaccesslogv3.FileAccessLog) {
			l.GetLogFormat().GetJsonFormat().Fields["x"] = structpb.NewStringValue("y")
		}), `has "x"`},
		"records with less in them": {record(func(l *fileaccesslogv3.FileAccessLog) {
			delete(
				l.GetLogFormat().GetJsonFormat().Fields, "peer")
		}), "peer is missing"},
		"records without a format": {
			record(func(l *fileaccesslogv3.FileAccessLog) { l.AccessLogFormat = nil }),
			"log_format is missing",
		},
		"no records": {relay(func(p *tcpproxyv3.TcpProxy) { p.AccessLog = nil }), "access_log is missing"},
		"records of the end alone": {
			relay(func(p *tcpproxyv3.TcpProxy) { p.AccessLogOptions = nil }),
			"access_log_options is missing",
		},
		"records of some connections": {relay(func(
			p *tcpproxyv3.TcpProxy,
		) {
			p.AccessLog[0].Filter = &accesslogv3.AccessLogFilter{}
		}), "filter is set"},
		"another log beside the records": {
			relay(func(p *tcpproxyv3.TcpProxy) { p.AccessLog = append(p.AccessLog, p.AccessLog[0]) }),
			"has more fields than this agent supports",
		},
		"a relay to a tunnel": {relay(func(p *tcpproxyv3.TcpProxy) {
			p.ClusterSpecifier = &tcpproxyv3.TcpProxy_Cluster{Cluster: "c1.prod.tunnels.example.com"}
		}), "cluster is"},
		"a relay that uses metadata": {
			relay(func(p *tcpproxyv3.TcpProxy) { p.MetadataMatch = &corev3.Metadata{} }),
			"metadata_match is set",
		},
		"a relay on demand": {
			relay(func(p *tcpproxyv3.TcpProxy) { p.OnDemand = &tcpproxyv3.TcpProxy_OnDemand{} }),
			"on_demand is set",
		},

		"a tenant of its own": {
			responder(func(
				r *reversetunnelv3.ReverseTunnel,
			) {
				r.Validation.TenantIdFormat = "%DOWNSTREAM_REMOTE_ADDRESS%"
			}),
			"tenant_id_format is",
		},
		"any tenant": {
			responder(func(r *reversetunnelv3.ReverseTunnel) { r.Validation.TenantIdFormat = "" }),
			"tenant_id_format is missing",
		},
		"any node": {
			responder(func(r *reversetunnelv3.ReverseTunnel) { r.Validation.NodeIdFormat = "" }),
			"node_id_format is missing",
		},
		"a node by metadata": {responder(func(r *reversetunnelv3.ReverseTunnel) {
			r.Validation.NodeIdFormat = "%DYNAMIC_METADATA(envoy.reverse_tunnel.lifecycle:initiator)%"
		}), "node_id_format is"},
		"metadata that are emitted": {responder(func(
			r *reversetunnelv3.ReverseTunnel,
		) {
			r.Validation.EmitDynamicMetadata = true
		}), "emit_dynamic_metadata is set"},
		"no time for the handshake": {
			responder(func(r *reversetunnelv3.ReverseTunnel) { r.HandshakeTimeout = nil }),
			"handshake_timeout is missing",
		},
		"a handshake without an end": {responder(func(
			r *reversetunnelv3.ReverseTunnel,
		) {
			r.HandshakeTimeout = durationpb.New(time.Hour)
		}), "handshake_timeout is"},
		"tunnels that are not encrypted": {
			func(_ *testing.T, s sample) { s.public.FilterChains[0].TransportSocket = nil }, "filter_chains.",
		},
		"tunnels of revoked edges": {func(_ *testing.T, s sample) {
			s.public.FilterChains[0].Filters = append(s.public.FilterChains[0].Filters[:1], s.public.FilterChains[0].Filters[2])
		}, "filters."},
		"a filter that only has a name": {
			func(_ *testing.T, s sample) { s.public.FilterChains[0].Filters[1].ConfigType = nil },
			"typed_config is missing",
		},
		"denial that allows": {func(t *testing.T, s sample) {
			inside(t, s.public.FilterChains[0].Filters[1].GetTypedConfig(), func(
				r *rbacfilterv3.RBAC,
			) {
				r.Rules.Action = rbacv3.RBAC_ALLOW
			})
		}, "action is missing"},
		"denial that comes late": {func(t *testing.T, s sample) {
			inside(t, s.public.FilterChains[0].Filters[1].GetTypedConfig(), func(
				r *rbacfilterv3.RBAC,
			) {
				r.DelayDeny = durationpb.New(time.Minute)
			})
		}, "delay_deny is set"},
		"denial in the shadow": {func(t *testing.T, s sample) {
			inside(t, s.public.FilterChains[0].Filters[1].GetTypedConfig(), func(
				r *rbacfilterv3.RBAC,
			) {
				r.ShadowRules = r.Rules
			})
		}, "shadow_rules is set"},
		"the chain of another name": {func(_ *testing.T, s sample) {
			s.public.FilterChains[0].FilterChainMatch.ServerNames = []string{"*.example.com"}
		}, "server_names is"},
		"a chain for a port": {func(_ *testing.T, s sample) {
			s.public.FilterChains[2].FilterChainMatch.DestinationPort = wrapperspb.UInt32(22)
		}, "destination_port is set"},

		"a listener at another address": {
			func(_ *testing.T, s sample) { s.public.Address.GetSocketAddress().Address = "203.0.113.1" },
			`address is "203.0.113.1"`,
		},
		"a listener at another port": {func(_ *testing.T, s sample) {
			s.port.Address.GetSocketAddress().PortSpecifier = &corev3.SocketAddress_PortValue{PortValue: 22}
		}, "port_value is"},
		"a listener with a name for port": {func(_ *testing.T, s sample) {
			s.port.Address.GetSocketAddress().PortSpecifier = &corev3.SocketAddress_NamedPort{NamedPort: "ssh"}
		}, "named_port is set"},
		"a listener of datagrams": {func(_ *testing.T,
			s sample,
		) {
			s.port.Address.GetSocketAddress().Protocol = corev3.SocketAddress_UDP
		}, "protocol is set"},
		"a listener for any destination": {
			func(_ *testing.T, s sample) { s.apiserver.UseOriginalDst = wrapperspb.Bool(true) },
			"use_original_dst is set",
		},
		"a transparent listener": {
			func(_ *testing.T, s sample) { s.apiserver.Transparent = wrapperspb.Bool(true) },
			"transparent is set",
		},
		"a network namespace": {func(_ *testing.T, s sample) {
			s.public.Address.GetSocketAddress().NetworkNamespaceFilepath = "/proc/1/ns/net"
		}, "network_namespace_filepath is set"},
		"a listener that the client names": {func(t *testing.T, s sample) {
			inside(t, s.apiserver.FilterChains[0].Filters[0].GetTypedConfig(), func(c *setstatev3.Config) {
				c.OnNewConnection = append(c.OnNewConnection, proto.CloneOf(c.OnNewConnection[0]))
			})
		}, "has more fields than this agent supports"},
		"another key of the filter state": {func(t *testing.T, s sample) {
			inside(t, s.apiserver.FilterChains[0].Filters[0].GetTypedConfig(), func(c *setstatev3.Config) {
				text := c.OnNewConnection[0].GetFormatString().GetTextFormatSource()
				text.Specifier = &corev3.DataSource_Filename{Filename: "/etc/passwd"}
			})
		}, "filename is set"},
		"a filter that is remote": {func(t *testing.T, s sample) {
			s.connect.FilterChains[0].Filters[0].ConfigType = &listenerv3.Filter_ConfigDiscovery{
				ConfigDiscovery: &corev3.ExtensionConfigSource{},
			}
		}, "config_discovery is set"},
		"headers that identify the client": {func(t *testing.T, s sample) {
			inside(t, lastFilter(s.connect, 0), func(m *hcmv3.HttpConnectionManager) { m.XffNumTrustedHops = 1 })
		}, "xff_num_trusted_hops is set"},
		"routes from elsewhere": {func(t *testing.T, s sample) {
			inside(t, lastFilter(s.connect, 0), func(m *hcmv3.HttpConnectionManager) {
				m.RouteSpecifier = &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{RouteConfigName: "x"}}
			})
		}, "rds is set"},
		"a name of any form": {func(t *testing.T, s sample) {
			inside(t, lastFilter(s.connect, 0), func(m *hcmv3.HttpConnectionManager) {
				m.GetRouteConfig().VirtualHosts[0].Routes[0].Match.Headers[0].GetStringMatch().GetSafeRegex().Regex = ".*"
			})
		}, "regex is"},
		"a name that is not what it has to be": {func(t *testing.T, s sample) {
			inside(t, lastFilter(s.connect, 0), func(m *hcmv3.HttpConnectionManager) {
				m.GetRouteConfig().VirtualHosts[0].Routes[0].Match.Headers[0].InvertMatch = true
			})
		}, "invert_match is set"},

		"a tunnel without TLS": {
			func(_ *testing.T, s sample) { s.workload.TransportSocket = nil },
			"transport_socket is missing",
		},
		"a gateway without TLS": {
			func(_ *testing.T, s sample) { s.gateway.TransportSocket = nil },
			"transport_socket is missing",
		},
		"a control channel without origin": {
			func(_ *testing.T, s sample) { s.control.TransportSocket = nil }, "transport_socket is missing",
		},
		"a gateway that is not verified": {func(t *testing.T, s sample) {
			inside(t, s.gateway.TransportSocket.GetTypedConfig(), func(c *tlsv3.UpstreamTlsContext) {
				c.CommonTlsContext.GetCombinedValidationContext().DefaultValidationContext.MatchTypedSubjectAltNames = nil
			})
		}, "match_typed_subject_alt_names is missing"},
		"a gateway with any certificate": {func(t *testing.T, s sample) {
			inside(t, s.gateway.TransportSocket.GetTypedConfig(), func(c *tlsv3.UpstreamTlsContext) {
				validation := c.CommonTlsContext.GetCombinedValidationContext().DefaultValidationContext
				validation.TrustChainVerification = tlsv3.CertificateValidationContext_ACCEPT_UNTRUSTED
			})
		}, "trust_chain_verification is set"},
		"keys that are written to a file": {func(t *testing.T, s sample) {
			inside(t, s.gateway.TransportSocket.GetTypedConfig(), func(
				c *tlsv3.UpstreamTlsContext,
			) {
				c.CommonTlsContext.KeyLog = &tlsv3.TlsKeyLog{Path: "/tmp/keys"}
			})
		}, "key_log is set"},
		"old TLS": {func(t *testing.T, s sample) {
			inside(t, s.gateway.TransportSocket.GetTypedConfig(), func(c *tlsv3.UpstreamTlsContext) {
				c.CommonTlsContext.TlsParams.TlsMinimumProtocolVersion = tlsv3.TlsParameters_TLSv1_0
			})
		}, "tls_minimum_protocol_version is"},
		"a health check of another port": {
			func(_ *testing.T, s sample) { s.apiservers.HealthChecks[0].AltPort = wrapperspb.UInt32(22) },
			"alt_port is set",
		},
		"a health check of another path": {func(_ *testing.T, s sample) {
			s.apiservers.HealthChecks[0].GetHttpHealthCheck().Path = "/api/v1/secrets"
		}, "path is"},
		"a health check as an attack": {func(_ *testing.T,
			s sample,
		) {
			s.apiservers.HealthChecks[0].Interval = durationpb.New(time.Microsecond)
		}, "interval is"},
		"events of health checks in a file": {func(_ *testing.T, s sample) {
			s.apiservers.HealthChecks[0].EventLogPath = "/tmp/x" //nolint:staticcheck // Envoy still has it
		}, "event_log_path is set"},
		"TLS for clients too": {func(_ *testing.T,
			s sample,
		) {
			s.apiservers.TransportSocketMatches[0].Match = &structpb.Struct{}
		}, "match.fields is missing"},
		"a source address": {func(_ *testing.T,
			s sample,
		) {
			s.gateway.UpstreamBindConfig.SourceAddress = &corev3.SocketAddress{}
		}, "source_address is set"},
		"another socket option": {
			func(_ *testing.T, s sample) { s.gateway.UpstreamBindConfig.SocketOptions[0].Name = 36 },
			"name is",
		},
		"an address that is no address": {func(_ *testing.T, s sample) {
			endpointOf(
				s.peer).Address.GetSocketAddress().Address = "rc://x@agent:1"
		}, "address is"},
		"an address inside of Envoy": {func(_ *testing.T, s sample) {
			endpointOf(s.peer).Address = &corev3.Address{Address: &corev3.Address_EnvoyInternalAddress{
				EnvoyInternalAddress: &corev3.EnvoyInternalAddress{},
			}}
		}, "envoy_internal_address is set"},
		"an address beside another": {func(_ *testing.T, s sample) {
			endpointOf(s.peer).AdditionalAddresses = append(endpointOf(s.peer).AdditionalAddresses, nil)
		}, "additional_addresses is set"},
		"a resolver": {
			func(_ *testing.T, s sample) { s.peer.TypedDnsResolverConfig = &corev3.TypedExtensionConfig{} },
			"typed_dns_resolver_config is set",
		},
		"a tunnel of another installation": {func(t *testing.T, s sample) {
			inside(t, s.workload.TransportSocket.GetTypedConfig(), func(
				c *tlsv3.UpstreamTlsContext,
			) {
				c.Sni = "aaaaaaaaaaaaaaaaaaaa.id.example.org"
			})
		}, "sni is"},

		"an extension that is unknown, deep inside": {func(t *testing.T, s sample) {
			inside(t, lastFilter(s.tunnel, 0), func(m *hcmv3.HttpConnectionManager) {
				retry := m.GetRouteConfig().VirtualHosts[0].Routes[0].GetRoute().RetryPolicy
				retry.RetryHostPredicate[0].ConfigType = &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{
					TypedConfig: &anypb.Any{TypeUrl: "type.googleapis.com/envoy.extensions.new.v3.Thing", Value: []byte{1}},
				}
			})
		}, "retry_host_predicate.typed_config is a"},
		"an extension with another URL": {func(t *testing.T, s sample) {
			inside(t, lastFilter(s.tunnel, 0), func(m *hcmv3.HttpConnectionManager) {
				for _, f := range m.HttpFilters {
					f.GetTypedConfig().TypeUrl = strings.Replace(f.GetTypedConfig().TypeUrl, "type.googleapis.com", "example.com", 1)
				}
			})
		}, `is a "example.com/`},
		"an HTTP filter behind the others": {func(t *testing.T, s sample) {
			inside(t, lastFilter(s.tunnel, 0), func(m *hcmv3.HttpConnectionManager) {
				m.HttpFilters = append(m.HttpFilters,
					m.HttpFilters[1])
			})
		}, "http_filters has more"},
		"a field that is unknown, deep inside": {func(t *testing.T, s sample) {
			inside(t, s.workload.TransportSocket.GetTypedConfig(), func(c *tlsv3.UpstreamTlsContext) {
				unknownField(c.CommonTlsContext.TlsCertificateSdsSecretConfigs[0].SdsConfig.GetApiConfigSource().GrpcServices[0])
			})
		}, "grpc_services has a field that this version does not support"},
		"a field that is unknown in a time": {
			func(_ *testing.T, s sample) { unknownField(s.workload.ConnectTimeout) }, "connect_timeout has a field",
		},
		"a field that is unknown in an extension": {
			func(_ *testing.T, s sample) { unknownField(s.workload.TransportSocket.GetTypedConfig()) },
			"typed_config has a field",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSample()
			if got := s.rejections(t); got != "" {
				t.Fatalf("what nobody has changed is refused: %s", got)
			}
			tc.change(t, s)
			if got := s.rejections(t); !strings.Contains(got, tc.wantErr) {
				t.Errorf("got %q, want an error with %q", got, tc.wantErr)
			}
		})
	}
}

// TestANewerServerMayVary checks that an agent of this version accepts possible resources of a newer xds-server.
func TestANewerServerMayVary(t *testing.T) {
	s := newSample()
	s.tunnel.StatPrefix, s.tunnel.PerConnectionBufferLimitBytes = "tunnels_2", wrapperspb.UInt32(1<<20)
	s.public.TcpBacklogSize, s.public.TcpKeepalive = wrapperspb.UInt32(7), nil
	s.apiservers.ConnectTimeout = durationpb.New(time.Minute)
	s.apiservers.MaxRequestsPerConnection = wrapperspb.UInt32(7) //nolint:staticcheck // any number
	s.apiservers.HealthChecks[0].Interval, s.apiservers.HealthChecks[0].IntervalJitter = durationpb.New(
		5*time.Second,
	), durationpb.New(
		time.Second,
	)
	s.workload.CircuitBreakers.Thresholds[0].MaxConnections = wrapperspb.UInt32(7)
	s.workload.AltStatName = "workload"
	s.gateway.UpstreamBindConfig.SocketOptions[0].Value = &corev3.SocketOption_IntValue{IntValue: 64 << 10}
	inside(t, lastFilter(s.connect, 0), func(m *hcmv3.HttpConnectionManager) {
		m.StatPrefix, m.RequestTimeout = "clients", durationpb.New(time.Minute)
		m.GetRouteConfig().VirtualHosts[0].Routes[0].GetRoute().RetryPolicy.RetryOn = "connect-failure,reset"
		inside(t, m.AccessLog[0].GetTypedConfig(), func(l *streamv3.StdoutAccessLog) {
			l.GetLogFormat().GetJsonFormat().Fields["new"] = structpb.NewStringValue("%BYTES_SENT% of %PROTOCOL%")
		})
	})
	inside(
		t, lastFilter(s.public, 0),
		func(r *reversetunnelv3.ReverseTunnel) { r.PingInterval = durationpb.New(30 * time.Second) },
	)
	inside(
		t, lastFilter(s.public, 2),
		func(p *tcpproxyv3.TcpProxy) { p.MaxDownstreamConnectionDuration = durationpb.New(time.Hour) },
	)
	if got := s.rejections(t); got != "" {
		t.Error(got)
	}
	if fmt.Sprint(s) == fmt.Sprint(newSample()) {
		t.Error("nothing is new")
	}
}
