package envoy

import (
	"errors"
	"fmt"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/envoy/record"
)

var errNoOwner = errors.New("it does not record the owner of its connections")

// asPublic returns a gateway's public listener; nil: it is another resource.
func asPublic(resource *anypb.Any) *listenerv3.Listener {
	l := &listenerv3.Listener{}
	if !resource.MessageIs(l) || resource.UnmarshalTo(l) != nil || l.GetName() != publicListener {
		return nil
	}
	return l
}

// RecordsOwners returns an error if a filter chain of a gateway's public listener does not record the owner of its
// connections in record.TunnelLog. For any other resource it returns nil. The bootstrap records reverse tunnels; a TCP
// proxy records each of its connections, and an HTTP connection manager each of its requests.
func RecordsOwners(resource *anypb.Any) error {
	l := asPublic(resource)
	if l == nil {
		return nil
	}
	for _, chain := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
		if chain != nil && record.Owner(chain) == "" {
			return fmt.Errorf("filter chain %.100q of the public listener: %w", chain.GetName(), errNoOwner)
		}
	}
	return nil
}
