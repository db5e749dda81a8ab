package envoy

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	bandwidthv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/bandwidth_limit/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

// tunnelLimits returns the thresholds of a gateway for one name of a workload cluster. A client's connection is a
// stream in a reverse tunnel, which Envoy counts as a request. While it waits for a reverse tunnel by CONNECT, Envoy
// counts it as a retry, with a default limit of 3.
func tunnelLimits(l model.Limits) *clusterv3.CircuitBreakers_Thresholds {
	return &clusterv3.CircuitBreakers_Thresholds{
		MaxRequests:        wrapperspb.UInt32(l.MaxConnections()),
		MaxPendingRequests: wrapperspb.UInt32(l.MaxPending()),
		MaxRetries:         wrapperspb.UInt32(l.MaxPending()),
	}
}

// bandwidthLimit adds a filter before the other filters of an edge's listener for one gateway: all streams in its
// reverse tunnels share this many bytes per second in each direction.
func bandwidthLimit(l model.Limits, before []*hcmv3.HttpFilter) []*hcmv3.HttpFilter {
	if l.Bandwidth == 0 {
		return before
	}
	return append([]*hcmv3.HttpFilter{typed.HTTPFilter("envoy.filters.http.bandwidth_limit", &bandwidthv3.BandwidthLimit{
		StatPrefix: "bandwidth",
		EnableMode: bandwidthv3.BandwidthLimit_REQUEST_AND_RESPONSE,
		LimitKbps:  wrapperspb.UInt64(uint64(l.Bandwidth) >> 10),
	})}, before...)
}
