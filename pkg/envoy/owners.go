package envoy

import (
	"errors"
	"fmt"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	fileaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	reversetunnelv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/reverse_tunnel/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

var errNoOwner = errors.New("it does not record the owner of its connections")

// IsPublicListener reports whether a resource is a gateway's public listener.
func IsPublicListener(resource *anypb.Any) bool {
	l := &listenerv3.Listener{}
	return resource.MessageIs(l) && resource.UnmarshalTo(l) == nil && l.GetName() == publicListener
}

// RecordsOwners returns an error if a filter chain of a gateway's public listener does not record the owner of its
// connections in TunnelLog. For any other resource it returns nil. The bootstrap records reverse tunnels; a TCP proxy
// records every other connection.
func RecordsOwners(resource *anypb.Any) error {
	if !IsPublicListener(resource) {
		return nil
	}
	l := &listenerv3.Listener{}
	if err := resource.UnmarshalTo(l); err != nil {
		return fmt.Errorf("reading listener: %w", err)
	}
	for _, chain := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
		if chain != nil && ownerOf(chain) == "" {
			return fmt.Errorf("filter chain %.100q of the public listener: %w", chain.GetName(), errNoOwner)
		}
	}
	return nil
}

// ownerOf returns the owner that a filter chain records, by its last filter, or "".
func ownerOf(chain *listenerv3.FilterChain) string {
	filters := chain.GetFilters()
	if len(filters) == 0 {
		return ""
	}
	config := filters[len(filters)-1].GetTypedConfig()
	if config.MessageIs(&reversetunnelv3.ReverseTunnel{}) {
		return OwnerTunnel
	}
	proxy := &tcpproxyv3.TcpProxy{}
	if config.UnmarshalTo(proxy) != nil || !proxy.GetAccessLogOptions().GetFlushAccessLogOnStart() {
		return ""
	}
	for _, log := range proxy.GetAccessLog() {
		file := &fileaccesslogv3.FileAccessLog{}
		if log.GetFilter() == nil && log.GetTypedConfig().UnmarshalTo(file) == nil && file.GetPath() == TunnelLog {
			return file.GetLogFormat().GetJsonFormat().GetFields()["owner"].GetStringValue()
		}
	}
	return ""
}
