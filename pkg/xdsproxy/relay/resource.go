package relay

import (
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"
)

// Resource is a version of a resource as it came. It is immutable.
type Resource struct {
	Name, Version string     // not empty
	Body          *anypb.Any // is only passed on
	Address       string     // what identifies the address of a listener; empty: it has none
	Fault         string     // why Envoy must not get it; empty: it may
}

// version returns the version; empty for nil, which is an absent resource.
func (r *Resource) version() string {
	if r == nil {
		return ""
	}
	return r.Version
}

// Set holds resources by name. In a set of changes nil is a removal.
type Set map[string]*Resource

// put sets a resource; nil removes it.
func (s Set) put(name string, res *Resource) {
	if res == nil {
		delete(s, name)
	} else {
		s[name] = res
	}
}

// versions returns the versions of changes by name.
func (s Set) versions() map[string]string {
	all := make(map[string]string, len(s))
	for name, res := range s {
		all[name] = res.version()
	}
	return all
}

// differing returns the names whose versions differ between two sets, in order.
func differing(a, b Set) []string {
	var names []string
	for name, res := range a {
		if b[name].version() != res.version() {
			names = append(names, name)
		}
	}
	for name := range b {
		if _, both := a[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Rejection is a set of changes that were rejected together. A change of any of them makes the relay try them all
// again. It is immutable.
type Rejection struct {
	Versions map[string]string // by name; empty: the removal is rejected
	Code     codes.Code
	Message  string
	At       time.Time // zero: not known
	Crash    bool      // Envoy ended with it; kept on disk
}

// maxDetail bounds the reason of a rejection, in status and in the NACK. Envoy's own reason can be as long as a
// resource.
const maxDetail = 4 << 10

// Bounded truncates a text to some bytes, and replaces invalid UTF-8, which protobuf would not send.
func Bounded(text string, most int) string {
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "?")
}

// messages returns the reasons of rejections by name.
func messages(rejected map[string]*Rejection) map[string]bool {
	all := map[string]bool{}
	for _, why := range rejected {
		all[why.Message] = true
	}
	return all
}

func joined(reasons map[string]bool) string {
	return Bounded(strings.Join(slices.Sorted(maps.Keys(reasons)), "; "), maxDetail)
}
