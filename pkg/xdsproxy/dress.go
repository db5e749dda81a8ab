package xdsproxy

import (
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// Dress says in which form Envoy is to have an Envoy cluster or a listener, where that depends on what only its agent knows.
// Upstreams and the disk know nothing of forms: all forms of a version are that version. The Relay calls it while it is locked: it
// must be quick and must not call the Relay.
type Dress interface {
	// Form is the form that an Envoy cluster, or a listener, is to have now; empty: the usual one. It has no space.
	Form(name string) string
	// Dressed is the resource in a form. The one that it is given stays as it is.
	Dressed(name, form string, resource *anypb.Any) *anypb.Any
}

// formMark is between a version and the form in the version that Envoy is told.
const formMark = " as "

// SetDress is called before Envoy is served; without it everything is sent as it came.
func (r *Relay) SetDress(d Dress) { r.dress = d }

// Redress looks again in which form Envoy is to have Envoy clusters.
func (r *Relay) Redress(names []string) {
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
func (r *Relay) Clusters(f func(name, version string, resource *anypb.Any)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, owner := range r.owners[clusters] {
		if res := owner.offered[name]; res != nil {
			f(name, res.version(), res.message.GetResource())
		}
	}
}

// shown is the version that Envoy is told of a resource, with the form that it is to have.
func (r *Relay) shown(name string, res *resource) string {
	if res == nil || r.dress == nil {
		return res.version()
	}
	if form := r.dress.Form(name); form != "" {
		return res.version() + formMark + form
	}
	return res.version()
}

// dressed is what Envoy is sent of a resource.
func (r *Relay) dressed(name string, res *resource) *discoveryv3.Resource {
	if r.dress == nil {
		return res.message
	}
	version := r.shown(name, res)
	body := r.dress.Dressed(name, strings.TrimPrefix(version[len(res.version()):], formMark), res.message.GetResource())
	return &discoveryv3.Resource{Name: name, Version: version, Resource: body}
}

// bare is a version that Envoy was told, without the form.
func bare(shown string) string {
	version, _, _ := strings.Cut(shown, formMark)
	return version
}
