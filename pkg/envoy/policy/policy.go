// Package policy decides which resources an agent accepts from an xds-server for its Envoy. The input is the identity
// of the agent and the addresses on which its Envoy listens, and then resources of Envoy. The output is an error for
// each resource that policy.yaml does not allow. The package does not know how an xds-server renders resources, so a
// newer one may send other resources, if policy.yaml allows them.
package policy

import (
	_ "embed"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/sds"
	"github.com/fairlead/fairlead/pkg/model"
)

//go:embed policy.yaml
var file []byte

// Scope is the subject of a policy.
type Scope struct {
	Domain  model.TunnelDomain
	Subject model.Subject
	Listens envoy.GatewayBind // for a gateway: the only addresses on which its Envoy may listen
	// Dial has the same for an edge of a network, in Listen, and for the Envoy beside an apiserver, in Socket.
	Dial envoy.EdgeDial
}

// Policy is what one subject accepts from an xds-server. It is safe for concurrent use.
type Policy struct {
	agent     string // its role, for errors
	listen    []model.Endpoint
	resources map[string][]resource
}

// resource is the rule for resources of one name.
type resource struct {
	name *text
	rule *message
}

// document is policy.yaml.
type document struct {
	Variables map[string]string      `yaml:"variables"`
	Operators []string               `yaml:"operators"`
	Free      []string               `yaml:"free"`
	Define    yaml.Node              `yaml:"define"`
	Edge      map[string][]yaml.Node `yaml:"edge"`
	Egress    map[string][]yaml.Node `yaml:"egress"`
	Gateway   map[string][]yaml.Node `yaml:"gateway"`
}

var ownDocument = sync.OnceValues(func() (*document, error) { return parse(file) })

func parse(data []byte) (*document, error) {
	d := &document{}
	if err := yaml.Unmarshal(data, d); err != nil {
		return nil, fmt.Errorf("reading policy: %w", err)
	}
	return d, nil
}

// Of returns the policy of this version for a subject. It panics if policy.yaml, which is part of the program, is
// invalid.
func Of(s Scope) *Policy {
	d, err := ownDocument()
	if err == nil {
		var p *Policy
		if p, err = compile(d, s); err == nil {
			return p
		}
	}
	panic(err) // an error in policy.yaml, which is part of the program
}

func compile(d *document, s Scope) (*Policy, error) {
	c := &compiler{patterns: patterns(d, s), free: map[string]bool{}, texts: map[string]*text{}}
	for _, name := range d.Free {
		c.free[name] = true
	}
	all := d.Gateway
	switch s.Subject.Role {
	case model.RoleEdge:
		all = d.Edge
	case model.RoleEgress:
		all = d.Egress
	}
	p := &Policy{agent: string(s.Subject.Role), listen: s.Dial.Listen, resources: map[string][]resource{}}
	for kind, nodes := range all {
		for i := range nodes {
			rule, err := c.resource(kind, &nodes[i])
			if err != nil {
				return nil, fmt.Errorf("reading policy of an %s: %w", s.Subject.Role, err)
			}
			p.resources[kind] = append(p.resources[kind], rule)
		}
	}
	return p, nil
}

// nothing is a regular expression that matches no text.
const nothing = `[^\x00-\x{10FFFF}]`

// patterns returns the regular expressions of {x}.
func patterns(d *document, s Scope) map[string]string {
	identity, trust := sds.Names(s.Subject)
	all := map[string]string{
		"node": s.Subject.Node, "id": s.Subject.ID, "domain": string(s.Domain), "tunnel": s.Domain.TunnelID(s.Subject.ID),
		"identity": identity, "trust": trust, "socket": s.Dial.Socket,
	}
	for name, at := range map[string]model.Endpoint{
		"public": s.Listens.Public, "apiserver": s.Listens.APIServer,
		"connect": s.Listens.Connect,
	} {
		all[name+"_host"], all[name+"_port"] = at.Host, strconv.Itoa(int(at.Port))
	}
	for name, value := range all {
		all[name] = regexp.QuoteMeta(value)
	}
	all["listen"] = nothing
	for i, at := range s.Dial.Listen {
		if i == 0 {
			all["listen"] = ""
		} else {
			all["listen"] += "|"
		}
		all["listen"] += regexp.QuoteMeta(at.String())
	}
	all["listen"] = "(?:" + all["listen"] + ")"
	if s.Dial.Socket == "" {
		all["socket"] = nothing
	}
	for name, pattern := range d.Variables {
		all[name] = "(?:" + pattern + ")"
	}
	var operators []string
	for _, operator := range d.Operators {
		operators = append(operators, regexp.QuoteMeta(operator))
	}
	all["format"] = `(?:[A-Za-z0-9 _.:/-]|%(?:` + strings.Join(operators, "|") + `)%)*`
	return all
}

// Check returns an error for a resource that the policy does not allow. The error names the first violation. Besides
// policy.yaml these rules apply: an edge listens only at its local addresses; its DNS caches dial no address of
// model.NeverDialled; the key of a scope is its name.
func (p *Policy) Check(packed *anypb.Any) error {
	m, err := packed.UnmarshalNew()
	if err != nil {
		return fmt.Errorf("checking resource against the policy: %w", err)
	}
	kind := m.ProtoReflect().Descriptor()
	named, ok := m.(interface{ GetName() string })
	rules := p.resources[string(kind.FullName())]
	if !ok || len(rules) == 0 {
		return fmt.Errorf("checking resource against the policy: the Envoy of an %s accepts no %s", p.agent, kind.FullName())
	}
	var found *violation
	for _, r := range rules {
		if !r.name.matches(named.GetName()) {
			continue
		}
		v := r.rule.check(m.ProtoReflect())
		if v == nil {
			if err := p.checkContent(packed, m); err != nil {
				return fmt.Errorf("checking %s %.100q against the policy: %w", kind.Name(), named.GetName(), err)
			}
			return nil
		}
		found = deeper(found, v)
	}
	if found != nil {
		return fmt.Errorf(
			"checking %s %.100q against the policy: %s %s, which this agent does not accept from an xds-server", kind.Name(),
			named.GetName(), strings.Join(found.path, "."), found.why,
		)
	}
	return fmt.Errorf(
		"checking %s %.100q against the policy: the name does not belong to this subject", kind.Name(), named.GetName(),
	)
}
