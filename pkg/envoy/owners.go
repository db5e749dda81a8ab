package envoy

import (
	"errors"
	"fmt"
	"slices"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	fileaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	reversetunnelv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/reverse_tunnel/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/envoy/accesslog"
)

var errNoOwner = errors.New("it does not record the owner of its connections")

// IsPublicListener reports whether a resource is a gateway's public listener.
func IsPublicListener(resource *anypb.Any) bool {
	l := &listenerv3.Listener{}
	return resource.MessageIs(l) && resource.UnmarshalTo(l) == nil && l.GetName() == publicListener
}

// RecordsOwners returns an error if a filter chain of a gateway's public listener does not record the owner of its
// connections in TunnelLog. For any other resource it returns nil. The bootstrap records reverse tunnels; a TCP proxy
// records each of its connections, and an HTTP connection manager each of its requests.
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
	if config.MessageIs(&hcmv3.HttpConnectionManager{}) {
		return ownerOfRequests(config)
	}
	proxy := &tcpproxyv3.TcpProxy{}
	if config.UnmarshalTo(proxy) != nil || !proxy.GetAccessLogOptions().GetFlushAccessLogOnStart() {
		return ""
	}
	for _, log := range proxy.GetAccessLog() {
		if owner := ownerIn(log); owner != "" && log.GetFilter() == nil {
			return owner
		}
	}
	return ""
}

// ownerOfRequests returns the owner that an HTTP connection manager records when a request arrives, or "".
func ownerOfRequests(config *anypb.Any) string {
	manager := &hcmv3.HttpConnectionManager{}
	if config.UnmarshalTo(manager) != nil || !manager.GetAccessLogOptions().GetFlushAccessLogOnNewRequest() {
		return ""
	}
	for _, log := range manager.GetAccessLog() {
		only := log.GetFilter().GetLogTypeFilter()
		if owner := ownerIn(log); owner != "" && slices.Equal(only.GetTypes(), accesslog.Requests()) && !only.GetExclude() {
			return owner
		}
	}
	return ""
}

// ownerIn returns the owner in the records of an access log, or "" if it is not TunnelLog.
func ownerIn(log *accesslogv3.AccessLog) string {
	file := &fileaccesslogv3.FileAccessLog{}
	if log.GetTypedConfig().UnmarshalTo(file) != nil || file.GetPath() != TunnelLog {
		return ""
	}
	return file.GetLogFormat().GetJsonFormat().GetFields()["owner"].GetStringValue()
}
