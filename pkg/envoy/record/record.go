// Package record makes the records of connections to a gateway's public port, in a file that the gateway's agent reads:
// which edge, gateway or apiserver owns a connection, and when it ends. In go an owner and a filter of Envoy, out comes
// the access log. It also reads which owner a filter chain records.
package record

import (
	"strconv"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	fileaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/accesslog"
	"github.com/fairlead/fairlead/pkg/envoy/typed"
)

// TunnelLog is a file to which a gateway's Envoy appends a line of JSON when a reverse tunnel opens or ends.
const TunnelLog = "tunnels.log"

// Owners of connections to the public port, as recorded in TunnelLog.
const (
	OwnerTunnel  = "tunnel"  // an accepted reverse tunnel of an edge
	OwnerRelay   = "relay"   // a connection that is relayed to another gateway
	OwnerControl = "control" // a connection that is relayed to the xds-server
	OwnerPeer    = "peer"    // a connection of another gateway, with clients that it forwards
	OwnerEgress  = "egress"  // a connection of an apiserver to networks
	OwnerForward = "forward" // a connection of an edge, for machines of its network that reach their apiserver
)

// Events of TunnelLog. Events of a reverse tunnel have Envoy's lifecycle names, events of a TCP proxy its access log
// types.
const (
	EventTunnelSetup   = "tunnel_setup"
	EventTunnelHandoff = "socket_handoff" // first use of the reverse tunnel
	EventTunnelClosed  = "tunnel_closed"
	EventStart         = "TcpConnectionStart"
	EventEnd           = "TcpConnectionEnd"
	EventRequest       = "DownstreamStart" // a request arrived on a connection of an apiserver or an edge
)

// Upper bounds of the fields of a record, in bytes before JSON escapes them, which makes at most six of one. A node id
// has 35 bytes; a tunnel id with its domain is a DNS name.
const (
	maxRecordWord    = 32
	maxRecordNode    = 64
	maxRecordID      = 256
	maxRecordAddress = 64
	maxJSONEscape    = 6
	maxRecordRest    = 256 // field names, quotes and numbers
	// MaxSize is longer than any line of TunnelLog. No field can be made longer by data of an edge.
	MaxSize = maxJSONEscape*(4*maxRecordWord+maxRecordNode+maxRecordID+2*maxRecordAddress) + maxRecordRest
)

// Lifecycle is the namespace of Envoy's metadata of a reverse tunnel.
const Lifecycle = "envoy.reverse_tunnel.lifecycle"

// Tunnels records which edge owns a reverse tunnel: when it is set up, first used, and closed. It names each field,
// because the lifecycle metadata also contains the edge's headers, of any length. It filters events, because Envoy
// emits one for each received ping, so that 5 bytes of an edge would cause a line. It is a file, because a gRPC access
// log here crashes Envoy 1.40, and the agent may be unavailable for a while.
func Tunnels() *accesslogv3.AccessLog {
	log := recordLog(OwnerTunnel, map[string]string{
		"event":  lifecycleField("event", maxRecordWord),
		"node":   lifecycleField("node_id", maxRecordNode),
		"id":     lifecycleField("cluster_id", maxRecordID),
		"worker": lifecycleField("worker", maxRecordWord),
		"fd":     "%DYNAMIC_METADATA(" + Lifecycle + ":fd)%", // a number assigned by Envoy
	})
	log.Filter = &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_MetadataFilter{
		MetadataFilter: &accesslogv3.MetadataFilter{
			MatchIfKeyNotFound: wrapperspb.Bool(false),
			Matcher: &matcherv3.MetadataMatcher{
				Filter: Lifecycle,
				Path: []*matcherv3.MetadataMatcher_PathSegment{
					{Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: "event"}},
				},
				Value: &matcherv3.ValueMatcher{
					MatchPattern: &matcherv3.ValueMatcher_OrMatch{
						OrMatch: &matcherv3.OrMatcher{ValueMatchers: []*matcherv3.ValueMatcher{
							exactly(EventTunnelSetup), exactly(EventTunnelHandoff), exactly(EventTunnelClosed),
						}},
					},
				},
			},
		},
	}}
	return log
}

func lifecycleField(key string, most int) string {
	return "%DYNAMIC_METADATA(" + Lifecycle + ":" + key + "):" + strconv.Itoa(most) + "%"
}

func exactly(s string) *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
		MatchPattern: &matcherv3.StringMatcher_Exact{Exact: s},
	}}}
}

// Connections makes a TCP proxy of the public listener record the start and the end of each of its connections.
func Connections(owner string, proxy *tcpproxyv3.TcpProxy) *tcpproxyv3.TcpProxy {
	proxy.AccessLog = append(proxy.AccessLog, recordLog(owner, map[string]string{
		"event":      "%ACCESS_LOG_TYPE%",
		"connection": "%CONNECTION_ID%", // distinguishes two connections with equal addresses
	}))
	proxy.AccessLogOptions = &tcpproxyv3.TcpProxy_TcpAccessLogOptions{FlushAccessLogOnStart: true}
	return proxy
}

// Requests records each request on a connection of an HTTP connection manager when it arrives, so the first one
// identifies the connection. The leaf names its node and id. The manager must have the option
// flush_access_log_on_new_request. There is no record of the end.
func Requests(owner string) *accesslogv3.AccessLog {
	log := recordLog(owner, map[string]string{
		"event":      "%ACCESS_LOG_TYPE%",
		"connection": "%CONNECTION_ID%",
		"node":       "%DOWNSTREAM_PEER_SUBJECT%",
		"id":         "%DOWNSTREAM_PEER_DNS_SAN%",
	})
	log.Filter = &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_LogTypeFilter{
		LogTypeFilter: &accesslogv3.LogTypeFilter{Types: accesslog.Requests()},
	}}
	return log
}

// recordLog writes records of one owner to TunnelLog. All access logs with the same path share one file and its order.
func recordLog(owner string, more map[string]string) *accesslogv3.AccessLog {
	fields := map[string]*structpb.Value{
		"owner": structpb.NewStringValue(owner),
		"time":  structpb.NewStringValue("%START_TIME%"),
		"peer":  structpb.NewStringValue("%DOWNSTREAM_REMOTE_ADDRESS%"), // the two ends of the TCP connection
		"local": structpb.NewStringValue("%DOWNSTREAM_LOCAL_ADDRESS%"),
	}
	for name, value := range more {
		fields[name] = structpb.NewStringValue(value)
	}
	return &accesslogv3.AccessLog{
		Name: "envoy.access_loggers.file",
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: typed.Pack(&fileaccesslogv3.FileAccessLog{
			Path: TunnelLog,
			AccessLogFormat: &fileaccesslogv3.FileAccessLog_LogFormat{LogFormat: &corev3.SubstitutionFormatString{
				Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: &structpb.Struct{Fields: fields}},
			}},
		})},
	}
}
