package network

import (
	"errors"
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	dfpclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dynamic_forward_proxy/v3"
	dfpcachev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/dynamic_forward_proxy/v3"
	dfpfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/dynamic_forward_proxy/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
)

var errUnrestricted = errors.New("its addresses are not restricted to a list")

// change reads a message, and returns true if it has changed it.
type change[M any] func(M) (bool, error)

// inside applies a change to a message that is packed in another. A message of another type is left as it is.
func inside[M proto.Message](packed *anypb.Any, m M, f change[M]) (changed bool, err error) {
	if !packed.MessageIs(m) {
		return false, nil
	}
	if err := packed.UnmarshalTo(m); err != nil {
		return false, fmt.Errorf("reading %s: %w", packed.GetTypeUrl(), err)
	}
	changed, err = f(m)
	if changed && err == nil {
		packed.Value = typed.Pack(m).GetValue()
	}
	return changed, err
}

// caches applies a change to every DNS cache of a listener or an Envoy cluster, and returns the result, or nil if there
// is no DNS cache. user is the name of the filter or the Envoy cluster that has it.
func caches(
	resource *anypb.Any, f func(user string, c *dfpcachev3.DnsCacheConfig) (bool, error),
) (result *anypb.Any, err error) {
	result = proto.CloneOf(resource)
	found := false
	each := func(user string, c *dfpcachev3.DnsCacheConfig) (bool, error) {
		found = true
		return f(user, c)
	}
	_, err = inside(result, &clusterv3.Cluster{}, func(c *clusterv3.Cluster) (bool, error) {
		name := c.GetName()
		return inside(c.GetClusterType().GetTypedConfig(), &dfpclusterv3.ClusterConfig{},
			func(c *dfpclusterv3.ClusterConfig) (bool, error) { return each(name, c.GetDnsCacheConfig()) })
	})
	if err != nil {
		return nil, err
	}
	_, err = managers(result, func(m *hcmv3.HttpConnectionManager) (changed bool, err error) {
		for _, filter := range m.GetHttpFilters() {
			one, err := inside(filter.GetTypedConfig(), &dfpfilterv3.FilterConfig{},
				func(c *dfpfilterv3.FilterConfig) (bool, error) { return each(filter.GetName(), c.GetDnsCacheConfig()) })
			if err != nil {
				return false, err
			}
			changed = changed || one
		}
		return changed, nil
	})
	if err != nil || !found {
		return nil, err
	}
	return result, nil
}

// managers applies a change to the HTTP connection managers of a listener.
func managers(resource *anypb.Any, f change[*hcmv3.HttpConnectionManager]) (changed bool, err error) {
	return inside(resource, &listenerv3.Listener{}, func(l *listenerv3.Listener) (changed bool, err error) {
		for _, chain := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
			for _, filter := range chain.GetFilters() {
				one, err := inside(filter.GetTypedConfig(), &hcmv3.HttpConnectionManager{}, f)
				if err != nil {
					return false, err
				}
				changed = changed || one
			}
		}
		return changed, nil
	})
}
