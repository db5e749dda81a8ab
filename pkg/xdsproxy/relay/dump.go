package relay

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// maxListed bounds the names that a dump lists in one place.
const maxListed = 32

// String returns the state for people who look for a fault: what differs between the xds-servers, Envoy and the disk.
// It has no content of resources, and does not grow with resources that are the same everywhere.
func (r *Relay) String() string {
	return r.describe(func(string) bool { return true }, func(Kind, string) bool { return true })
}

// Describe returns String without anything that names resources or states of other upstreams. Names of resources that
// belong to none are left out too.
func (r *Relay) Describe(upstream string) string {
	return r.describe(func(name string) bool { return name == upstream }, func(k Kind, name string) bool {
		owner := r.owners[k][name]
		return owner != nil && owner.of.name == upstream
	})
}

// describe returns the state of the upstreams and resources that are wanted.
func (r *Relay) describe(upstream func(name string) bool, resource func(k Kind, name string) bool) string {
	b := &strings.Builder{}
	t := r.trials
	fmt.Fprintf(b, "relay scoped=%t served=%t trials=%d open=%t recorded=%d\n",
		r.scoped, r.served, t.count, t.open, t.recorded)
	for _, c := range r.sorted() {
		if !upstream(c.name) {
			continue
		}
		fmt.Fprintf(b, "upstream %s stream=%d connected=%t since=%s unproven=%t writing=%d failing=%t\n",
			c.name, c.stream, c.connected, c.since.UTC().Format(time.RFC3339), c.unproven, c.writing, c.failing)
		for _, s := range c.shares {
			s.dump(b)
		}
	}
	if r.session == nil {
		return b.String() + "envoy is not connected\n"
	}
	for k, t := range r.session.tables {
		if t == nil {
			continue
		}
		mine := func(name string) bool { return resource(Kind(k), name) }
		fmt.Fprintf(b, "envoy %s have=%d answered=%t parts=%d", Kind(k), count(t.have, mine), t.answered, len(t.parts))
		if f := t.flight; f != nil && upstream(f.share.upstream()) {
			fmt.Fprintf(b, " flight=%s%s", f.nonce, listed("of", f.names))
		}
		fmt.Fprintf(b, "%s%s\n", listed("todo", wanted(t.todo, mine)), listed("stale", wanted(t.stale, mine)))
	}
	return b.String()
}

// wanted returns the wanted names in order.
func wanted[V any](names map[string]V, want func(name string) bool) (all []string) {
	for name := range names {
		if want(name) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// count returns how many names are wanted.
func count[V any](names map[string]V, want func(name string) bool) (n int) {
	for name := range names {
		if want(name) {
			n++
		}
	}
	return n
}

func (s *share) dump(b *strings.Builder) {
	fmt.Fprintf(b, "  %s from=%s subscribed=%t whole=%t newest=%d offered=%d accepted=%d good=%d due=%t,%t nonces=%d",
		s.kind, s.source, s.subscribed, s.whole, len(s.newest), len(s.offered), len(s.accepted), len(s.good),
		s.files[Accepted].due, s.files[Good].due, len(s.pending.nonces))
	fmt.Fprintf(b, "%s%s%s%s\n", listed("unaccepted", differing(s.offered, s.accepted)),
		list("waiting", s.pending.waiting), list("rejected", s.rejected), list("yielded", s.yielded))
}

func list[V any](what string, names map[string]V) string {
	return listed(what, slices.Sorted(maps.Keys(names)))
}

func listed(what string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf(" %s=%d:%q", what, len(names), names[:min(len(names), maxListed)])
}
