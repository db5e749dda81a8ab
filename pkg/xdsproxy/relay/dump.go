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
	b := &strings.Builder{}
	t := r.trials
	fmt.Fprintf(b, "relay scoped=%t served=%t trials=%d open=%t recorded=%d\n",
		r.scoped, r.served, t.count, t.open, t.recorded)
	for _, c := range r.sorted() {
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
		fmt.Fprintf(b, "envoy %s have=%d answered=%t parts=%d", Kind(k), len(t.have), t.answered, len(t.parts))
		if t.flight != nil {
			fmt.Fprintf(b, " flight=%s%s", t.flight.nonce, listed("of", t.flight.names))
		}
		fmt.Fprintf(b, "%s%s\n", list("todo", t.todo), list("stale", t.stale))
	}
	return b.String()
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
