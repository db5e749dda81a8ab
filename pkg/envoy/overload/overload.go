// Package overload renders Envoy's overload manager. Its input is the memory and the number of connections that one
// Envoy may use. It does not know what uses them.
package overload

import (
	"cmp"
	"time"

	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	downstreamconnectionsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	fixedheapv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/fixed_heap/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
)

const heapMonitor = "envoy.resource_monitors.fixed_heap"

const (
	// GatewayHeap is the default of a gateway's heap, in bytes: enough for 10,000 workload clusters of 50 KB and as many
	// clients.
	GatewayHeap = 2 << 30
	// EdgeHeap is the default of an edge's heap, in bytes: enough for its stream windows.
	EdgeHeap = 512 << 20
	// RejectAt is the part of the heap from which on Envoy rejects what is new, and shrinkAt the part from which on it
	// returns free memory to the kernel.
	RejectAt = 0.95
	shrinkAt = 0.85
	// overloadInterval is how often memory is checked: 10 Gbit/s fill 300 MB in that time.
	overloadInterval = 250 * time.Millisecond
	// maxConnections is far above the connections of one gateway: two reverse tunnels of each of 10,000 edges, and
	// their clients.
	maxConnections = 50_000
)

// Gateway keeps a gateway within its memory limit, in bytes: Envoy returns unused memory, and then rejects new clients
// and edges until memory is available. It closes their connections at once: with the action
// stop_accepting_connections they would wait in the queue of the kernel, which has accepted them already, until the
// client gives up. For 0, heap and connections have defaults.
func Gateway(heap, connections uint64) *overloadv3.OverloadManager {
	return overload(cmp.Or(heap, GatewayHeap), Connections(connections),
		aboveHeap("envoy.overload_actions.shrink_heap", shrinkAt),
		aboveHeap("envoy.overload_actions.stop_accepting_requests", RejectAt),
		aboveHeap("envoy.overload_actions.reject_incoming_connections", RejectAt))
}

// Edge keeps an edge within its memory limit, in bytes. Envoy continues to dial reverse tunnels, whose number is
// bounded, but rejects new streams in them, for which the gateway then tries another edge. For 0, heap and connections
// have defaults.
func Edge(heap, connections uint64) *overloadv3.OverloadManager {
	return overload(cmp.Or(heap, EdgeHeap), Connections(connections),
		aboveHeap("envoy.overload_actions.shrink_heap", shrinkAt),
		aboveHeap("envoy.overload_actions.stop_accepting_requests", RejectAt))
}

// Connections returns the limit of downstream connections, or the default for 0.
func Connections(limit uint64) uint64 { return min(cmp.Or(limit, maxConnections), 1<<31) }

// PublicConnections returns how many of these connections the public port of a gateway may have. The other half is for
// clients.
func PublicConnections(limit uint64) uint64 { return Connections(limit) / 2 }

func overload(heap, connections uint64, actions ...*overloadv3.OverloadAction) *overloadv3.OverloadManager {
	return &overloadv3.OverloadManager{
		RefreshInterval: durationpb.New(overloadInterval),
		ResourceMonitors: []*overloadv3.ResourceMonitor{
			monitor(heapMonitor, &fixedheapv3.FixedHeapConfig{MaxHeapSizeBytes: heap}),
			monitor(
				"envoy.resource_monitors.global_downstream_max_connections",
				&downstreamconnectionsv3.DownstreamConnectionsConfig{
					MaxActiveDownstreamConnections: int64(connections),
				},
			),
		},
		Actions: actions,
	}
}

func monitor(name string, config proto.Message) *overloadv3.ResourceMonitor {
	return &overloadv3.ResourceMonitor{
		Name:       name,
		ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: typed.Pack(config)},
	}
}

// aboveHeap triggers an action while at least this part of the heap is in use.
func aboveHeap(action string, part float64) *overloadv3.OverloadAction {
	return &overloadv3.OverloadAction{Name: action, Triggers: []*overloadv3.Trigger{{
		Name:         heapMonitor,
		TriggerOneof: &overloadv3.Trigger_Threshold{Threshold: &overloadv3.ThresholdTrigger{Value: part}},
	}}}
}
