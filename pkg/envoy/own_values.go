package envoy

import (
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// anyTunnels leaves it open how many tunnels the listeners of an edge keep, which depends on the workers of the gateways. It is the
// last part of their addresses.
func anyTunnels(listeners []*listenerv3.Listener) []*listenerv3.Listener {
	for _, l := range listeners {
		at := l.GetAddress().GetSocketAddress()
		at.Address = at.GetAddress()[:strings.LastIndex(at.GetAddress(), ":")+1] + anyNumber
	}
	return listeners
}

// each visits the values of a field, until told to stop: those of a map with their keys.
func each(field protoreflect.FieldDescriptor, value protoreflect.Value, visit func(key string, one protoreflect.FieldDescriptor, v protoreflect.Value) bool) {
	switch {
	case field.IsMap():
		value.Map().Range(func(key protoreflect.MapKey, v protoreflect.Value) bool {
			return visit(key.String(), field.MapValue(), v)
		})
	case field.IsList():
		for i := range value.List().Len() {
			if !visit("", field, value.List().Get(i)) {
				return
			}
		}
	default:
		visit("", field, value)
	}
}

// numbers are the messages that hold no more than a number.
var numbers = map[protoreflect.FullName]bool{
	"google.protobuf.Duration": true, "google.protobuf.DoubleValue": true, "google.protobuf.FloatValue": true,
	"google.protobuf.UInt32Value": true, "google.protobuf.UInt64Value": true, "google.protobuf.Int32Value": true, "google.protobuf.Int64Value": true,
}

// harmless says that a field holds a number, or a time. Those of a socket option say what it does.
func harmless(field protoreflect.FieldDescriptor) bool {
	switch field.Kind() {
	case protoreflect.BoolKind, protoreflect.EnumKind, protoreflect.StringKind, protoreflect.BytesKind:
		return false
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return !field.IsMap() && numbers[field.Message().FullName()]
	default:
		return field.ContainingMessage().FullName() != "envoy.config.core.v3.SocketOption"
	}
}
