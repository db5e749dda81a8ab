package envoy

import (
	"errors"
	"fmt"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/envoy/record"
)

var errNoOwner = errors.New("it does not record the owner of its connections")

// IsPublicListener reports whether a resource is a gateway's public listener.
func IsPublicListener(resource *anypb.Any) bool {
	l := &listenerv3.Listener{}
	return resource.MessageIs(l) && resource.UnmarshalTo(l) == nil && l.GetName() == publicListener
}

// RecordsOwners returns an error if a filter chain of a gateway's public listener does not record the owner of its
// connections in record.TunnelLog. For any other resource it returns nil. The bootstrap records reverse tunnels; a TCP
// proxy records each of its connections, and an HTTP connection manager each of its requests.
func RecordsOwners(resource *anypb.Any) error {
	if !IsPublicListener(resource) {
		return nil
	}
	l := &listenerv3.Listener{}
	if err := resource.UnmarshalTo(l); err != nil {
		return fmt.Errorf("reading listener: %w", err)
	}
	for _, chain := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
		if chain != nil && record.Owner(chain) == "" {
			return fmt.Errorf("filter chain %.100q of the public listener: %w", chain.GetName(), errNoOwner)
		}
	}
	return nil
}
