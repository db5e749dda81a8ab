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
	// crashLimit is how often in a row Envoy may end by itself before its newest resources are at fault. Once is chance, and
	// each time costs the tunnels.
	crashLimit = 3
	// maxNames is how many of the resources that were taken back are named in the reason.
	maxNames = 5
)

// times are the spans of time that the proxy waits for; tests have shorter ones.
type times struct {
	first   time.Duration // for upstreams that are not known yet, before Envoy gets what there is: see session.ready
	settled time.Duration // that Envoy must have had resources for when Ran is called: a fault shows at once, or later anyway
	proof   time.Duration // that Envoy must have had them for without Ran
	silence time.Duration // for the first answer of an xds-server; it waits itself until it knows something
	rest    time.Duration // before a file is written again, at least: see keep
	maxRest time.Duration // and at most: an agent that dies in it leaves a cache that is so old
	retry   time.Duration // before a disk is tried again that could not be written
}

var usual = times{
	first: 3 * time.Second, settled: time.Second, proof: 10 * time.Second,
	silence: time.Minute, rest: 100 * time.Millisecond, maxRest: 10 * time.Second, retry: 30 * time.Second,
}

// proof is what Envoy had at a time. If it goes on running with it, it is good.
type proof struct {
	sets [kinds]set
	at   time.Time
}

// Crashed is told by who supervises Envoy that it ended by itself, Ran that it has run for long enough for its resources to
// be good. After several crashes in a row since new resources came, the proxy goes back to the last that were good, and
// refuses the new ones upstream. Crashed returns whether it went back now. An end of an Envoy that got no resources since
// the last end is not their fault.
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
		r.trials.begin() // with what was new to an Envoy that another agent had, say
	}
	r.trials.open = false
	if r.trials.count < crashLimit {
		return false
	}
	r.trials.over()
	r.takeBack(suspects)
	return true
}

// cut ends the session of an Envoy that has ended. What it said last may still be on its way, and is true no more. One that
// has started since comes back.
func (r *Proxy) cut() {
	r.disprove()
	if r.session != nil {
		r.session.end(errGone)
		r.session = nil
	}
}

// Ran is told that Envoy has run for a while: see Crashed. It may be called again and again. Without it, what Envoy has is
// good when it has had it for a longer while.
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

// disprove forgets what was about to be good: Envoy has not gone on running, as far as can be seen.
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
	poke(c.wake)
}

// prove makes good what Envoy has had for long enough, and returns when to look again; 0: when something has changed.
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

// stable says whether there is an Envoy, which is not in the middle of a change: it could have the Envoy clusters and not yet
// the listeners.
func (c *contribution) stable() bool {
	changing := func(s *share) bool { return !s.whole || len(s.pending.waiting) > 0 || s.outdated() }
	return c.proxy.session != nil && !slices.ContainsFunc(c.shares[:], changing)
}

// fallback is what to go back to if Envoy can't run with what is offered, and whether there is anything: what was good, or
// at least accepted before. One that never had anything good goes back to nothing if others had, and suffer from it;
// otherwise there is nothing to lose by trying on.
func (c *contribution) fallback() (to [kinds]set, ok bool) {
	for k, s := range c.shares {
		to[k] = s.accepted
		if c.good[k] != nil {
			to[k] = c.good[k]
		}
		ok = ok || len(differing(to[k], s.offered)) > 0
	}
	if !ok && !c.proven() && c.othersProven() {
		return [kinds]set{{}, {}}, true
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

// proven says whether Envoy has ever run with something of it.
func (c *contribution) proven() bool {
	return slices.ContainsFunc(c.good[:], func(s set) bool { return s != nil })
}

// rollBack goes back to other sets, and refuses what Envoy was offered.
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
		why := fmt.Sprintf("Envoy ended %d times in a row with the newest %s; its previous ones are restored (rolled back: %d, such as %s)",
			crashLimit, s.kind, len(names), listed)
		c.proxy.log.Error("resources rolled back", "upstream", c.name, "type_url", s.kind.typeURL(), "error", why)
		s.refuse(changes, newStatus(codes.Aborted, why), true, to[k])
		for _, name := range names {
			s.accept(name, to[k][name])
		}
		s.finish()
	}
}
