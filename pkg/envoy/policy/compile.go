package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Keys of policy.yaml that are not names of fields.
const (
	keyType      = "@type"
	keyAny       = "$any"
	keyEach      = "$each"
	keyOptional  = "$maybe"
	keyMerge     = "<<"
	markRequired = "!"
)

// compiler compiles policy.yaml to rules.
type compiler struct {
	patterns map[string]string // regular expressions of {x}
	free     map[string]bool
	texts    map[string]*text // compiled texts
}

// entry is one key of a mapping.
type entry struct {
	key      string
	required bool
	value    *yaml.Node
}

func fault(node *yaml.Node, format string, a ...any) error {
	return fmt.Errorf("line %d: %s", node.Line, fmt.Sprintf(format, a...))
}

// resolve follows an alias.
func resolve(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

// entries returns the entries of a mapping, including merged ones.
func entries(node *yaml.Node) ([]entry, error) {
	if node = resolve(node); node.Kind != yaml.MappingNode {
		return nil, fault(node, "this must be a mapping")
	}
	var all []entry
	for i := 0; i < len(node.Content); i += 2 {
		key, value := node.Content[i].Value, resolve(node.Content[i+1])
		if key == keyMerge {
			merged, err := entries(value)
			if err != nil {
				return nil, err
			}
			all = append(all, merged...)
			continue
		}
		name, required := strings.CutSuffix(key, markRequired)
		all = append(all, entry{name, required, value})
	}
	return all, nil
}

// only returns the value of key if it is the only key of a mapping.
func only(node *yaml.Node, key string) (*yaml.Node, bool) {
	if node = resolve(node); node.Kind == yaml.MappingNode && len(node.Content) == 2 && node.Content[0].Value == key {
		return resolve(node.Content[1]), true
	}
	return nil, false
}

func descriptorOf(node *yaml.Node, name string) (protoreflect.MessageDescriptor, error) {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(name))
	if err != nil {
		return nil, fault(node, "%s: %s", name, err)
	}
	return kind.Descriptor(), nil
}

func (c *compiler) resource(kind string, node *yaml.Node) (resource, error) {
	md, err := descriptorOf(node, kind)
	if err != nil {
		return resource{}, err
	}
	rule, err := c.message(node, md)
	if err != nil {
		return resource{}, err
	}
	for _, f := range rule.required {
		if name, ok := f.each.(*text); ok && f.descriptor.Name() == "name" {
			return resource{name, rule}, nil
		}
	}
	return resource{}, fault(node, "a %s must have a name", kind)
}

// message compiles a mapping whose keys are names of fields.
func (c *compiler) message(node *yaml.Node, md protoreflect.MessageDescriptor) (*message, error) {
	all, err := entries(node)
	if err != nil {
		return nil, err
	}
	label, err := c.text("{label}")
	if err != nil {
		return nil, fault(node, "%s", err)
	}
	m := &message{fields: map[protoreflect.FieldNumber]*field{}, free: c.free, label: label}
	if md.FullName() == "google.protobuf.Any" {
		i := slices.IndexFunc(all, func(e entry) bool { return e.key == keyType })
		if i < 0 {
			return nil, fault(node, "an extension needs its %s", keyType)
		}
		if md, err = descriptorOf(all[i].value, all[i].value.Value); err != nil {
			return nil, err
		}
		m.packed, m.accepted = md.FullName(), &acceptedCache{}
		all = slices.Delete(all, i, i+1)
	}
	for _, e := range all {
		fd := md.Fields().ByName(protoreflect.Name(e.key))
		if fd == nil {
			return nil, fault(e.value, "%s has no field %q", md.FullName(), e.key)
		}
		if m.fields[fd.Number()] != nil {
			return nil, fault(e.value, "%q is here twice", e.key)
		}
		f := &field{descriptor: fd}
		if f.values, err = c.values(e.value, fd); err != nil {
			return nil, err
		}
		m.fields[fd.Number()] = f
		if e.required {
			m.required = append(m.required, f)
		}
	}
	return m, nil
}

// values compiles the rules for the values of a field.
func (c *compiler) values(node *yaml.Node, fd protoreflect.FieldDescriptor) (v values, err error) {
	switch {
	case fd.IsMap():
		return c.keys(node, fd.MapValue())
	case fd.IsList() && resolve(node).Kind == yaml.SequenceNode:
		for _, one := range resolve(node).Content {
			inner, optional := only(one, keyOptional)
			if !optional {
				inner = resolve(one)
			}
			r, err := c.value(inner, fd)
			if err != nil {
				return v, err
			}
			v.steps = append(v.steps, step{r, optional})
		}
		return v, nil
	default:
		v.each, err = c.value(node, fd)
		return v, err
	}
}

// keys compiles the rules for a map.
func (c *compiler) keys(node *yaml.Node, value protoreflect.FieldDescriptor) (v values, err error) {
	all, err := entries(node)
	if err != nil {
		return v, err
	}
	v.keys, v.required = map[string]rule{}, map[string]bool{}
	for _, e := range all {
		r, err := c.value(e.value, value)
		if err != nil {
			return v, err
		}
		if e.key == keyEach {
			v.each = r
			continue
		}
		v.keys[e.key] = r
		if e.required {
			v.required[e.key] = true
		}
	}
	return v, nil
}

// value compiles the rule for one value.
func (c *compiler) value(node *yaml.Node, fd protoreflect.FieldDescriptor) (rule, error) {
	node = resolve(node)
	if alternatives, ok := only(node, keyAny); ok {
		var all anyOf
		for _, one := range alternatives.Content {
			r, err := c.value(one, fd)
			if err != nil {
				return nil, err
			}
			all = append(all, r)
		}
		return all, nil
	}
	switch {
	case fd.Message() == nil:
		return c.scalar(node, fd)
	case node.Kind == yaml.ScalarNode:
		return c.wrapped(node, fd.Message())
	case fd.Message().FullName() == "google.protobuf.Struct":
		fields := fd.Message().Fields().ByName("fields")
		v, err := c.keys(node, fields.MapValue())
		f := &field{fields, v}
		return of{&message{fields: map[protoreflect.FieldNumber]*field{fields.Number(): f}, required: []*field{f}}}, err
	default:
		m, err := c.message(node, fd.Message())
		return of{m}, err
	}
}

// wrapped compiles the rule for a message that stands for one value.
func (c *compiler) wrapped(node *yaml.Node, md protoreflect.MessageDescriptor) (rule, error) {
	if node.Value == "never" {
		return never{}, nil
	}
	switch md.FullName() {
	case "google.protobuf.Duration":
		r, err := duration(node)
		return wrapped{nil, r}, err
	case "google.protobuf.Value":
		fd := md.Fields().ByName("string_value")
		if node.Tag == "!!bool" {
			fd = md.Fields().ByName("bool_value")
		}
		r, err := c.scalar(node, fd)
		return wrapped{fd, r}, err
	}
	fd := md.Fields().ByName("value")
	if fd == nil || md.Fields().Len() != 1 {
		return nil, fault(node, "%s is not a single value", md.FullName())
	}
	r, err := c.scalar(node, fd)
	return wrapped{fd, r}, err
}

// scalar compiles the rule for a string, a number, an enum or a boolean.
func (c *compiler) scalar(node *yaml.Node, fd protoreflect.FieldDescriptor) (rule, error) {
	if node.Kind != yaml.ScalarNode {
		return nil, fault(node, "%s takes a single value", fd.FullName())
	}
	switch fd.Kind() {
	case protoreflect.StringKind, protoreflect.BoolKind:
	case protoreflect.EnumKind:
		if fd.Enum().Values().ByName(protoreflect.Name(node.Value)) == nil {
			return nil, fault(node, "%s has no %q", fd.Enum().FullName(), node.Value)
		}
	case protoreflect.BytesKind:
		return nil, fault(node, "%s holds bytes, which are never allowed", fd.FullName())
	default:
		if node.Value == "never" {
			return never{}, nil
		}
		return c.bounds(node)
	}
	t, err := c.text(node.Value)
	if err != nil {
		return nil, fault(node, "%s", err)
	}
	return t, nil
}

var placeholder = regexp.MustCompile(`\{[a-z_]+\}`)

// text compiles a text with placeholders {x}.
func (c *compiler) text(s string) (*text, error) {
	if t := c.texts[s]; t != nil {
		return t, nil
	}
	t, err := c.compileText(s)
	if err == nil {
		c.texts[s] = t
	}
	return t, err
}

func (c *compiler) compileText(s string) (*text, error) {
	var pattern strings.Builder
	pattern.WriteString(`\A`)
	rest := s
	for {
		at := placeholder.FindStringIndex(rest)
		if at == nil {
			break
		}
		word, ok := c.patterns[rest[at[0]+1:at[1]-1]]
		if !ok {
			return nil, fmt.Errorf("%s stands for nothing", rest[at[0]:at[1]])
		}
		pattern.WriteString(regexp.QuoteMeta(rest[:at[0]]) + word)
		rest = rest[at[1]:]
	}
	if rest == s {
		return &text{exact: s}, nil
	}
	compiled, err := regexp.Compile(pattern.String() + regexp.QuoteMeta(rest) + `\z`)
	return &text{pattern: compiled}, err
}

// bounds compiles 1..5, or a single number, which may be {x}.
func (c *compiler) bounds(node *yaml.Node) (rule, error) {
	value := node.Value
	if placeholder.MatchString(value) {
		value = c.patterns[strings.Trim(value, "{}")]
	}
	return interval(node, value, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) })
}

// duration compiles 1s..5m.
func duration(node *yaml.Node) (rule, error) {
	return interval(node, node.Value, func(s string) (float64, error) {
		d, err := time.ParseDuration(s)
		return d.Seconds(), err
	})
}

func interval(node *yaml.Node, value string, read func(string) (float64, error)) (rule, error) {
	low, high, two := strings.Cut(value, "..")
	if !two {
		high = low
	}
	var b bounds
	var err error
	if b.low, err = read(low); err == nil {
		b.high, err = read(high)
	}
	if err != nil || b.low > b.high {
		return nil, fault(node, "%q has no bounds", value)
	}
	return b, nil
}
