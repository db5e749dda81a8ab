package envoy

import (
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
)

// RenewUnused returns an edge's listener of reverse tunnels changed so that its Envoy closes a reverse tunnel in which
// no gateway has completed TLS for the given time, and dials another: it has the leaf and the trust bundle with which
// it was dialled. Envoy's FilterChain.transport_socket_connect_timeout never closes a used one, because it ends with
// the handshake. Any other resource is returned as it is.
func RenewUnused(resource *anypb.Any, after time.Duration) *anypb.Any {
	l := &listenerv3.Listener{}
	if !resource.MessageIs(l) || resource.UnmarshalTo(l) != nil {
		return resource
	}
	for _, chain := range l.GetFilterChains() {
		chain.TransportSocketConnectTimeout = durationpb.New(after)
	}
	return typed.Pack(l)
}
