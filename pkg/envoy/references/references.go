// Package references finds the names of Envoy clusters in Envoy resources. Its input is any resource, its output is
// names. It does not know which resource is whose.
package references

import (
	"fmt"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// Of returns the Envoy clusters that a listener, an Envoy cluster or a bootstrap refers to by name, sorted and
// without duplicates: the targets of TCP proxies and routes, the targets of rc:// listeners, and gRPC services. Envoy
// accepts a name that does not exist. It returns an error for an extension that is unknown or cannot be decoded.
func Of(resource proto.Message) ([]string, error) {
	var names []string
	if err := walk(resource, func(m proto.Message) { names = append(names, refersTo(m)...) }); err != nil {
		return nil, err
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// refersTo returns the references of a message itself, without the messages inside of it.
func refersTo(m proto.Message) []string {
	name := ""
	switch m := m.(type) {
	case *tcpproxyv3.TcpProxy:
		name = m.GetCluster()
	case *routev3.RouteAction:
		name = m.GetCluster() // empty if a header names it
	case *corev3.GrpcService_EnvoyGrpc:
		name = m.GetClusterName()
	case *corev3.SocketAddress:
		name, _ = dialled(m.GetAddress())
	}
	if name == "" {
		return nil
	}
	return []string{name}
}

// dialled returns the Envoy cluster that an address of the form rc://NODE:ID:TENANT@CLUSTER:COUNT dials, or false for
// any other address.
func dialled(address string) (cluster string, ok bool) {
	rest, ok := strings.CutPrefix(address, "rc://")
	if !ok {
		return "", false
	}
	_, target, ok := strings.Cut(rest, "@")
	cluster, _, _ = strings.Cut(target, ":")
	return cluster, ok
}

// walk visits a message and all messages inside of it, including packed messages (Any).
func walk(m proto.Message, visit func(proto.Message)) error {
	if packed, ok := m.(*anypb.Any); ok {
		inner, err := packed.UnmarshalNew()
		if err != nil {
			return fmt.Errorf("decoding %s: %w", packed.GetTypeUrl(), err)
		}
		return walk(inner, visit)
	}
	visit(m)
	var err error
	m.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		for _, inner := range messagesOf(field, value) {
			if err = walk(inner, visit); err != nil {
				return false
			}
		}
		return true
	})
	return err
}

// messagesOf returns the messages in one field.
func messagesOf(field protoreflect.FieldDescriptor, value protoreflect.Value) []proto.Message {
	var inner []proto.Message
	switch {
	case field.IsMap():
		value.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
			if field.MapValue().Message() != nil {
				inner = append(inner, v.Message().Interface())
			}
			return true
		})
	case field.Message() == nil:
	case field.IsList():
		for i := range value.List().Len() {
			inner = append(inner, value.List().Get(i).Message().Interface())
		}
	default:
		inner = append(inner, value.Message().Interface())
	}
	return inner
}
