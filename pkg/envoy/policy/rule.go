package policy

import (
	"fmt"
	"regexp"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// typeURLPrefix is the prefix of the type of every extension.
const typeURLPrefix = "type.googleapis.com/"

// violation is a place in a resource that violates the policy.
type violation struct {
	path []string
	why  string
}

func violationf(format string, a ...any) *violation {
	return &violation{why: fmt.Sprintf(format, a...)}
}

func (v *violation) in(name string) *violation {
	if v != nil {
		v.path = append([]string{name}, v.path...)
	}
	return v
}

// deeper returns the violation with the longer path, which is more likely the cause if all alternatives fail.
func deeper(a, b *violation) *violation {
	if a == nil || len(b.path) > len(a.path) {
		return b
	}
	return a
}

// rule is a rule for a single value.
type rule interface {
	check(field protoreflect.FieldDescriptor, v protoreflect.Value) *violation
}

// anyOf is $any.
type anyOf []rule

func (a anyOf) check(field protoreflect.FieldDescriptor, v protoreflect.Value) (found *violation) {
	for _, r := range a {
		one := r.check(field, v)
		if one == nil {
			return nil
		}
		found = deeper(found, one)
	}
	return found
}

// text is a rule for strings, and for names of enums and booleans.
type text struct {
	exact   string
	pattern *regexp.Regexp // nil: exact
}

// maxText bounds the strings that are matched with a pattern.
const maxText = 1024

func (t *text) matches(s string) bool {
	if t.pattern == nil {
		return s == t.exact
	}
	return len(s) <= maxText && t.pattern.MatchString(s)
}

func (t *text) check(field protoreflect.FieldDescriptor, v protoreflect.Value) *violation {
	if s := valueName(field, v); !t.matches(s) {
		return violationf("is %.100q", s)
	}
	return nil
}

// valueName returns a value as text: the name of an enum value, or else its string form.
func valueName(field protoreflect.FieldDescriptor, v protoreflect.Value) string {
	if field.Kind() == protoreflect.EnumKind {
		if known := field.Enum().Values().ByNumber(v.Enum()); known != nil {
			return string(known.Name())
		}
	}
	return v.String()
}

// bounds is a rule for numbers.
type bounds struct{ low, high float64 }

func (b bounds) check(_ protoreflect.FieldDescriptor, v protoreflect.Value) *violation {
	if n, ok := number(v.Interface()); !ok || !(n >= b.low && n <= b.high) { // NaN is in no range
		return violationf("is %.100q, not from %v to %v", v.String(), b.low, b.high)
	}
	return nil
}

func number(v any) (float64, bool) {
	switch n := v.(type) {
	case int32:
		return float64(n), true
	case int64:
		return float64(n), true
	case uint32:
		return float64(n), true
	case uint64:
		return float64(n), true
	case float32:
		return float64(n), true
	case float64:
		return n, true
	}
	return 0, false
}

// never is the rule for a number that must not be set.
type never struct{}

func (never) check(protoreflect.FieldDescriptor, protoreflect.Value) *violation {
	return violationf("is set")
}

// wrapped is a rule for a message that stands for one value: a wrapper, a Value, or (with seconds) a duration.
type wrapped struct {
	field protoreflect.FieldDescriptor // nil: a duration
	rule  rule
}

func (w wrapped) check(_ protoreflect.FieldDescriptor, v protoreflect.Value) *violation {
	m := v.Message()
	if len(m.GetUnknown()) > 0 {
		return violationf("has a field that this version does not support")
	}
	if w.field != nil {
		if oneof := w.field.ContainingOneof(); oneof != nil && m.WhichOneof(oneof) != w.field {
			return violationf("is %.100q", v.String())
		}
		return w.rule.check(w.field, m.Get(w.field))
	}
	fields := m.Descriptor().Fields()
	seconds := float64(m.Get(fields.ByName("seconds")).Int()) + float64(m.Get(fields.ByName("nanos")).Int())/1e9
	return w.rule.check(nil, protoreflect.ValueOfFloat64(seconds))
}

// message is a rule for a message, or for the content of an Any.
type message struct {
	packed   protoreflect.FullName // for an Any: the type
	accepted *acceptedCache        // for an Any
	fields   map[protoreflect.FieldNumber]*field
	required []*field
	free     map[string]bool // strings that are names of statistics
	label    *text
}

// field is the rule for one field.
type field struct {
	descriptor protoreflect.FieldDescriptor
	values
}

// values are the rules for the values of a field.
type values struct {
	each     rule
	steps    []step          // of a list in brackets; then there are no other rules
	keys     map[string]rule // of a map, in addition to each
	required map[string]bool // required keys
}

type step struct {
	rule     rule
	optional bool
}

func (r *message) check(m protoreflect.Message) (found *violation) {
	if len(m.GetUnknown()) > 0 {
		return violationf("has a field that this version does not support")
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch f := r.fields[fd.Number()]; {
		case f != nil:
			found = f.check(fd, v).in(string(fd.Name()))
		case r.free[string(fd.Name())] && fd.Kind() == protoreflect.StringKind && !fd.IsList():
			found = r.label.check(fd, v).in(string(fd.Name()))
		case !isNumber(fd):
			found = violationf("is set").in(string(fd.Name()))
		default:
			found = unknownIn(fd, v).in(string(fd.Name()))
		}
		return found == nil
	})
	if found != nil {
		return found
	}
	for _, f := range r.required {
		if !m.Has(f.descriptor) {
			return violationf("is missing").in(string(f.descriptor.Name()))
		}
	}
	return nil
}

// of is a rule for a value that is a message.
type of struct{ *message }

func (r of) check(_ protoreflect.FieldDescriptor, v protoreflect.Value) *violation {
	packed, ok := v.Message().Interface().(*anypb.Any)
	if !ok {
		return r.message.check(v.Message())
	}
	if len(packed.ProtoReflect().GetUnknown()) > 0 {
		return violationf("has a field that this version does not support")
	}
	if packed.GetTypeUrl() != typeURLPrefix+string(r.packed) {
		return violationf("is a %.100q", packed.GetTypeUrl())
	}
	if r.accepted.has(packed.GetValue()) {
		return nil
	}
	inner, err := anypb.UnmarshalNew(packed, proto.UnmarshalOptions{})
	if err != nil {
		return violationf("cannot be decoded")
	}
	found := r.message.check(inner.ProtoReflect())
	if found == nil {
		r.accepted.add(packed.GetValue())
	}
	return found
}

func (r *values) check(fd protoreflect.FieldDescriptor, v protoreflect.Value) (found *violation) {
	switch {
	case fd.IsMap():
		return r.checkMap(fd, v.Map())
	case fd.IsList() && r.each == nil:
		return r.checkSteps(fd, v.List())
	case fd.IsList():
		for i := 0; i < v.List().Len() && found == nil; i++ {
			found = r.each.check(fd, v.List().Get(i))
		}
		return found
	default:
		return r.each.check(fd, v)
	}
}

// maxKeys bounds a map whose keys the policy does not list, such as the fields of a log line.
const maxKeys = 64

// freeKey matches keys that the policy does not list: they become part of each log line.
var freeKey = regexp.MustCompile(`^[a-zA-Z0-9_.]{1,64}$`)

func (r *values) checkMap(fd protoreflect.FieldDescriptor, m protoreflect.Map) (found *violation) {
	if m.Len() > maxKeys {
		return violationf("has %d keys, more than %d", m.Len(), maxKeys)
	}
	m.Range(func(key protoreflect.MapKey, v protoreflect.Value) bool {
		one := r.keys[key.String()]
		if one == nil {
			one = r.each
		}
		if one == nil || r.keys[key.String()] == nil && !freeKey.MatchString(key.String()) {
			found = violationf("has %.100q", key.String())
		} else {
			found = one.check(fd.MapValue(), v).in(fmt.Sprintf("%.100s", key.String()))
		}
		return found == nil
	})
	for key := range r.required {
		if found == nil && !m.Has(protoreflect.ValueOfString(key).MapKey()) {
			found = violationf("is missing").in(key)
		}
	}
	return found
}

func (r *values) checkSteps(fd protoreflect.FieldDescriptor, list protoreflect.List) *violation {
	next := 0
	for i := range list.Len() {
		var found *violation
		for done := false; !done; next++ {
			if next == len(r.steps) {
				if found == nil {
					found = violationf("has more fields than this agent supports")
				}
				return found
			}
			one := r.steps[next].rule.check(fd, list.Get(i))
			if one != nil {
				found = deeper(found, one)
			}
			if done = one == nil; !done && !r.steps[next].optional {
				return found
			}
		}
	}
	for ; next < len(r.steps); next++ {
		if !r.steps[next].optional {
			return violationf("is incomplete: an element is missing")
		}
	}
	return nil
}

// numbers are the messages that contain only a number.
var numbers = map[protoreflect.FullName]bool{
	"google.protobuf.Duration": true, "google.protobuf.DoubleValue": true, "google.protobuf.FloatValue": true,
	"google.protobuf.UInt32Value": true, "google.protobuf.UInt64Value": true, "google.protobuf.Int32Value": true,
	"google.protobuf.Int64Value": true,
}

// isNumber reports whether a field contains a number or a duration.
func isNumber(fd protoreflect.FieldDescriptor) bool {
	switch fd.Kind() {
	case protoreflect.BoolKind, protoreflect.EnumKind, protoreflect.StringKind, protoreflect.BytesKind:
		return false
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return !fd.IsMap() && !fd.IsList() && numbers[fd.Message().FullName()]
	default:
		return true
	}
}

// unknownIn checks a duration or a number for unknown fields.
func unknownIn(fd protoreflect.FieldDescriptor, v protoreflect.Value) *violation {
	if fd.Message() != nil && !fd.IsList() && len(v.Message().GetUnknown()) > 0 {
		return violationf("has a field that this version does not support")
	}
	return nil
}
