// Package health renders how the Envoy of an edge checks whether an apiserver serves. It has no input; its output is a
// part of an Envoy cluster. It does not know the apiservers.
package health

import (
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
)

const (
	// healthInterval and healthTimeout detect, within 2 s, an apiserver that accepts connections and does not answer,
	// which nothing else detects. A healthy one is checked once per second on one open connection. One failure is
	// enough, because using another apiserver costs nothing. Returning to it takes healthyThreshold successes in a
	// row, so that a flapping apiserver is avoided.
	healthInterval   = time.Second
	healthTimeout    = time.Second
	healthyThreshold = 3
)

// Readyz checks an apiserver without authentication. Any response shows that it serves, including a rejection of
// unauthenticated requests, except server errors.
func Readyz() *corev3.HealthCheck {
	return &corev3.HealthCheck{
		Timeout:            durationpb.New(healthTimeout),
		Interval:           durationpb.New(healthInterval),
		NoTrafficInterval:  durationpb.New(healthInterval),
		UnhealthyThreshold: wrapperspb.UInt32(1),
		HealthyThreshold:   wrapperspb.UInt32(healthyThreshold),
		HealthChecker: &corev3.HealthCheck_HttpHealthCheck_{HttpHealthCheck: &corev3.HealthCheck_HttpHealthCheck{
			Host:             "kubernetes.default.svc",
			Path:             "/readyz",
			ExpectedStatuses: []*typev3.Int64Range{{Start: 200, End: 500}},
		}},
		TransportSocketMatchCriteria: only(),
	}
}

// TransportSocket is TLS only for health checks: no endpoint has matching metadata, so connections of clients stay
// plain bytes. The apiserver is not verified, because the check sends no secret and only believes that the apiserver
// serves. An attacker who can forge this answer can also cut the clients' connections, and gains nothing more by it.
func TransportSocket() *clusterv3.Cluster_TransportSocketMatch {
	return &clusterv3.Cluster_TransportSocketMatch{
		Name:  "health_check",
		Match: only(),
		TransportSocket: socket(&tlsv3.UpstreamTlsContext{
			AutoHostSni: true, // the DNS name, if there is one: some load balancers route by it
			CommonTlsContext: &tlsv3.CommonTlsContext{TlsParams: &tlsv3.TlsParameters{
				TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2,
				TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3, // Envoy's default maximum for clients is 1.2
			}},
		}),
	}
}

func only() *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{"health_check": structpb.NewBoolValue(true)}}
}

func socket(context *tlsv3.UpstreamTlsContext) *corev3.TransportSocket {
	return &corev3.TransportSocket{
		Name:       "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: typed.Pack(context)},
	}
}
