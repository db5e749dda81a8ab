package informers

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// bound is how many mismatches of a kind are kept. One is enough to find that an informer is stuck.
const bound = 100

// page is one page of a list. It holds all objects whose keys are greater than after and not greater than last.
type page struct {
	after, last string            // keys in the order of the list; if last is empty, the page extends to the end
	versions    map[string]string // resource versions by key
}

func (p page) covers(key string) bool { return key > p.after && (p.last == "" || key <= p.last) }

// inspection is the result of inspecting one object: the version in the cache, and the version that the apiserver
// returned afterwards. An empty version means that there is no object.
type inspection struct {
	cached   string
	read     time.Time // when the cache was read
	live     string
	answered time.Time
}

// mismatch is an object with different versions in the cache and at the apiserver.
type mismatch struct {
	cached, live string
	since        time.Time // since then no version has changed and no request has failed; zero: not inspected yet
	stuck        bool
}

// comparison decides from pages and sights whether the cache of a kind makes progress. It reads nothing itself.
//
// A mismatch is confirmed when two inspections of an object find the same two versions and at least limit passes
// between them. Each inspection reads the cache first. An object never returns to a version that it had before. So if
// the apiserver has the same version again, it has had that version all the time; if it has none, the version in the
// cache was outdated at the first inspection already. In both cases the cache missed a change that existed during all
// that time.
type comparison struct {
	kind       string
	limit      time.Duration
	mismatches map[string]*mismatch
	began      time.Time // when the previous comparison began
}

func newComparison(kind string, limit time.Duration) *comparison {
	return &comparison{kind: kind, limit: limit, mismatches: map[string]*mismatch{}}
}

// begin records that a comparison begins. If the previous one is long ago, the process may have been frozen together
// with its informers, which then need time as after an outage.
func (c *comparison) begin(now time.Time) {
	if now.Sub(c.began) > c.limit/2 {
		c.fail(now)
	}
	c.began = now
}

// observe records where a page differs from the cache. A difference alone proves nothing: an event may be in flight,
// and a page may be some minutes old.
func (c *comparison) observe(p page, cached map[string]string) {
	for key, version := range p.versions {
		if cached[key] != version {
			c.record(key)
		}
	}
	for key := range cached {
		if _, listed := p.versions[key]; !listed && p.covers(key) {
			c.record(key)
		}
	}
}

func (c *comparison) record(key string) {
	if _, known := c.mismatches[key]; !known && len(c.mismatches) < bound {
		c.mismatches[key] = &mismatch{}
	}
}

// due returns the keys of the objects to inspect now.
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

// inspect records the result of inspecting an object.
func (c *comparison) inspect(key string, s inspection) {
	m, known := c.mismatches[key]
	switch {
	case !known:
	case s.cached == s.live:
		delete(c.mismatches, key)
	case !m.since.IsZero() && m.cached == s.cached && m.live == s.live:
		m.stuck = m.stuck || s.read.Sub(m.since) >= c.limit
	case !m.since.IsZero() && len(c.mismatches) >= bound:
		delete(c.mismatches, key) // an object that does not change may take its place
	default:
		*m = mismatch{cached: s.cached, live: s.live, since: s.answered}
	}
}

// fail records that the apiserver did not answer. It restarts the time of each unconfirmed mismatch, because an
// informer needs time to reconnect after an outage. Confirmed mismatches stay confirmed.
func (c *comparison) fail(now time.Time) {
	for _, m := range c.mismatches {
		if !m.stuck && !m.since.IsZero() {
			m.since = now
		}
	}
}

// stuck returns an error that names an object that the cache missed, or nil if no mismatch is confirmed.
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
	text := fmt.Sprintf(
		"the informer of kind %s is stuck: for more than %s the apiserver has had %s of %s, and the cache has had %s", c.kind,
		c.limit, named(m.live), keys[0], named(m.cached),
	)
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
