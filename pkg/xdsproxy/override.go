package xdsproxy

import (
	"slices"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/xdsproxy/relay"
)

// Override selects the form of an Envoy cluster or listener that Envoy gets, if that depends on state that only its
// agent has. Upstreams and the disk have no forms: all forms of a version are that version. The methods must not call
// the Proxy, which calls Form while it holds its lock.
type Override interface {
	// Form returns the form that an Envoy cluster or listener must have now; empty: the usual one. A form has no space.
	Form(name string) string
	// Apply returns the resource in a form. It must not change its argument.
	Apply(name, form string, resource *anypb.Any) *anypb.Any
}

// formMark separates the version from the form in the version that Envoy gets.
const formMark = " as "

// SetOverride sets the override. Call it before Envoy is served. Without it everything is sent as it came.
func (p *Proxy) SetOverride(d Override) { p.override = d }

// Reapply applies the override again to the named Envoy clusters, and sends them to Envoy. Call it after a form has
// changed.
func (p *Proxy) Reapply(names []string) { p.apply(relay.Reformed{Kind: relay.Clusters, Names: names}) }

// ReapplyListener applies the override again to a listener, and sends it to Envoy. Call it after its form has changed.
func (p *Proxy) ReapplyListener(name string) {
	p.apply(relay.Reformed{Kind: relay.Listeners, Names: []string{name}})
}

// ReapplyAll is Reapply for all Envoy clusters, and then all listeners, with a name that of accepts.
func (p *Proxy) ReapplyAll(of func(name string) bool) {
	for _, kind := range []relay.Kind{relay.Clusters, relay.Listeners} {
		p.mu.Lock()
		offered := p.relay.Offered(kind)
		p.mu.Unlock()
		var names []string
		for _, res := range offered {
			if of(res.Name) {
				names = append(names, res.Name)
			}
		}
		if len(names) > 0 {
			p.apply(relay.Reformed{Kind: kind, Names: names})
		}
	}
}

// Offers reports whether Envoy is offered an Envoy cluster with a name that of accepts.
func (p *Proxy) Offers(of func(name string) bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.relay.Offered(relay.Clusters), func(res *relay.Resource) bool { return of(res.Name) })
}

// Clusters calls f with the name, the version and the original resource of each Envoy cluster that Envoy is offered.
func (p *Proxy) Clusters(f func(name, version string, resource *anypb.Any)) {
	p.mu.Lock()
	offered := p.relay.Offered(relay.Clusters)
	p.mu.Unlock()
	for _, res := range offered {
		f(res.Name, res.Version, res.Body)
	}
}

// overridden returns a resource as it is sent to Envoy.
func (p *Proxy) overridden(k relay.Kind, res *relay.Resource) *discoveryv3.Resource {
	version, body := res.Version, res.Body
	if p.override != nil && k != relay.Scopes {
		form := p.override.Form(res.Name)
		if form != "" {
			version += formMark + form
		}
		body = p.override.Apply(res.Name, form, body)
	}
	return &discoveryv3.Resource{Name: res.Name, Version: version, Resource: body}
}

// withForms separates versions and forms that Envoy has, and adds which forms are not the present ones. The caller
// holds the lock, so that a form that changes meanwhile is followed by relay.Reformed.
func (p *Proxy) withForms(q relay.Requested) relay.Requested {
	have := make(map[string]string, len(q.Have))
	for name, shown := range q.Have {
		version, form, _ := strings.Cut(shown, formMark)
		have[name] = version
		want := ""
		if p.override != nil && q.Kind != relay.Scopes {
			want = p.override.Form(name)
		}
		if form != want {
			q.Stale = append(q.Stale, name)
		}
	}
	q.Have = have
	return q
}
