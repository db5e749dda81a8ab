package informers

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// bound is how many mismatches of a kind are remembered: one is enough to find that an informer is stuck.
const bound = 100

// page is one page of a list. Its objects are all there are whose key is greater than after and at most last.
type page struct {
	after, last string            // keys in the order of the list; an empty last: the page goes on to the end
	versions    map[string]string // resource versions by key
}

func (p page) covers(key string) bool { return key > p.after && (p.last == "" || key <= p.last) }

// sight is one object: what the cache held, and what the apiserver answered afterwards. An empty version: no object.
type sight struct {
	cached   string
	read     time.Time // when the cache was read
	live     string
	answered time.Time
}

// mismatch is an object of which the cache and the apiserver hold different versions.
type mismatch struct {
	cached, live string
	since        time.Time // no version has changed since then, and no request failed; zero: not looked at yet
	stuck        bool
}

// comparison decides from what was read whether the cache of a kind makes progress. It reads nothing itself.
//
// A mismatch is confirmed when two looks at the object found the same two versions, with limit between them. Each look
// reads the cache first. No object gets a version that it had before. So if the apiserver has the same version again, it
// has had it all the time; if it has none, the version in the cache was gone at the first look already. In both cases
// the cache missed a change that was there for all that time.
type comparison struct {
	kind       string
	limit      time.Duration
	mismatches map[string]*mismatch
	began      time.Time // the comparison before
}

func newComparison(kind string, limit time.Duration) *comparison {
	return &comparison{kind: kind, limit: limit, mismatches: map[string]*mismatch{}}
}

// begin records that a comparison begins. If the one before was long ago, the process may have been frozen, and its
// informers with it: they need time as after an outage.
func (c *comparison) begin(now time.Time) {
	if now.Sub(c.began) > c.limit/2 {
		c.fail(now)
	}
	c.began = now
}

// observe remembers where a page differs from the cache. That proves nothing: an event may be in flight, and a page may
// be some minutes old.
func (c *comparison) observe(p page, cached map[string]string) {
	for key, version := range p.versions {
		if cached[key] != version {
			c.remember(key)
		}
	}
	for key := range cached {
		if _, listed := p.versions[key]; !listed && p.covers(key) {
			c.remember(key)
		}
	}
}

func (c *comparison) remember(key string) {
	if _, known := c.mismatches[key]; !known && len(c.mismatches) < bound {
		c.mismatches[key] = &mismatch{}
	}
}

// due returns the keys of the objects to look at now.
func (c *comparison) due(now time.Time) []string {
	var keys []string
	for key, m := range c.mismatches {
		if m.since.IsZero() || now.Sub(m.since) >= c.limit {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// look records what a look at an object found.
func (c *comparison) look(key string, s sight) {
	m, known := c.mismatches[key]
	switch {
	case !known:
	case s.cached == s.live:
		delete(c.mismatches, key)
	case !m.since.IsZero() && m.cached == s.cached && m.live == s.live:
		m.stuck = m.stuck || s.read.Sub(m.since) >= c.limit
	case !m.since.IsZero() && len(c.mismatches) >= bound:
		delete(c.mismatches, key) // one that does not change may take its place
	default:
		*m = mismatch{cached: s.cached, live: s.live, since: s.answered}
	}
}

// fail records that the apiserver did not answer. The time of each mismatch begins anew: after an outage an informer needs
// time to connect again. What is confirmed stays confirmed.
func (c *comparison) fail(now time.Time) {
	for _, m := range c.mismatches {
		if !m.stuck && !m.since.IsZero() {
			m.since = now
		}
	}
}

// stuck returns an error that names an object that the cache missed; nil: none is confirmed.
func (c *comparison) stuck() error {
	var keys []string
	for key, m := range c.mismatches {
		if m.stuck {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	slices.Sort(keys)
	m := c.mismatches[keys[0]]
	text := fmt.Sprintf("the informer of kind %s is stuck: for more than %s the apiserver has had %s of %s, and the cache %s",
		c.kind, c.limit, named(m.live), keys[0], named(m.cached))
	if len(keys) > 1 {
		text += fmt.Sprintf("; %d objects differ", len(keys))
	}
	return errors.New(text)
}

func named(version string) string {
	if version == "" {
		return "no version"
	}
	return "version " + version
}
