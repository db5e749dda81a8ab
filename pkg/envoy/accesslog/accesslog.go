// Package accesslog renders the logs that an Envoy writes to its output: of connections through reverse tunnels, and of
// destinations that an edge refuses. Its input is what to log, its output Envoy's configuration. It does not know the
// records of owners, which an agent reads: they are in package envoy.
package accesslog

import (
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accesslogdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

// refusalsLogged is the percentage of refused connections with a line in the log of an edge.
const refusalsLogged = 10

// Of writes a line of JSON to Envoy's output when a connection through a reverse tunnel has ended. It returns
// nil if which selects no connections. A gateway and an edge log the same connection, each with its own data. The line
// contains no payload: neither Envoy can read it. numbered adds the number of the connection.
func Of(which model.AccessLog, listener string, numbered bool) []*accesslogv3.AccessLog {
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
	if numbered {
		fields["connection"] = structpb.NewStringValue("%CONNECTION_ID%")
	}
	log := lines(fields)
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

// Requests are the types of a log that Envoy writes when a request arrives.
func Requests() []accesslogdatav3.AccessLogType {
	return []accesslogdatav3.AccessLogType{accesslogdatav3.AccessLogType_DownstreamStart}
}

// Finished makes an access log of an HTTP connection manager that also logs when a request arrives write only the lines
// of its end. Failures are known only then.
func Finished(logs []*accesslogv3.AccessLog) []*accesslogv3.AccessLog {
	for _, log := range logs {
		if log.GetFilter() == nil {
			log.Filter = &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_LogTypeFilter{
				LogTypeFilter: &accesslogv3.LogTypeFilter{Types: Requests(), Exclude: true},
			}}
		}
	}
	return logs
}

// Refusals writes a line for some of the connections that an edge of a network refuses. An unreachable APIService is
// tried more than ten times a second, so not every refusal has a line: Envoy counts them all.
func Refusals() *accesslogv3.AccessLog {
	fields := map[string]*structpb.Value{}
	for name, value := range map[string]string{
		"log": "refused", "time": "%START_TIME%", "identity": "%REQ(X-FAIRLEAD-EGRESS)%", "authority": "%REQ(:AUTHORITY)%",
		"gateway": "%DOWNSTREAM_PEER_SUBJECT%", "code": "%RESPONSE_CODE%", "details": "%RESPONSE_CODE_DETAILS%",
	} {
		fields[name] = structpb.NewStringValue(value)
	}
	log := lines(fields)
	refused := &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_StatusCodeFilter{
		StatusCodeFilter: &accesslogv3.StatusCodeFilter{Comparison: &accesslogv3.ComparisonFilter{
			Op:    accesslogv3.ComparisonFilter_EQ,
			Value: &corev3.RuntimeUInt32{DefaultValue: 403, RuntimeKey: "fairlead.refused"},
		}},
	}}
	sampled := &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_RuntimeFilter{
		RuntimeFilter: &accesslogv3.RuntimeFilter{
			RuntimeKey:               "fairlead.refused_percent",
			PercentSampled:           &typev3.FractionalPercent{Numerator: refusalsLogged},
			UseIndependentRandomness: true,
		},
	}}
	log.Filter = &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_AndFilter{
		AndFilter: &accesslogv3.AndFilter{Filters: []*accesslogv3.AccessLogFilter{refused, sampled}},
	}}
	return log
}

// lines writes a line of JSON to Envoy's output.
func lines(fields map[string]*structpb.Value) *accesslogv3.AccessLog {
	return &accesslogv3.AccessLog{
		Name: "envoy.access_loggers.stdout",
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: typed.Pack(&streamv3.StdoutAccessLog{
			AccessLogFormat: &streamv3.StdoutAccessLog_LogFormat{LogFormat: &corev3.SubstitutionFormatString{
				Format:          &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: &structpb.Struct{Fields: fields}},
				OmitEmptyValues: true,
			}},
		})},
	}
}
