package record

import (
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

// Owner returns the owner that a filter chain records, by its last filter, or "".
func Owner(chain *listenerv3.FilterChain) string {
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
