package envoy

import (
	"strconv"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	fileaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Owners of connections to the public port, as the records in TunnelLog name them.
const (
	OwnerTunnel  = "tunnel"  // an accepted tunnel of an edge
	OwnerRelay   = "relay"   // a connection that is passed on to another gateway
	OwnerControl = "control" // a connection that is passed on to the xds-server
)

// Events of TunnelLog. Those of a tunnel are Envoy's names of its lifecycle, those of a TCP proxy its access log types.
const (
	EventTunnelSetup   = "tunnel_setup"
	EventTunnelHandoff = "socket_handoff" // the tunnel is used for the first time
	EventTunnelClosed  = "tunnel_closed"
	EventStart         = "TcpConnectionStart"
	EventEnd           = "TcpConnectionEnd"
)

// Upper bounds of the fields of a record, in bytes before JSON escapes them, which makes six of one at most. A node id
// has 35 bytes, a tunnel id with its domain is a DNS name.
const (
	maxRecordWord    = 32
	maxRecordNode    = 64
	maxRecordID      = 256
	maxRecordAddress = 64
	maxJSONEscape    = 6
	maxRecordRest    = 256 // names of fields, quotes and the numbers
	// MaxRecord is more than any line of TunnelLog has. No field holds anything that is longer because an edge sent
	// more.
	MaxRecord = maxJSONEscape*(4*maxRecordWord+maxRecordNode+maxRecordID+2*maxRecordAddress) + maxRecordRest
)

const lifecycle = "envoy.reverse_tunnel.lifecycle"

// tunnelLog records which edge owns a tunnel: when the tunnel is set up, is used for the first time, and ends. It names
// each field. The lifecycle metadata also holds what the edge sends in headers, at any length, and Envoy writes an
// event for each ping that it receives: 5 bytes of an edge would be a line. It is a file, because a gRPC access log in
// this place crashes Envoy 1.40, and the agent may be away for a while.
func tunnelLog() *accesslogv3.AccessLog {
	log := recordLog(OwnerTunnel, map[string]string{
		"event":  lifecycleField("event", maxRecordWord),
		"node":   lifecycleField("node_id", maxRecordNode),
		"id":     lifecycleField("cluster_id", maxRecordID),
		"worker": lifecycleField("worker", maxRecordWord),
		"fd":     "%DYNAMIC_METADATA(" + lifecycle + ":fd)%", // a number of Envoy's own
	})
	log.Filter = &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_MetadataFilter{
		MetadataFilter: &accesslogv3.MetadataFilter{
			MatchIfKeyNotFound: wrapperspb.Bool(false),
			Matcher: &matcherv3.MetadataMatcher{
				Filter: lifecycle,
				Path:   []*matcherv3.MetadataMatcher_PathSegment{{Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: "event"}}},
				Value: &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_OrMatch{OrMatch: &matcherv3.OrMatcher{ValueMatchers: []*matcherv3.ValueMatcher{
					exactValue(EventTunnelSetup), exactValue(EventTunnelHandoff), exactValue(EventTunnelClosed),
				}}}},
			},
		},
	}}
	return log
}

func lifecycleField(key string, most int) string {
	return "%DYNAMIC_METADATA(" + lifecycle + ":" + key + "):" + strconv.Itoa(most) + "%"
}

func exactValue(s string) *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: exactly(s)}}
}

// recorded has a TCP proxy of the public listener record that it owns a connection, at its start and at its end.
func recorded(owner string, proxy *tcpproxyv3.TcpProxy) *tcpproxyv3.TcpProxy {
	proxy.AccessLog = append(proxy.AccessLog, recordLog(owner, map[string]string{
		"event":      "%ACCESS_LOG_TYPE%",
		"connection": "%CONNECTION_ID%", // tells two connections with equal addresses apart
	}))
	proxy.AccessLogOptions = &tcpproxyv3.TcpProxy_TcpAccessLogOptions{FlushAccessLogOnStart: true}
	return proxy
}

// recordLog writes records of one owner to TunnelLog. All access logs with one path share one file and its order.
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
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: pack(&fileaccesslogv3.FileAccessLog{
			Path: TunnelLog,
			AccessLogFormat: &fileaccesslogv3.FileAccessLog_LogFormat{LogFormat: &corev3.SubstitutionFormatString{
				Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: &structpb.Struct{Fields: fields}},
			}},
		})},
	}
}
