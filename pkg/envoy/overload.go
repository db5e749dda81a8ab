package envoy

import (
	"cmp"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	downstreamconnectionsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	fixedheapv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/fixed_heap/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

const heapMonitor = "envoy.resource_monitors.fixed_heap"

// gatewayOverload keeps a gateway within its memory limit: Envoy returns unused memory, and then stops accepting
// clients and edges until memory is available.
func gatewayOverload(c BootstrapConfig) *overloadv3.OverloadManager {
	return overload(cmp.Or(c.MaxHeap, gatewayHeap), connections(c),
		aboveHeap("envoy.overload_actions.shrink_heap", shrinkAt),
		aboveHeap("envoy.overload_actions.stop_accepting_requests", rejectAt),
		aboveHeap("envoy.overload_actions.stop_accepting_connections", rejectAt))
}

// edgeOverload keeps an edge within its memory limit. Envoy continues to dial reverse tunnels, whose number is
// bounded, but rejects new streams in them, for which the gateway then tries another edge.
func edgeOverload(c BootstrapConfig) *overloadv3.OverloadManager {
	return overload(cmp.Or(c.MaxHeap, edgeHeap), connections(c),
		aboveHeap("envoy.overload_actions.shrink_heap", shrinkAt),
		aboveHeap("envoy.overload_actions.stop_accepting_requests", rejectAt))
}

// listenerLimit reserves half of a gateway's connections for clients, whatever arrives at the public listener. It uses
// that listener's own limit, and not ignore_global_conn_limit on the others: Envoy 1.40 subtracts each of their
// connections from the global limit when it ends, although it was never added.
func listenerLimit(c BootstrapConfig) *bootstrapv3.RuntimeLayer {
	return staticLayer("listener_limit", map[string]*structpb.Value{
		"envoy.resource_limits.listener." + publicListener + ".connection_limit": structpb.NewNumberValue(
			float64(connections(c) / 2),
		),
	})
}

// connections returns the connection limit of a BootstrapConfig.
func connections(c BootstrapConfig) uint64 {
	return min(cmp.Or(c.MaxConnections, maxConnections), 1<<31)
}

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
		ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: pack(config)},
	}
}

// aboveHeap triggers an action while at least this part of the heap is in use.
func aboveHeap(action string, part float64) *overloadv3.OverloadAction {
	return &overloadv3.OverloadAction{Name: action, Triggers: []*overloadv3.Trigger{{
		Name:         heapMonitor,
		TriggerOneof: &overloadv3.Trigger_Threshold{Threshold: &overloadv3.ThresholdTrigger{Value: part}},
	}}}
}
