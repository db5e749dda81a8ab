package envoy

import (
	"cmp"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	localratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/local_ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

// handshakeFill is the refill interval of the bucket. Envoy's minimum is 50 ms.
const handshakeFill = 100 * time.Millisecond

// handshakeLimit closes connections of edges beyond a rate before TLS begins, so that a gateway has time for its
// clients when all edges return at once. The edges dial again with jitter. All clients share this bucket, so it
// protects the gateway, but not one edge from other clients. The gateway's agent reads the rate and divides it by
// source: see AddAdmission.
func handshakeLimit(inst model.Installation) *listenerv3.Filter {
	return connectionLimit("handshakes", cmp.Or(inst.Handshakes, handshakeRate))
}

// connectionLimit closes connections beyond a rate, with a burst of one second.
func connectionLimit(statPrefix string, rate int) *listenerv3.Filter {
	each := uint32(rate)
	return typed.NetworkFilter(localLimitFilter, &localratelimitv3.LocalRateLimit{
		StatPrefix: statPrefix,
		TokenBucket: &typev3.TokenBucket{
			MaxTokens:     each,
			TokensPerFill: wrapperspb.UInt32(max(1, each/uint32(time.Second/handshakeFill))),
			FillInterval:  durationpb.New(handshakeFill),
		},
	})
}
