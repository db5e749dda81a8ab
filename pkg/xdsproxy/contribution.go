package xdsproxy

import (
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"
)

// maxDetail bounds the reason of a refusal, in status and towards the xds-server. Envoy's own can be as long as a resource.
const maxDetail = 4 << 10

// contribution is what one upstream gives. The proxy's lock guards it.
type contribution struct {
	proxy  *Proxy
	name   string
	shares [kinds]*share
	stream *stream // that is open; nil: none

	connected bool
	since     time.Time
	loaded    bool // from disk
	answered  bool // by the xds-server, at any time
	said      bool // that Envoy is served from the cache
	forgotten bool // it is no longer the proxy's

	good     [kinds]set // that Envoy has run with; nil: not known
	proving  *proof     // what will be good if Envoy goes on running; nil: nothing yet
	unproven bool       // accepted differs from good
	accepted time.Time  // when that began to be so

	wake      chan struct{} // of the keeper
	diskFails bool          // guarded by the proxy's lock of the disk
}

func newContribution(r *Proxy, name string) *contribution {
	c := &contribution{proxy: r, name: name, since: time.Now(), wake: make(chan struct{}, 1)}
	for k := range c.shares {
		c.shares[k] = newShare(c, kind(k))
	}
	return c
}

// ready says whether a kind may be sent: it is known, and so is what it refers to.
func (c *contribution) ready(k kind) bool {
	return !slices.ContainsFunc(c.shares[:k+1], func(s *share) bool { return !s.known })
}

func (c *contribution) cached() bool { return c.loaded && !c.answered }

// refusals are the reasons of what is refused.
func (c *contribution) refusals() string {
	reasons := map[string]bool{}
	for _, s := range c.shares {
		for _, refusal := range s.refused {
			reasons[refusal.why.GetMessage()] = true
		}
	}
	return bounded(strings.Join(slices.Sorted(maps.Keys(reasons)), "; "))
}

// bounded cuts a text, and mends what is no UTF-8: protobuf would not send it.
func bounded(text string) string {
	if len(text) > maxDetail {
		text = text[:maxDetail] + "…"
	}
	return strings.ToValidUTF8(text, "?")
}

// vet drops of what was loaded that which a check refuses, in both generations: it may have been written under another.
func (c *contribution) vet(check func(string, *anypb.Any) error) {
	if check == nil {
		return
	}
	for k, s := range c.shares {
		for _, name := range slices.Sorted(maps.Keys(s.offered)) {
			res := s.offered[name]
			err := check(s.kind.typeURL(), res.message.GetResource())
			if err == nil {
				continue
			}
			c.proxy.log.Error("resource rejected", "upstream", c.name, "type_url", s.kind.typeURL(), "name", name, "error", err)
			s.refuse(set{name: res}, newStatus(codes.InvalidArgument, err.Error()), false, set{})
			s.accept(name, nil)
			c.proving = nil
		}
		maps.DeleteFunc(c.good[k], func(name string, res *resource) bool {
			refused := check(s.kind.typeURL(), res.message.GetResource()) != nil
			s.goodUnwritten = s.goodUnwritten || refused
			return refused
		})
	}
	c.proxy.wake()
}

// forget takes a contribution out of the proxy. A stream that is open ends: it brings changes to what is gone.
func (c *contribution) forget() {
	r := c.proxy
	c.forgotten, r.forgot = true, true
	delete(r.contributions, c.name)
	for k, owners := range r.owners {
		maps.DeleteFunc(owners, func(name string, s *share) bool {
			if s.of != c {
				return false
			}
			r.dropped[k][name] = true
			if t := r.table(kind(k)); t != nil {
				t.todo[name] = true
			}
			return true
		})
	}
	if c.stream != nil {
		c.stream.end(errForgotten)
	}
	r.wake()
}
