package envoy

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	bandwidthv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/bandwidth_limit/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/model"
)

// tunnelLimits are the thresholds at a gateway of one name of a workload cluster. A connection of a client is a stream in a tunnel,
// which Envoy calls a request; it is a retry while it waits for a tunnel by CONNECT, of which Envoy would let only 3 be.
func tunnelLimits(l model.Limits) *clusterv3.CircuitBreakers_Thresholds {
	return &clusterv3.CircuitBreakers_Thresholds{
		MaxRequests:        wrapperspb.UInt32(l.MaxConnections()),
		MaxPendingRequests: wrapperspb.UInt32(l.MaxPending()),
		MaxRetries:         wrapperspb.UInt32(l.MaxPending()),
	}
}

// bandwidthLimit is in front of the filters of an edge's listener for one gateway: all streams in its tunnels share so many bytes a second in
// each direction.
func bandwidthLimit(l model.Limits, before []*hcmv3.HttpFilter) []*hcmv3.HttpFilter {
	if l.Bandwidth == 0 {
		return before
	}
	return append([]*hcmv3.HttpFilter{httpFilter("envoy.filters.http.bandwidth_limit", &bandwidthv3.BandwidthLimit{
		StatPrefix: "bandwidth",
		EnableMode: bandwidthv3.BandwidthLimit_REQUEST_AND_RESPONSE,
		LimitKbps:  wrapperspb.UInt64(uint64(l.Bandwidth) >> 10),
	})}, before...)
}
