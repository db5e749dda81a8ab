package xdsproxy

import (
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// Override says in which form Envoy is to have an Envoy cluster or a listener, where that depends on what only its agent knows.
// Upstreams and the disk know nothing of forms: all forms of a version are that version. The Proxy calls it while it is locked: it
// must be quick and must not call the Proxy.
type Override interface {
	// Form is the form that an Envoy cluster, or a listener, is to have now; empty: the usual one. It has no space.
	Form(name string) string
	// Apply is the resource in a form. The one that it is given stays as it is.
	Apply(name, form string, resource *anypb.Any) *anypb.Any
}

// formMark is between a version and the form in the version that Envoy is told.
const formMark = " as "

// SetOverride is called before Envoy is served; without it everything is sent as it came.
func (r *Proxy) SetOverride(d Override) { r.override = d }

// Reapply looks again in which form Envoy is to have Envoy clusters.
func (r *Proxy) Reapply(names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.table(clusters); t != nil {
		for _, name := range names {
			t.todo[name] = true
		}
		r.wake()
	}
}

// Clusters calls f with each Envoy cluster that Envoy is to have, as it came, and its version.
func (r *Proxy) Clusters(f func(name, version string, resource *anypb.Any)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, owner := range r.owners[clusters] {
		if res := owner.offered[name]; res != nil {
			f(name, res.version(), res.message.GetResource())
		}
	}
}

// shown is the version that Envoy is told of a resource, with the form that it is to have.
func (r *Proxy) shown(name string, res *resource) string {
	if res == nil || r.override == nil {
		return res.version()
	}
	if form := r.override.Form(name); form != "" {
		return res.version() + formMark + form
	}
	return res.version()
}

// overridden is what Envoy is sent of a resource.
func (r *Proxy) overridden(name string, res *resource) *discoveryv3.Resource {
	if r.override == nil {
		return res.message
	}
	version := r.shown(name, res)
	body := r.override.Apply(name, strings.TrimPrefix(version[len(res.version()):], formMark), res.message.GetResource())
	return &discoveryv3.Resource{Name: name, Version: version, Resource: body}
}

// bare is a version that Envoy was told, without the form.
func bare(shown string) string {
	version, _, _ := strings.Cut(shown, formMark)
	return version
}
