package envoy

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	echov3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/echo/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
)

// loopListener echoes the agent's data without the main thread: an echo proves that a worker makes progress. Exact
// balance assigns each worker one of as many connections as there are workers. The agent must be able to connect while
// the overload manager rejects everything else, because an overloaded Envoy is busy and not hung.
func loopListener() *listenerv3.Listener {
	return &listenerv3.Listener{
		Name:       "loop",
		StatPrefix: "loop",
		Address:    &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: LoopSocket, Mode: 0o600}}},
		ConnectionBalanceConfig: &listenerv3.Listener_ConnectionBalanceConfig{
			BalanceType: &listenerv3.Listener_ConnectionBalanceConfig_ExactBalance_{
				ExactBalance: &listenerv3.Listener_ConnectionBalanceConfig_ExactBalance{},
			},
		},
		BypassOverloadManager: true,
		IgnoreGlobalConnLimit: true,
		// Only a few bytes are in transit at a time. The default would allow 1 MiB to wait on each connection.
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(1 << 10),
		FilterChains: []*listenerv3.FilterChain{
			{Filters: []*listenerv3.Filter{typed.NetworkFilter("envoy.filters.network.echo", &echov3.Echo{})}},
		},
	}
}
