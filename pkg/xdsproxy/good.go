package xdsproxy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

const (
	// crashLimit is the number of consecutive unexpected ends of Envoy after which its newest resources are taken as
	// the cause. A single end may be chance, and each further one costs the tunnels.
	crashLimit = 3
	// maxNames bounds the rolled-back resources that the reason names.
	maxNames = 5
)

// times are the waits of the proxy. Tests have shorter ones.
type times struct {
	// for upstreams that are not known yet, before Envoy gets the resources of the others: see session.ready
	first   time.Duration
	settled time.Duration // for which Envoy must have had resources when Ran is called; most faults show at once
	proof   time.Duration // for which Envoy must have had them without Ran
	silence time.Duration // for the first answer of an xds-server, which waits until it has a configuration
	rest    time.Duration // minimum interval between writes of a file: see keep
	maxRest time.Duration // maximum interval; if the agent dies, the cache is at most that old
	retry   time.Duration // before a failed write is retried
}

var usual = times{
	first: 3 * time.Second, settled: time.Second, proof: 10 * time.Second,
	silence: time.Minute, rest: 100 * time.Millisecond, maxRest: 10 * time.Second, retry: 30 * time.Second,
}

// proof is what Envoy had at a time. It becomes good if Envoy keeps running with it.
type proof struct {
	sets [kinds]set
	at   time.Time
}

// Crashed is called by the supervisor of Envoy when Envoy ended unexpectedly. After several consecutive crashes since
// new resources came, the proxy rolls back to the last good ones and rejects the new ones upstream. Crashed returns
// whether it rolled back now. It ignores the end of an Envoy that got no resources since the previous end. See Ran.
func (r *Proxy) Crashed() bool {
	defer r.record()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut()
	if !r.served {
		return false
	}
	r.served = false
	suspects := r.suspects()
	if len(suspects) == 0 {
		r.trials.open = false
		return false
	}
	if !r.trials.open {
		r.trials.begin() // for example if the Envoy that ended was started by another agent
	}
	r.trials.open = false
	if r.trials.count < crashLimit {
		return false
	}
	r.trials.over()
	r.takeBack(suspects)
	return true
}

// cut ends the session of an Envoy that has ended. Messages of it that are still in transit are obsolete. An Envoy
// that has started since connects again.
func (r *Proxy) cut() {
	r.disprove()
	if r.session != nil {
		r.session.end(errGone)
		r.session = nil
	}
}

// Ran is called by the supervisor when Envoy has run for a while, which shows that its resources are good: see
// Crashed. It may be called repeatedly. Without it, resources become good after Envoy has had them for longer.
func (r *Proxy) Ran() {
	defer r.record()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.trials.open || time.Since(r.trials.began) >= r.times.settled {
		r.trials.over()
	}
	for _, c := range r.contributions {
		if c.unproven && c.stable() && time.Since(c.accepted) >= r.times.settled {
			c.promote(c.snapshot())
		}
	}
}

// disprove discards the resources that are being proven, because Envoy may not have kept running.
func (r *Proxy) disprove() {
	for _, c := range r.contributions {
		c.proving = nil
	}
}

func (c *contribution) snapshot() *proof {
	p := &proof{at: time.Now()}
	for k, s := range c.shares {
		p.sets[k] = maps.Clone(s.accepted)
	}
	return p
}

func (c *contribution) promote(p *proof) {
	for k, s := range c.shares {
		if c.good[k] == nil || len(differing(c.good[k], p.sets[k])) > 0 {
			c.good[k], s.goodUnwritten = p.sets[k], true
		}
	}
	c.unproven, c.proving = c.accepted.After(p.at), nil
	notify(c.notified)
}

// prove makes resources good that Envoy has had for long enough. It returns the wait until the next call; 0: until the
// next change.
func (c *contribution) prove() time.Duration {
	span := c.proxy.times.proof
	if !c.unproven {
		return 0
	}
	if p := c.proving; p != nil {
		if age := time.Since(p.at); age < span {
			return span - age
		}
		if trials := &c.proxy.trials; !trials.open || !p.at.Before(trials.began) {
			trials.over() // the caller records it
		}
		if c.promote(p); !c.unproven {
			return 0
		}
	}
	if c.stable() {
		c.proving = c.snapshot()
	}
	return span
}

// stable reports whether there is an Envoy that is not in the middle of a change. During a change it could have the
// Envoy clusters and not yet the listeners.
func (c *contribution) stable() bool {
	changing := func(s *share) bool {
		return !s.whole && (s.known || s.kind != scopes) || len(s.pending.waiting) > 0 || s.outdated()
	}
	return c.proxy.session != nil && !slices.ContainsFunc(c.shares[:], changing)
}

// fallback returns the resources to roll back to if Envoy cannot run with what is offered, and whether they differ
// from it: the good ones, or else the accepted ones. An upstream that never had anything good falls back to nothing if
// other upstreams have, because they suffer from it. Without others, nothing is lost by further attempts.
func (c *contribution) fallback() (to [kinds]set, ok bool) {
	for k, s := range c.shares {
		to[k] = s.accepted
		if c.good[k] != nil {
			to[k] = c.good[k]
		}
		ok = ok || len(differing(to[k], s.offered)) > 0
	}
	if !ok && !c.proven() && c.othersProven() {
		return [kinds]set{{}, {}, {}}, true
	}
	return to, ok
}

func (c *contribution) othersProven() bool {
	for _, other := range c.proxy.contributions {
		if other != c && other.proven() {
			return true
		}
	}
	return false
}

// proven reports whether Envoy has ever run with resources of the upstream.
func (c *contribution) proven() bool {
	return slices.ContainsFunc(c.good[:], func(s set) bool { return s != nil })
}

// rollBack offers Envoy other sets, and rejects what it was offered.
func (c *contribution) rollBack(to [kinds]set) {
	for k, s := range c.shares {
		changes := set{}
		names := differing(to[k], s.offered)
		if len(names) == 0 {
			continue
		}
		for _, name := range names {
			changes[name] = s.offered[name]
		}
		listed := strings.Join(names[:min(len(names), maxNames)], ", ")
		why := fmt.Sprintf(
			"Envoy ended %d times in a row with the newest %s; its previous ones are restored (rolled back: %d, such as %s)",
			crashLimit, s.kind, len(names), listed,
		)
		c.proxy.log.Error("resources rolled back", "upstream", c.name, "type_url", s.kind.typeURL(), "error", why)
		s.reject(changes, newStatus(codes.Aborted, why), true, to[k])
		for _, name := range names {
			s.accept(name, to[k][name])
		}
		s.finish()
	}
}
