package xdsproxy

import (
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"
)

// maxDetail bounds the reason of a rejection, in status and in the NACK. Envoy's own reason can be as long as a
// resource.
const maxDetail = 4 << 10

// contribution holds the resources of one upstream. The proxy's lock guards it.
type contribution struct {
	proxy  *Proxy
	name   string
	shares [kinds]*share
	stream *stream // the open stream; nil: none

	plain        bool // the xds-server may predate scopes: it is not asked for them on this stream
	connected    bool
	since        time.Time
	loaded       bool // from disk
	answered     bool // by the xds-server, since the agent started
	loggedCached bool // it was logged that Envoy is served from the cache
	removed      bool // it was removed from the proxy

	good     [kinds]set // Envoy has run with them; nil: not known
	proving  *proof     // becomes good if Envoy keeps running; nil: nothing is being proven
	unproven bool       // accepted differs from good
	accepted time.Time  // since when unproven is true

	notified  chan struct{} // notifies the keeper
	diskFails bool          // guarded by the proxy's disk lock
}

func newContribution(r *Proxy, name string) *contribution {
	c := &contribution{proxy: r, name: name, since: time.Now(), notified: make(chan struct{}, 1)}
	for k := range c.shares {
		c.shares[k] = newShare(c, kind(k))
	}
	return c
}

// ready reports whether resources of a kind may be sent: they are known, and so are the kinds that they refer to.
func (c *contribution) ready(k kind) bool {
	unknown := func(s *share) bool { return !s.known && (s.kind != scopes || k == scopes) }
	return !slices.ContainsFunc(c.shares[:k+1], unknown)
}

func (c *contribution) cached() bool { return c.loaded && !c.answered }

// rejections returns the reasons of all rejected resources.
func (c *contribution) rejections() string {
	reasons := map[string]bool{}
	for _, s := range c.shares {
		for _, rejection := range s.rejected {
			reasons[rejection.why.GetMessage()] = true
		}
	}
	return bounded(strings.Join(slices.Sorted(maps.Keys(reasons)), "; "))
}

// bounded truncates a text, and replaces invalid UTF-8, which protobuf would not send.
func bounded(text string) string {
	if len(text) > maxDetail {
		text = text[:maxDetail] + "…"
	}
	return strings.ToValidUTF8(text, "?")
}

// vet removes the loaded resources that the check rejects, in both generations. They may have been written under
// another check.
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
			s.reject(set{name: res}, newStatus(codes.InvalidArgument, err.Error()), false, set{})
			s.accept(name, nil)
			c.proving = nil
		}
		maps.DeleteFunc(c.good[k], func(name string, res *resource) bool {
			rejected := check(s.kind.typeURL(), res.message.GetResource()) != nil
			s.goodUnwritten = s.goodUnwritten || rejected
			return rejected
		})
	}
	c.proxy.notifySession()
}

// remove removes a contribution from the proxy. Its open stream ends, because it would bring changes to removed
// resources.
func (c *contribution) remove() {
	r := c.proxy
	c.removed, r.removedAny = true, true
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
		c.stream.end(errRemoved)
	}
	r.restoreYielded(c)
	r.notifySession()
}
