package envoy

import (
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/pkg/model"
)

// accessLog writes a line of JSON to Envoy's output when a connection through a reverse tunnel has ended. It returns
// nil if which selects no connections. A gateway and an edge log the same connection, each with its own data. The line
// contains no payload: neither Envoy can read it.
func accessLog(which model.AccessLog, listener string, version Version) []*accesslogv3.AccessLog {
	if which != model.AccessLogFailed && which != model.AccessLogAll {
		return nil
	}
	fields := map[string]*structpb.Value{}
	for name, value := range map[string]string{
		"log": "access", "listener": listener, "time": "%START_TIME%", "duration_ms": "%DURATION%",
		"client": "%DOWNSTREAM_REMOTE_ADDRESS%", "sni": "%REQUESTED_SERVER_NAME%", "authority": "%REQ(:AUTHORITY)%",
		// The Envoy cluster is the tunnel hostname, the peer in the reverse tunnel an edge's node id.
		"tunnel": "%UPSTREAM_CLUSTER%", "edge": "%UPSTREAM_PEER_SUBJECT%", "gateway": "%DOWNSTREAM_PEER_SUBJECT%",
		"upstream": "%UPSTREAM_HOST%",
		"bytes_in": "%BYTES_RECEIVED%", "bytes_out": "%BYTES_SENT%", "code": "%RESPONSE_CODE%", "flags": "%RESPONSE_FLAGS%",
		"details": "%RESPONSE_CODE_DETAILS%", "ended": "%CONNECTION_TERMINATION_DETAILS%",
		"attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%", "failure": "%UPSTREAM_TRANSPORT_FAILURE_REASON%",
	} {
		fields[name] = structpb.NewStringValue(value)
	}
	if version.has(connectionLogged) {
		fields["connection"] = structpb.NewStringValue("%CONNECTION_ID%")
	}
	log := &accesslogv3.AccessLog{
		Name: "envoy.access_loggers.stdout",
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: pack(&streamv3.StdoutAccessLog{
			AccessLogFormat: &streamv3.StdoutAccessLog_LogFormat{LogFormat: &corev3.SubstitutionFormatString{
				Format:          &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: &structpb.Struct{Fields: fields}},
				OmitEmptyValues: true,
			}},
		})},
	}
	if which == model.AccessLogFailed {
		log.Filter = &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
			// Failures on our side or in the reverse tunnel. A client that disconnects, or an apiserver that closes,
			// is not a failure.
			ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{
				Flags: []string{"UH", "UF", "UO", "NR", "NC", "URX", "LR", "UR", "UC", "UT", "LH", "DPE", "UPE", "UMSDR", "OM"},
			},
		}}
	}
	return []*accesslogv3.AccessLog{log}
}
