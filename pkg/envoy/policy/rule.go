package policy

import (
	"fmt"
	"regexp"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// typeURLPrefix is in front of the type of every extension.
const typeURLPrefix = "type.googleapis.com/"

// violation is a place in a resource that is against the policy.
type violation struct {
	path []string
	why  string
}

func against(format string, a ...any) *violation { return &violation{why: fmt.Sprintf(format, a...)} }

func (v *violation) in(name string) *violation {
	if v != nil {
		v.path = append([]string{name}, v.path...)
	}
	return v
}

// deeper returns the violation that is nearer to what somebody changed: of rules of which any would do.
func deeper(a, b *violation) *violation {
	if a == nil || len(b.path) > len(a.path) {
		return b
	}
	return a
}

// rule is one for a single value.
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

// maxText bounds what a pattern is compared with.
const maxText = 1024

func (t *text) matches(s string) bool {
	if t.pattern == nil {
		return s == t.exact
	}
	return len(s) <= maxText && t.pattern.MatchString(s)
}

func (t *text) check(field protoreflect.FieldDescriptor, v protoreflect.Value) *violation {
	if s := shown(field, v); !t.matches(s) {
		return against("is %.100q", s)
	}
	return nil
}

// shown is a value as people know it.
func shown(field protoreflect.FieldDescriptor, v protoreflect.Value) string {
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
	if n, ok := number(v.Interface()); !ok || !(n >= b.low && n <= b.high) { // not a number is in no range
		return against("is %.100q, and not from %v to %v", v.String(), b.low, b.high)
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
	return against("is set")
}

// wrapped is a rule for a message that stands for one value: a wrapper, a Value, or (with seconds) a time.
type wrapped struct {
	field protoreflect.FieldDescriptor // nil: a time
	rule  rule
}

func (w wrapped) check(_ protoreflect.FieldDescriptor, v protoreflect.Value) *violation {
	m := v.Message()
	if len(m.GetUnknown()) > 0 {
		return against("has a field that this version does not know")
	}
	if w.field != nil {
		if oneof := w.field.ContainingOneof(); oneof != nil && m.WhichOneof(oneof) != w.field {
			return against("is %.100q", v.String())
		}
		return w.rule.check(w.field, m.Get(w.field))
	}
	fields := m.Descriptor().Fields()
	seconds := float64(m.Get(fields.ByName("seconds")).Int()) + float64(m.Get(fields.ByName("nanos")).Int())/1e9
	return w.rule.check(nil, protoreflect.ValueOfFloat64(seconds))
}

// message is a rule for a message, or for what is packed in an Any.
type message struct {
	packed protoreflect.FullName // of an Any: the type
	good   *remembered           // of an Any
	fields map[protoreflect.FieldNumber]*field
	must   []*field
	free   map[string]bool // strings that are names of statistics
	label  *text
}

// field is the rule for one field.
type field struct {
	descriptor protoreflect.FieldDescriptor
	values
}

// values are the rules for what a field holds.
type values struct {
	each  rule
	steps []step          // of a list in brackets, then there is no other
	keys  map[string]rule // of a map, beside each
	must  map[string]bool // keys
}

type step struct {
	rule  rule
	maybe bool
}

func (r *message) check(m protoreflect.Message) (found *violation) {
	if len(m.GetUnknown()) > 0 {
		return against("has a field that this version does not know")
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch f := r.fields[fd.Number()]; {
		case f != nil:
			found = f.check(fd, v).in(string(fd.Name()))
		case r.free[string(fd.Name())] && fd.Kind() == protoreflect.StringKind && !fd.IsList():
			found = r.label.check(fd, v).in(string(fd.Name()))
		case !harmless(fd):
			found = against("is set").in(string(fd.Name()))
		default:
			found = unknownIn(fd, v).in(string(fd.Name()))
		}
		return found == nil
	})
	if found != nil {
		return found
	}
	for _, f := range r.must {
		if !m.Has(f.descriptor) {
			return against("is missing").in(string(f.descriptor.Name()))
		}
	}
	return nil
}

// of makes a rule for a message one for a value.
type of struct{ *message }

func (r of) check(_ protoreflect.FieldDescriptor, v protoreflect.Value) *violation {
	packed, ok := v.Message().Interface().(*anypb.Any)
	if !ok {
		return r.message.check(v.Message())
	}
	if len(packed.ProtoReflect().GetUnknown()) > 0 {
		return against("has a field that this version does not know")
	}
	if packed.GetTypeUrl() != typeURLPrefix+string(r.packed) {
		return against("is a %.100q", packed.GetTypeUrl())
	}
	if r.good.has(packed.GetValue()) {
		return nil
	}
	inner, err := anypb.UnmarshalNew(packed, proto.UnmarshalOptions{})
	if err != nil {
		return against("can't be decoded")
	}
	found := r.message.check(inner.ProtoReflect())
	if found == nil {
		r.good.add(packed.GetValue())
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

// maxKeys is how many keys a map may have whose keys the policy does not list, such as the fields of a log line.
const maxKeys = 64

// freeKey is a key that the policy does not list: it becomes part of each line.
var freeKey = regexp.MustCompile(`^[a-zA-Z0-9_.]{1,64}$`)

func (r *values) checkMap(fd protoreflect.FieldDescriptor, m protoreflect.Map) (found *violation) {
	if m.Len() > maxKeys {
		return against("has %d keys, more than %d", m.Len(), maxKeys)
	}
	m.Range(func(key protoreflect.MapKey, v protoreflect.Value) bool {
		one := r.keys[key.String()]
		if one == nil {
			one = r.each
		}
		if one == nil || r.keys[key.String()] == nil && !freeKey.MatchString(key.String()) {
			found = against("has %.100q", key.String())
		} else {
			found = one.check(fd.MapValue(), v).in(fmt.Sprintf("%.100s", key.String()))
		}
		return found == nil
	})
	for key := range r.must {
		if found == nil && !m.Has(protoreflect.ValueOfString(key).MapKey()) {
			found = against("is missing").in(key)
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
					found = against("has more than this agent knows")
				}
				return found
			}
			one := r.steps[next].rule.check(fd, list.Get(i))
			if one != nil {
				found = deeper(found, one)
			}
			if done = one == nil; !done && !r.steps[next].maybe {
				return found
			}
		}
	}
	for ; next < len(r.steps); next++ {
		if !r.steps[next].maybe {
			return against("is incomplete: an element is missing")
		}
	}
	return nil
}

// numbers are the messages that hold no more than a number.
var numbers = map[protoreflect.FullName]bool{
	"google.protobuf.Duration": true, "google.protobuf.DoubleValue": true, "google.protobuf.FloatValue": true,
	"google.protobuf.UInt32Value": true, "google.protobuf.UInt64Value": true, "google.protobuf.Int32Value": true, "google.protobuf.Int64Value": true,
}

// harmless says that a field holds a number, or a time.
func harmless(fd protoreflect.FieldDescriptor) bool {
	switch fd.Kind() {
	case protoreflect.BoolKind, protoreflect.EnumKind, protoreflect.StringKind, protoreflect.BytesKind:
		return false
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return !fd.IsMap() && !fd.IsList() && numbers[fd.Message().FullName()]
	default:
		return true
	}
}

// unknownIn looks into a time or a number.
func unknownIn(fd protoreflect.FieldDescriptor, v protoreflect.Value) *violation {
	if fd.Message() != nil && !fd.IsList() && len(v.Message().GetUnknown()) > 0 {
		return against("has a field that this version does not know")
	}
	return nil
}
