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

// handshakeLimit closes connections of edges beyond a rate before TLS begins in them, so that a gateway to which all edges return
// at once has time for its clients; the edges dial again with jitter. All clients share this bucket, so it protects the gateway
// and no edge from other clients. The gateway's agent reads the rate and divides it by source: see AddAdmission.
func handshakeLimit(inst model.Installation) *listenerv3.Filter {
	return connectionLimit("handshakes", cmp.Or(inst.Handshakes, handshakeRate))
}

// connectionLimit closes connections beyond a rate, as long as one second of it at once.
func connectionLimit(statPrefix string, rate int) *listenerv3.Filter {
	each := uint32(rate)
	return filter(localLimitFilter, &localratelimitv3.LocalRateLimit{
		StatPrefix: statPrefix,
		TokenBucket: &typev3.TokenBucket{
			MaxTokens:     each,
			TokensPerFill: wrapperspb.UInt32(max(1, each/uint32(time.Second/handshakeFill))),
			FillInterval:  durationpb.New(handshakeFill),
		},
	})
}
