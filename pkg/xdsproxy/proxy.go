// Package xdsproxy is a proxy between xds-servers and one Envoy. It subscribes to the xds-servers by delta ADS over
// the control channel and serves Envoy by delta ADS on a Unix socket. It keeps on disk the resources of each type that
// Envoy accepted last, so that an Envoy starts while the xds-server is unavailable. ACK and NACK pass through. Input
// and output are resources. It does not know their meaning, except that they have names, that listeners have addresses,
// and that scopes and listeners refer to Envoy clusters.
//
// What happens is decided in package relay, which has no I/O. This package turns messages, files and timers into its
// events, one at a time, and executes its effects: nothing is encoded, hashed or written while the lock is held, except
// the text of String and Describe, for people.
package xdsproxy

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/xdsproxy/relay"
)

// MaxRequest is the message size that the gRPC server with a Proxy must accept from Envoy. An Envoy that reconnects
// names every resource that it has, with its version and form: in about 130 bytes without a form, and in 431 at most if
// it has the longest name and forwards to three gateways with the longest names. So this is enough for 150,000.
const MaxRequest = 64 << 20

// namePattern matches valid names of upstreams. The name is part of file names.
var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,127}$`)

// usual are the waits of a proxy. Tests have shorter ones.
var usual = relay.Times{
	First: 3 * time.Second, Settled: time.Second, Proof: 10 * time.Second,
	Rest: 100 * time.Millisecond, MaxRest: 10 * time.Second, Retry: 30 * time.Second,
}

// usualSilence is the wait for the first answer of an xds-server, which answers when it has a configuration.
const usualSilence = time.Minute

// Proxy serves one Envoy with the resources of one or several upstreams. It is safe for concurrent use.
type Proxy struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer // rejects state-of-the-world requests

	dir         string
	log         *slog.Logger
	silence     time.Duration
	override    Override // nil: none
	changed     chan struct{}
	due         chan struct{} // there are files to write or to remove
	rescheduled chan struct{} // wake has changed
	disk        sync.Mutex    // held while files of resources are written or removed; locked before mu

	mu       sync.Mutex
	relay    *relay.Relay
	wake     time.Time // when relay.Ticked has to be applied; zero: never
	number   uint64    // of streams
	streams  map[uint64]*stream
	sessions map[uint64]*session
	files    []relay.Effect // writes and removals of files that are not executed yet
	answers  [2]uint64      // ACKs and NACKs sent to the xds-servers
}

// New returns a proxy that keeps its cache in a folder, and loads the cache. It moves an unusable file aside and logs
// that. It returns an error if it can't create or read the folder.
func New(dir string, log *slog.Logger) (*Proxy, error) {
	p := &Proxy{
		dir: dir, log: log, silence: usualSilence, relay: relay.New(usual),
		changed: make(chan struct{}, 1), due: make(chan struct{}, 1), rescheduled: make(chan struct{}, 1),
		streams: map[uint64]*stream{}, sessions: map[uint64]*session{},
	}
	restored, err := p.load()
	if err != nil {
		return nil, fmt.Errorf("loading cache of resources: %w", err)
	}
	p.apply(restored)
	return p, nil
}

// Register registers ADS on the gRPC server that serves Envoy's socket.
func (p *Proxy) Register(g grpc.ServiceRegistrar) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, p)
}

// Maintain writes what Envoy accepts, and keeps the times of the proxy, until ctx ends. Then it writes once more. It
// must run as long as Envoy is served.
func (p *Proxy) Maintain(ctx context.Context) {
	var times sync.WaitGroup
	times.Go(func() { p.keepTimes(ctx) }) // also while a disk does not answer
	for ctx.Err() == nil {
		p.flush()
		select {
		case <-p.due:
		case <-ctx.Done():
		}
	}
	times.Wait()
	p.apply(relay.Flushed{})
	p.flush()
}

// keepTimes applies relay.Ticked at its times until ctx ends.
func (p *Proxy) keepTimes(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		p.mu.Lock()
		wake := p.wake
		p.mu.Unlock()
		var expired <-chan time.Time // nil: never
		if !wake.IsZero() {
			timer.Reset(time.Until(wake))
			expired = timer.C
		}
		select {
		case <-p.rescheduled:
		case <-expired:
			p.apply(relay.Ticked{})
		case <-ctx.Done():
			return
		}
	}
}

// apply applies an event, and executes its effects or hands them to the goroutines that do. It returns the effects.
func (p *Proxy) apply(event relay.Event) []relay.Effect {
	p.mu.Lock()
	if q, ok := event.(relay.Requested); ok {
		event = p.withForms(q)
	}
	effects := p.relay.Apply(time.Now(), event)
	for _, effect := range effects {
		p.route(effect)
	}
	wake := p.relay.Wake()
	if len(p.files) > 0 {
		notify(p.due)
	}
	if !wake.Equal(p.wake) {
		notify(p.rescheduled)
	}
	p.wake = wake
	p.mu.Unlock()
	for _, effect := range effects {
		switch e := effect.(type) {
		case relay.Log:
			p.log.Log(context.Background(), e.Level, e.Message, e.Attrs...)
		case relay.Notify:
			notify(p.changed)
		case relay.Record:
			p.apply(p.record(e))
		}
	}
	return effects
}

// route hands an effect to the goroutine that executes it. The caller holds the lock.
func (p *Proxy) route(effect relay.Effect) {
	switch e := effect.(type) {
	case relay.Subscribe:
		p.streams[e.Stream].enqueue(e)
	case relay.Answer:
		p.answers[min(len(e.Rejections), 1)]++
		p.streams[e.Stream].enqueue(e)
	case relay.CloseStream:
		p.streams[e.Stream].end(e.Err)
	case relay.Respond:
		s := p.sessions[e.Session]
		s.out = append(s.out, e) // at most one of each type, because Envoy answers it first
		notify(s.notified)
	case relay.CloseSession:
		p.sessions[e.Session].end(e.Err)
	case relay.Write, relay.Erase:
		p.files = append(p.files, e)
	}
}

// Answers returns the number of ACKs and NACKs sent to the xds-servers since the proxy was made.
func (p *Proxy) Answers() (acks, nacks uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.answers[0], p.answers[1]
}

// Crashed is called by the supervisor of Envoy when Envoy ended unexpectedly. After several consecutive crashes since
// new resources came, the proxy rolls back to the last good ones and rejects the new ones upstream. Crashed returns
// whether it rolled back now. It ignores the end of an Envoy that got no resources since the previous end. See Ran.
func (p *Proxy) Crashed() bool {
	return slices.Contains(p.apply(relay.Crashed{}), relay.Effect(relay.RolledBack{}))
}

// Ran is called by the supervisor when Envoy has run for a while, which shows that its resources are good: see
// Crashed. It may be called repeatedly. Without it, resources become good after Envoy has had them for longer.
func (p *Proxy) Ran() { p.apply(relay.Ran{}) }

// Ended is called by the supervisor when Envoy ran until it was stopped in order: nothing is at fault. An agent that
// leaves Envoy to the next agent does not call it.
func (p *Proxy) Ended() { p.apply(relay.Ended{}) }

// Upstream is one xds-server stream that contributes resources. Resources of different upstreams must have different
// names: a resource that belongs to another upstream is rejected.
type Upstream struct {
	Name string                   // of the cache's file: a node name
	Node func() *corev3.Node      // identity in requests; called at each connect
	Conn grpc.ClientConnInterface // to the xds-server; it must redial within seconds, and detect when the peer is gone
	// Check rejects a resource before Envoy gets it; the xds-server gets a NACK. nil: no check. If it rejects one
	// resource, the whole response is rejected. It may be called concurrently.
	Check func(typeURL string, resource *anypb.Any) error
}

// Keep sets the upstreams. Call it once, after New and before Envoy is served. It removes the loaded resources of all
// other upstreams, and the ones that the Check of their upstream rejects. The rest is served before Run.
func (p *Proxy) Keep(upstreams ...Upstream) {
	p.mu.Lock()
	loaded := p.relay.Upstreams()
	p.mu.Unlock()
	for _, u := range upstreams {
		if namePattern.MatchString(u.Name) { // otherwise Run returns an error
			p.vet(u)
		}
	}
	for _, name := range loaded {
		if !slices.ContainsFunc(upstreams, func(u Upstream) bool { return u.Name == name }) {
			p.log.Info("removing cached resources, no enrolment has this name", "upstream", name)
			p.Remove(name)
		}
	}
}

// vet removes the loaded resources that the check of an upstream rejects. They may have been written under another
// check.
func (p *Proxy) vet(u Upstream) {
	vetted := relay.Vetted{Upstream: u.Name}
	if u.Check != nil {
		p.mu.Lock()
		present := p.relay.Present(u.Name)
		p.mu.Unlock()
		for k := range relay.Kinds {
			for _, res := range present[k] {
				if err := u.Check(k.TypeURL(), res.Body); err != nil {
					vetted.Faults = append(vetted.Faults, relay.Fault{Kind: k, Name: res.Name, Version: res.Version, Why: err.Error()})
				}
			}
		}
	}
	p.apply(vetted)
}

// Remove removes the resources of an upstream from Envoy and from disk. If its Run continues, it starts again from
// nothing.
func (p *Proxy) Remove(name string) {
	if namePattern.MatchString(name) {
		p.apply(relay.Removed{Upstream: name})
		p.flush()
	}
}

// State is the state of an upstream.
type State = relay.State

// State returns the state of an upstream; the zero value if the upstream is not known.
func (p *Proxy) State(name string) State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.relay.State(name)
}

// Accepted returns the names of an upstream's resources of one type that Envoy, or an earlier Envoy, accepted last, in
// order.
func (p *Proxy) Accepted(name, typeURL string) []string {
	k, ok := relay.KindOf(typeURL)
	if !ok {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.relay.Accepted(name, k)
}

// Owns reports whether a resource of any type belongs to an upstream: Envoy has it, or is offered it, from there.
func (p *Proxy) Owns(upstream, resource string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.relay.Owns(upstream, resource)
}

// String returns the state of the proxy for people who look for a fault: what differs between the xds-servers, Envoy
// and the disk. It has no content of resources, and does not grow with resources that are the same everywhere.
func (p *Proxy) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.relay.String()
}

// Describe returns String without anything that came from other upstreams.
func (p *Proxy) Describe(upstream string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.relay.Describe(upstream)
}

// Changed returns a channel of capacity 1 that receives a value when the State of any upstream may have changed. The
// proxy never blocks on it.
func (p *Proxy) Changed() <-chan struct{} { return p.changed }

// notify sends to a channel of capacity 1, unless it is full.
func notify(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// Run keeps the upstream's stream open until ctx ends, with a jittered backoff, and then returns nil. It returns an
// error that wraps ErrOver as soon as the xds-server reports that it will never serve this identity again
// (codes.FailedPrecondition). A name must have one Run at a time.
func (p *Proxy) Run(ctx context.Context, u Upstream) error {
	if !namePattern.MatchString(u.Name) {
		return fmt.Errorf("checking name of upstream: %q does not match %s", u.Name, namePattern)
	}
	return p.run(ctx, u)
}
