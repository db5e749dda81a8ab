package envoy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/model"
)

// Forms are what resources of one subject look like. An agent refuses all others: Envoy gets the keys of every membership
// from its agent, so an Envoy cluster or a listener of a form that nobody thought of could lead somebody to them.
//
// They are learned from the functions of this package: a resource may have the fields and extensions that theirs have, with
// the same words in them. Addresses are free, and names as far as they vary, but always within the subject's own. Numbers
// and times are free everywhere, for they refer to nothing. So whoever gives resources another form has to let both forms
// be here, for as long as agents and xds-servers of both versions are in use.
type Forms struct{ known []namedForm }

type namedForm struct {
	kind  protoreflect.FullName
	title string // as in the resource that it was learned from
	name  *regexp.Regexp
	whole bool // nothing may be missing that all have which it was learned from
	form  *form
}

// They stand in the resources that forms are learned from: anyName for a part of a name, without what Envoy splits rc://
// addresses or we split names at, anyHost for an address or whatever else leads nowhere, anyNumber for a number in a text.
const (
	anyName   = "<name>"
	anyHost   = "<host>"
	anyNumber = "<number>"
)

// wildcards is applied to quoted regular expressions, in which they are as they were.
var wildcards = strings.NewReplacer(anyName, `[A-Za-z0-9.-]+`, anyHost, `[A-Za-z0-9._:-]+`, anyNumber, `[1-9][0-9]{0,3}`)

// FormsOf are the forms of what EdgeListeners and EdgeClusters, or GatewayListeners, GatewayClusters and TunnelClusters give a
// subject.
func FormsOf(d model.TunnelDomain, s model.Subject) *Forms {
	f := &Forms{}
	name, address := model.Endpoint{Host: anyHost, Port: 1}, model.Endpoint{Host: "192.0.2.1", Port: 1}
	replicas := []model.Gateway{{Name: "gateway-" + anyName, Peer: name}, {Name: "gateway-" + anyName, Peer: address}}
	for i, at := range []model.Endpoint{name, address, name} {
		inst := model.Installation{Domain: d, Public: at, Control: at, Gateways: replicas}
		inst.AccessLog = []model.AccessLog{"", model.AccessLogFailed, model.AccessLogAll}[i]
		if s.Role == model.RoleEdge {
			wc := model.WorkloadCluster{ID: s.ID, APIServer: at}
			learn(f, true, anyTunnels(EdgeListeners(inst, wc, s.Node, EdgeDial{})))
			learn(f, false, EdgeClusters(inst, wc, s.Node, EdgeDial{}))
			learn(f, false, EdgeClusters(inst, wc, s.Node, EdgeDial{APIServers: []model.Endpoint{name, {Host: "192.0.2.2", Port: 1}}}))
			wc.Limits.Bandwidth = 1 << 20
			learn(f, true, anyTunnels(EdgeListeners(inst, wc, s.Node, EdgeDial{})))
			continue
		}
		bind := GatewayBind{Public: name, APIServer: name, Connect: name}
		learn(f, true, GatewayListeners(inst, s.Node, bind, model.Denied{}))
		learn(f, true, withoutRecords(GatewayListeners(inst, s.Node, bind, model.Denied{})))
		bind.Public.Host, bind.APIServer.Host, bind.Connect.Host = "::", "::", "::" // which has a field of its own
		learn(f, true, GatewayListeners(inst, s.Node, bind, model.Denied{Edges: []model.EdgeRef{{Node: anyHost, ID: anyHost}}, IDs: []string{anyHost}}))
		learn(f, false, GatewayClusters(inst))
		learn(f, false, TunnelClusters(inst, model.WorkloadCluster{ID: anyName, Hostname: anyName + "." + anyName}))
	}
	return f
}

// learn makes forms of resources, one of all that have one name.
func learn[R interface {
	proto.Message
	GetName() string
}](f *Forms, whole bool, resources []R) {
	for _, r := range resources {
		kind := r.ProtoReflect().Descriptor().FullName()
		at := slices.IndexFunc(f.known, func(n namedForm) bool { return n.kind == kind && n.title == r.GetName() })
		if at < 0 {
			at = len(f.known)
			f.known = append(f.known, namedForm{kind: kind, title: r.GetName(), name: pattern(r.GetName()), whole: whole, form: newForm()})
		}
		f.known[at].form.learn(r.ProtoReflect())
	}
}

func pattern(s string) *regexp.Regexp {
	return regexp.MustCompile("^" + wildcards.Replace(regexp.QuoteMeta(s)) + "$")
}

// Check returns an error for a resource that has none of the forms. It names the first place where it is another.
func (f *Forms) Check(resource *anypb.Any) error {
	message, err := resource.UnmarshalNew()
	if err != nil {
		return fmt.Errorf("checking form of resource: %w", err)
	}
	m, kind := message.ProtoReflect(), message.ProtoReflect().Descriptor().FullName()
	named, ok := message.(interface{ GetName() string })
	if !ok {
		return fmt.Errorf("checking form of resource: a %s is none that this Envoy takes", kind)
	}
	for _, known := range f.known {
		if known.kind != kind || !known.name.MatchString(named.GetName()) {
			continue
		}
		if s := known.form.check(m, known.whole); s != nil {
			return fmt.Errorf("checking form of %s %.100q: %s %s, which this Envoy does not take from an xds-server",
				kind.Name(), named.GetName(), strings.Join(s.path, "."), s.why)
		}
		return nil
	}
	return fmt.Errorf("checking form of %s %.100q: it has a name that is none of this subject's", kind.Name(), named.GetName())
}

// form is what messages at one place look like.
type form struct {
	seen   int // how many messages it was learned from
	fields map[protoreflect.FieldNumber]*slot
	packed map[string]*form // of an Any: by the URL of the type
	good   remembered       // of what was packed
}

// slot is one field of a form.
type slot struct {
	field    protoreflect.FieldDescriptor
	seen     int // in how many messages it was set
	values   map[any]bool
	patterns []*regexp.Regexp
	inner    map[string]*form // by the key in a map; else the key is empty
}

// stranger is a place in a message that is not as it should be.
type stranger struct {
	path []string
	why  string
}

func strange(format string, a ...any) *stranger { return &stranger{why: fmt.Sprintf(format, a...)} }

func (s *stranger) in(name protoreflect.Name) *stranger {
	if s != nil {
		s.path = append([]string{string(name)}, s.path...)
	}
	return s
}

func newForm() *form {
	return &form{fields: map[protoreflect.FieldNumber]*slot{}, packed: map[string]*form{}}
}

func (f *form) learn(m protoreflect.Message) {
	f.seen++
	if packed, ok := m.Interface().(*anypb.Any); ok {
		inner, err := packed.UnmarshalNew()
		if err != nil {
			panic(err) // pack has just made it
		}
		formAt(f.packed, packed.GetTypeUrl()).learn(inner.ProtoReflect())
		return
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		s := f.fields[field.Number()]
		if s == nil {
			s = &slot{field: field, values: map[any]bool{}, inner: map[string]*form{}}
			f.fields[field.Number()] = s
		}
		s.seen++
		each(field, value, func(key string, one protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			s.learn(key, one, v)
			return true
		})
		return true
	})
}

func (s *slot) learn(key string, field protoreflect.FieldDescriptor, v protoreflect.Value) {
	if field.Message() != nil {
		formAt(s.inner, key).learn(v.Message())
		return
	}
	if text, ok := v.Interface().(string); ok && wildcards.Replace(text) != text {
		if p := pattern(text); !slices.ContainsFunc(s.patterns, func(q *regexp.Regexp) bool { return q.String() == p.String() }) {
			s.patterns = append(s.patterns, p)
		}
		return
	}
	s.values[keyOf(v)] = true
}

func formAt(forms map[string]*form, key string) *form {
	if forms[key] == nil {
		forms[key] = newForm()
	}
	return forms[key]
}

// keyOf is a value that is no message, as a key.
func keyOf(v protoreflect.Value) any {
	if data, ok := v.Interface().([]byte); ok {
		return string(data)
	}
	return v.Interface()
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

func (f *form) check(m protoreflect.Message, whole bool) (found *stranger) {
	if len(m.GetUnknown()) > 0 {
		return strange("has a field that this version does not know")
	}
	if packed, ok := m.Interface().(*anypb.Any); ok {
		form := f.packed[packed.GetTypeUrl()]
		if form == nil {
			return strange("is a %.100q", packed.GetTypeUrl())
		}
		if form.good.has(packed.GetValue()) {
			return nil
		}
		inner, err := packed.UnmarshalNew()
		if err != nil {
			return strange("can't be decoded")
		}
		if found = form.check(inner.ProtoReflect(), whole); found == nil {
			form.good.add(packed.GetValue())
		}
		return found
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if s := f.fields[field.Number()]; s != nil {
			found = s.check(field, value, whole)
		} else if !harmless(field) {
			found = strange("is set").in(field.Name())
		}
		return found == nil
	})
	if found != nil || !whole {
		return found
	}
	for _, s := range f.fields {
		if s.seen == f.seen && !harmless(s.field) && !m.Has(s.field) {
			return strange("is missing").in(s.field.Name())
		}
	}
	return nil
}

func (s *slot) check(field protoreflect.FieldDescriptor, value protoreflect.Value, whole bool) (found *stranger) {
	if harmless(field) {
		return nil
	}
	each(field, value, func(key string, one protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch form := s.inner[key]; {
		case one.Message() == nil:
			if !s.values[keyOf(v)] && !slices.ContainsFunc(s.patterns, func(p *regexp.Regexp) bool { return p.MatchString(v.String()) }) {
				found = strange("is %.100q", shown(one, v))
			}
		case form == nil:
			found = strange("has %.100q", key)
		default:
			found = form.check(v.Message(), whole)
		}
		return found == nil
	})
	return found.in(field.Name())
}
