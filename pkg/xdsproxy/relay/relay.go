// Package relay decides what one Envoy gets from several xds-servers: which resources are sent to it, what the
// xds-servers get as answers, what is written to disk, and what is restored after crashes. Its input is events, its
// output is effects, which the caller executes: see Relay.Apply. It has no I/O, no clock, no goroutines, no locks and
// no randomness, so that equal events have equal effects. It does not know the content of resources.
//
// An xds-server gets an ACK when Envoy has accepted its resources; without an Envoy it gets no answer. A rejected
// resource does not affect others: if Envoy or a check rejects it, or it is rolled back after crashes, Envoy keeps the
// version that it had until the xds-server sends another one.
package relay

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// Kind is a type of resources. Envoy must get the kinds in this order: scopes and listeners refer to Envoy clusters.
type Kind int

// The kinds. Scopes are the routes of apiservers; Envoy subscribes to them only if it has a listener that uses them.
const (
	Clusters Kind = iota
	Scopes
	Listeners
	Kinds // number of kinds
)

var typeURLs = [Kinds]string{resourcev3.ClusterType, resourcev3.ScopedRouteType, resourcev3.ListenerType}

// TypeURL returns the name of the type in ADS.
func (k Kind) TypeURL() string { return typeURLs[k] }

// String returns the type's part of file names.
func (k Kind) String() string { return [Kinds]string{"clusters", "scopes", "listeners"}[k] }

// KindOf returns the kind with a name of ADS.
func KindOf(typeURL string) (Kind, bool) {
	k := slices.Index(typeURLs[:], typeURL)
	return Kind(k), k >= 0
}

// Times are the waits of a Relay.
type Times struct {
	// First is the wait for upstreams that are not known yet, before Envoy gets the resources of the others.
	First   time.Duration
	Settled time.Duration // for which Envoy must have had resources when Ran comes; most faults show at once
	Proof   time.Duration // for which Envoy must have had them without Ran
	Rest    time.Duration // minimum interval between writes of an upstream
	MaxRest time.Duration // maximum interval; if the agent dies, the cache is at most that old
	Retry   time.Duration // before a failed write is retried
}

// Relay is the state. Only one goroutine may use it at a time.
type Relay struct {
	Times Times // may be changed between events

	now     time.Time // of the event that is applied
	effects []Effect
	log     journal

	upstreams  map[string]*upstream
	owners     [Kinds]map[string]*share // owner of each resource, by name
	session    *session                 // of the Envoy that connected last; nil: none is connected
	scoped     bool                     // scopes are on disk, or Envoy has subscribed to them
	served     bool                     // Envoy got resources since it last ended
	trials     trials
	attached   bool                   // an Envoy has connected
	removedAny bool                   // an upstream was removed: Envoy may have resources without an owner
	dropped    [Kinds]map[string]bool // names of removed resources that Envoy may have; true: removed while in use
	places     places                 // of listeners that Envoy may have
	writes     uint64                 // number of Write effects
}

// New returns a Relay without resources. The first event is Restored, or there is nothing on disk.
func New(times Times) *Relay {
	r := &Relay{Times: times, upstreams: map[string]*upstream{}, places: places{}}
	r.log.relay = r
	for k := range r.owners {
		r.owners[k], r.dropped[k] = map[string]*share{}, map[string]bool{}
	}
	return r
}

// Apply applies an event that happened at a time, and returns its effects. The caller executes them in this order: the
// ones for one stream, and the ones for the disk. An event with an earlier time than the previous one has that one's.
// The event is not changed, so it can be applied again.
func (r *Relay) Apply(now time.Time, event Event) []Effect {
	if now.After(r.now) {
		r.now = now
	}
	event.apply(r)
	r.restoreYielded()
	r.pump()
	r.prove()
	r.save(false)
	r.trials.record(r)
	effects := r.effects
	r.effects = nil
	return effects
}

// Wake returns the time at which Ticked must be applied, unless another event comes before; zero: never.
func (r *Relay) Wake() (at time.Time) {
	earlier := func(t time.Time) {
		if t.After(r.now) && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	if r.session != nil {
		earlier(r.session.began.Add(r.Times.First))
	}
	for _, c := range r.upstreams {
		if c.proving != nil {
			earlier(c.proving.at.Add(r.Times.Proof))
		}
		if !c.isWriting() && c.due() {
			earlier(c.rest)
		}
	}
	if t := &r.trials; t.count != t.recorded && !t.recording {
		earlier(t.retry)
	}
	return at
}

func (r *Relay) emit(e Effect) { r.effects = append(r.effects, e) }

// upstream returns an upstream. It creates one if there is none.
func (r *Relay) upstream(name string) *upstream {
	c := r.upstreams[name]
	if c == nil {
		c = newUpstream(r, name)
		r.upstreams[name] = c
	}
	return c
}

// sorted returns all upstreams, ordered by name.
func (r *Relay) sorted() []*upstream {
	return slices.SortedFunc(
		maps.Values(r.upstreams), func(a, b *upstream) int { return strings.Compare(a.name, b.name) },
	)
}

// table returns the state of a type in Envoy; nil if no Envoy is connected or it has not subscribed.
func (r *Relay) table(k Kind) *table {
	if r.session == nil {
		return nil
	}
	return r.session.tables[k]
}

// journal emits lines of the log.
type journal struct{ relay *Relay }

func (j journal) Debug(message string, attrs ...any) { j.line(slog.LevelDebug, message, attrs) }
func (j journal) Info(message string, attrs ...any)  { j.line(slog.LevelInfo, message, attrs) }
func (j journal) Error(message string, attrs ...any) { j.line(slog.LevelError, message, attrs) }

func (j journal) line(level slog.Level, message string, attrs []any) {
	j.relay.emit(Log{level, message, attrs})
}
