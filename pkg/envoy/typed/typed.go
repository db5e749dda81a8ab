// Package typed encodes messages into the parts of Envoy resources that contain extensions. Equal messages give equal
// bytes. The package does not know which extensions Fairlead uses.
package typed

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Pack encodes the configuration of an extension deterministically. It panics if a string is not UTF-8.
func Pack(message proto.Message) *anypb.Any {
	packed := &anypb.Any{}
	if err := anypb.MarshalFrom(packed, message, proto.MarshalOptions{Deterministic: true}); err != nil {
		// Only a string that is not UTF-8 cannot be encoded, and no validated name contains one.
		panic(err)
	}
	return packed
}

// Extension is Pack with a name.
func Extension(name string, config proto.Message) *corev3.TypedExtensionConfig {
	return &corev3.TypedExtensionConfig{Name: name, TypedConfig: Pack(config)}
}

// HTTPFilter returns a filter of an HTTP connection manager.
func HTTPFilter(name string, config proto.Message) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: Pack(config)}}
}
