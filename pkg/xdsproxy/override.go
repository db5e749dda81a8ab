package xdsproxy

import (
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// Override selects the form of an Envoy cluster or listener that Envoy gets, if that depends on state that only its
// agent has. Upstreams and the disk have no forms: all forms of a version are that version. The Proxy calls the
// methods while it holds its lock: they must be quick and must not call the Proxy.
type Override interface {
	// Form returns the form that an Envoy cluster or listener must have now; empty: the usual one. A form has no space.
	Form(name string) string
	// Apply returns the resource in a form. It must not change its argument.
	Apply(name, form string, resource *anypb.Any) *anypb.Any
}

// formMark separates the version from the form in the version that Envoy gets.
const formMark = " as "

// SetOverride sets the override. Call it before Envoy is served. Without it everything is sent as it came.
func (r *Proxy) SetOverride(d Override) { r.override = d }

// Reapply applies the override again to the named Envoy clusters, and sends Envoy those that change.
func (r *Proxy) Reapply(names []string) { r.reapply(clusters, names) }

// ReapplyListener applies the override again to a listener, and sends it to Envoy if it changes.
func (r *Proxy) ReapplyListener(name string) { r.reapply(listeners, []string{name}) }

func (r *Proxy) reapply(k kind, names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.table(k); t != nil {
		for _, name := range names {
			t.todo[name] = true
		}
		r.notifySession()
	}
}

// Clusters calls f with the name, the version and the original resource of each Envoy cluster that Envoy is offered.
// It holds the proxy's lock meanwhile.
func (r *Proxy) Clusters(f func(name, version string, resource *anypb.Any)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, owner := range r.owners[clusters] {
		if res := owner.offered[name]; res != nil {
			f(name, res.version(), res.message.GetResource())
		}
	}
}

// shown returns the version of a resource that Envoy gets, including its form.
func (r *Proxy) shown(k kind, name string, res *resource) string {
	if res == nil || r.override == nil || k == scopes {
		return res.version()
	}
	if form := r.override.Form(name); form != "" {
		return res.version() + formMark + form
	}
	return res.version()
}

// overridden returns a resource as it is sent to Envoy.
func (r *Proxy) overridden(k kind, name string, res *resource) *discoveryv3.Resource {
	if r.override == nil || k == scopes {
		return res.message
	}
	version := r.shown(k, name, res)
	body := r.override.Apply(name, strings.TrimPrefix(version[len(res.version()):], formMark), res.message.GetResource())
	return &discoveryv3.Resource{Name: name, Version: version, Resource: body}
}

// bare returns a version that Envoy got, without the form.
func bare(shown string) string {
	version, _, _ := strings.Cut(shown, formMark)
	return version
}
