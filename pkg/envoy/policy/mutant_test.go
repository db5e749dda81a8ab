package policy_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// harmless are path suffixes of all fields that may vary in the resources of an edge and a gateway, in addition to
// numbers and durations.
var harmless = []string{
	".stat_prefix", ".alt_stat_name", // names of statistics
	"load_assignment.cluster_name", "socket_options.description", // only for people
	"retry_policy.retry_on", // Envoy ignores unknown conditions
	"response_flag_filter.flags",
	"json_format.fields.value.string_value", // text without operators, on Envoy's output
	// any DNS name or IP address may be dialled: see the edge's --allow-target
	"endpoint.address.socket_address.address",
	// Envoy's default values lead nowhere else.
	".type", "load_assignment.endpoints", ".circuit_breakers", ".thresholds", ".expected_statuses", ".ipv4_compat",
	".dns_lookup_family",
	".all_addresses_in_single_endpoint", ".auto_host_sni", ".ignore_health_on_host_removal", ".omit_empty_values",
	".allow_connect", ".ignore_port_in_host_matching",
	".strip_trailing_host_dot", ".cluster_not_found_response_code",
}

// TestEveryOtherFieldIsRejected changes every field of Envoy's API at any place in the resources of an edge and a
// gateway, one at a time: an unset field gets a value, and each text becomes the name of the agent and a path.
func TestEveryOtherFieldIsRejected(t *testing.T) {
	s := newSample()
	edge, gateway := edgePolicy(), gatewayPolicy(everywhere)
	tried := 0
	for i, m := range []proto.Message{
		s.tunnel, s.apiservers, s.gateway, s.public, s.apiserver, s.port, s.connect, s.workload,
		s.peer, s.control,
	} {
		allowed := edge
		if i > 2 {
			allowed = gateway
		}
		mutate(t, m, "", func(path string, mutant proto.Message) {
			tried++
			if err := allowed.Check(wrapped(t, mutant)); err != nil {
				return
			}
			if !slices.ContainsFunc(harmless, func(end string) bool { return strings.HasSuffix("."+path, end) }) {
				t.Errorf(
					"%s is taken with another %s",
					mutant.ProtoReflect().Get(mutant.ProtoReflect().Descriptor().Fields().ByName("name")), path,
				)
			}
		})
	}
	if tried < 3000 {
		t.Errorf("only %d resources were tried", tried)
	}
}

// mutate yields copies of a message with one change each, of a field or inside of a nested message.
func mutate(t *testing.T, m proto.Message, path string, yield func(path string, mutant proto.Message)) {
	t.Helper()
	if packed, ok := m.(*anypb.Any); ok {
		inner, err := packed.UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		mutate(t, inner, path, func(path string, mutant proto.Message) { yield(path, wrapped(t, mutant)) })
		return
	}
	fields := m.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		at := strings.TrimPrefix(path+"."+string(fd.Name()), ".")
		if at == "name" {
			continue // another name is another resource
		}
		for _, change := range changes(fd) {
			mutant := proto.Clone(m)
			if change(mutant.ProtoReflect()); !proto.Equal(mutant, m) {
				yield(at, mutant)
			}
		}
		mutateInside(t, m, fd, at, yield)
	}
}

// mutateInside does the same with the messages in one field.
func mutateInside(
	t *testing.T, m proto.Message, fd protoreflect.FieldDescriptor, at string, yield func(string, proto.Message),
) {
	t.Helper()
	if !m.ProtoReflect().Has(fd) {
		return
	}
	value := m.ProtoReflect().Get(fd)
	replace := func(set func(copied protoreflect.Message, to protoreflect.Value)) func(string, proto.Message) {
		return func(path string, inner proto.Message) {
			mutant := proto.Clone(m)
			set(mutant.ProtoReflect(), protoreflect.ValueOfMessage(inner.ProtoReflect()))
			yield(path, mutant)
		}
	}
	switch {
	case fd.IsMap():
		if fd.MapValue().Message() == nil {
			return
		}
		value.Map().Range(func(key protoreflect.MapKey, v protoreflect.Value) bool {
			mutate(
				t, v.Message().Interface(), at+".value",
				replace(func(m protoreflect.Message, to protoreflect.Value) { m.Mutable(fd).Map().Set(key, to) }),
			)
			return true
		})
	case fd.Message() == nil:
	case fd.IsList():
		for i := range value.List().Len() {
			mutate(
				t, value.List().Get(i).Message().Interface(), at,
				replace(func(m protoreflect.Message, to protoreflect.Value) { m.Mutable(fd).List().Set(i, to) }),
			)
		}
	default:
		mutate(
			t, value.Message().Interface(), at, replace(func(m protoreflect.Message, to protoreflect.Value) { m.Set(fd, to) }),
		)
	}
}

// changes returns the changes of one field, except other numbers and durations.
func changes(fd protoreflect.FieldDescriptor) (all []func(protoreflect.Message)) {
	for _, v := range others(fd) {
		all = append(all, func(m protoreflect.Message) {
			switch {
			case fd.IsMap():
				m.Mutable(fd).Map().Set(protoreflect.ValueOfString("agent").MapKey(), m.NewField(fd).Map().NewValue())
			case fd.IsList() && fd.Message() != nil:
				m.Mutable(fd).List().Append(m.NewField(fd).List().NewElement())
			case fd.IsList():
				m.Mutable(fd).List().Append(v)
			case fd.Message() != nil && m.Has(fd):
			case fd.Message() != nil:
				m.Set(fd, m.NewField(fd))
			default:
				m.Set(fd, v)
			}
		})
	}
	return all
}

// others returns values that a field has in no resource of Fairlead. For a message, any value stands for an empty one.
func others(fd protoreflect.FieldDescriptor) []protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return []protoreflect.Value{protoreflect.ValueOfBool(true), protoreflect.ValueOfBool(false)}
	case protoreflect.EnumKind:
		var all []protoreflect.Value
		for i := range fd.Enum().Values().Len() {
			all = append(all, protoreflect.ValueOfEnum(fd.Enum().Values().Get(i).Number()))
		}
		return all
	case protoreflect.StringKind:
		return []protoreflect.Value{
			protoreflect.ValueOfString("agent"),
			protoreflect.ValueOfString("/etc/passwd"),
			protoreflect.ValueOfString("%SECRET(identity)%"),
		}
	case protoreflect.BytesKind:
		return []protoreflect.Value{protoreflect.ValueOfBytes([]byte("agent"))}
	case protoreflect.MessageKind:
		if !fd.IsMap() && !fd.IsList() && strings.HasPrefix(string(fd.Message().FullName()), "google.protobuf.") &&
			!slices.Contains(
				[]protoreflect.FullName{
					"google.protobuf.BoolValue",
					"google.protobuf.StringValue",
					"google.protobuf.Struct",
					"google.protobuf.Any",
				},
				fd.Message().FullName(),
			) {
			return nil
		}
		return []protoreflect.Value{{}}
	default:
		return nil
	}
}
