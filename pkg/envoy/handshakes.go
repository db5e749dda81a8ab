package envoy

import (
	"cmp"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	localratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/local_ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/model"
)

// handshakeFill is how often handshakes are allowed again. Envoy takes no less than 50 ms.
const handshakeFill = 100 * time.Millisecond

// handshakeLimit closes connections of edges beyond a rate before TLS begins in them, so that a gateway which all edges come back
// to has time for its clients; the edges dial again with jitter. It stands in one filter chain, and is for nobody else: tunnels
// that are there, the control channel and what is passed on to other gateways, which have limits of their own.
func handshakeLimit(inst model.Installation) *listenerv3.Filter {
	rate := uint32(cmp.Or(inst.Handshakes, handshakeRate))
	return filter("envoy.filters.network.local_ratelimit", &localratelimitv3.LocalRateLimit{
		StatPrefix: "handshakes",
		TokenBucket: &typev3.TokenBucket{
			MaxTokens:     rate, // of one second
			TokensPerFill: wrapperspb.UInt32(max(1, rate/uint32(time.Second/handshakeFill))),
			FillInterval:  durationpb.New(handshakeFill),
		},
	})
}
