// Package xdsproxy stands between an xds-server and an Envoy: it asks the one by delta ADS over the control channel, serves the
// other by delta ADS on a Unix socket, and keeps on disk the last resources of each type that Envoy accepted, so that an
// Envoy starts while the xds-server is away. ACK and NACK pass through. In go resources, out come the same; it does not
// know what they mean, but that they have names, and that listeners refer to Envoy clusters.
//
// An xds-server is told ACK when Envoy has accepted what it sent, so without an Envoy it gets no answer until there is one.
// A resource that is refused, by Envoy, by a check or after crashes, leaves the others as they are: Envoy keeps the
// version that it had, until the xds-server sends another one than was refused.
//
// It has more than 2,500 lines because cache, ACKs and the return to an earlier version after crashes change the same state under one
// lock.
package xdsproxy

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"
)

// MaxRequest is what the gRPC server on which a Proxy is registered must take from Envoy: an Envoy that comes back names
// everything that it has, in about 130 bytes each. So it is room for 120,000.
const MaxRequest = 16 << 20

// namePattern is what an upstream may be called: the name is part of those of its files.
var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,127}$`)

// kind is a type of resources. Their order is that in which Envoy has to learn of them: a listener refers to Envoy clusters.
type kind int

const (
	clusters kind = iota
	listeners
	kinds // how many there are
)

var typeURLs = [kinds]string{resourcev3.ClusterType, resourcev3.ListenerType}

func (k kind) typeURL() string { return typeURLs[k] }

// String is the type's part of the name of a file.
func (k kind) String() string { return [kinds]string{"clusters", "listeners"}[k] }

func kindOf(typeURL string) (kind, bool) {
	k := slices.Index(typeURLs[:], typeURL)
	return kind(k), k >= 0
}

// Proxy serves one Envoy with what one or several upstreams say together. It is safe for concurrent use.
type Proxy struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer // which refuses state of the world

	dir      string
	log      *slog.Logger
	times    times
	changed  chan struct{}
	answers  answers
	override Override   // nil: none
	disk     sync.Mutex // held while files are written or erased, before mu

	mu            sync.Mutex
	contributions map[string]*contribution
	owners        [kinds]map[string]*share // by the name of a resource: whose it is
	session       *session                 // of the Envoy that connected last; nil: none is connected
	served        bool                     // Envoy got resources since it ended last
	trials        trials
	forgot        bool                   // there was a Forget: Envoy may have resources of nobody
	dropped       [kinds]map[string]bool // names of what was forgotten, that Envoy may have

	recording   sync.Mutex // held while the record of trials is written, before mu; it guards what follows
	recorded    int        // the count that is on disk
	recordFails bool
}

// New returns a proxy that keeps its cache in a folder, and loads what is there. A file that can't be used is put aside, with
// a line in the log. The error is that of a folder that can't be made or read.
func New(dir string, log *slog.Logger) (*Proxy, error) {
	r := &Proxy{dir: dir, log: log, times: usual, changed: make(chan struct{}, 1), contributions: map[string]*contribution{}}
	for k := range r.owners {
		r.owners[k], r.dropped[k] = map[string]*share{}, map[string]bool{}
	}
	if err := r.load(); err != nil {
		return nil, fmt.Errorf("loading cache of resources: %w", err)
	}
	return r, nil
}

// Register adds ADS to the gRPC server on whose socket Envoy asks.
func (r *Proxy) Register(g grpc.ServiceRegistrar) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, r)
}

// Upstream is one xds-server stream that contributes resources. Names of resources of different upstreams must differ: who
// sends one that another has is refused.
type Upstream struct {
	Name string                   // of the cache's file: a node name
	Node func() *corev3.Node      // whom to be; read at each connect
	Conn grpc.ClientConnInterface // to the xds-server; it dials again within seconds, and notices when the other side is gone
	// Check refuses a resource before Envoy sees it, which answers the xds-server with a NACK; nil: none. What comes in one
	// response is refused together. It may be called by several goroutines, and must not call the Proxy.
	Check func(typeURL string, resource *anypb.Any) error
}

// Keep says which upstreams there are, and is called once, after New and before Envoy is served. Of what was loaded it
// forgets that of all others, and what the Check of the one that it came from refuses. What remains is served before Run.
func (r *Proxy) Keep(upstreams ...Upstream) {
	r.mu.Lock()
	unknown := maps.Clone(r.contributions)
	for _, u := range upstreams {
		if namePattern.MatchString(u.Name) { // Run says so otherwise
			delete(unknown, u.Name)
			r.contribution(u.Name).vet(u.Check)
		}
	}
	r.mu.Unlock()
	for name := range unknown {
		r.log.Info("removing cached resources, no enrolment has this name", "upstream", name)
		r.Forget(name)
	}
}

// Forget drops what an upstream has contributed, in Envoy and on disk. One whose Run goes on begins anew.
func (r *Proxy) Forget(name string) {
	if !namePattern.MatchString(name) {
		return
	}
	r.disk.Lock() // before somebody contributes anew under this name
	defer r.disk.Unlock()
	r.mu.Lock()
	if c := r.contributions[name]; c != nil {
		c.forget()
	}
	r.mu.Unlock()
	r.erase(name)
	r.signal()
}

// State is how an upstream is.
type State struct {
	Connected bool      // the xds-server has answered on the stream that is open
	Since     time.Time // when Connected became what it is, at the earliest the start
	Cached    bool      // there was something on disk at the start, and nothing has come since: Envoy has that, or what it had
	Refused   string    // why Envoy, Check or a roll-back refused the newest resources; empty: it did not
}

// State returns how an upstream is; the zero value for one that is not known.
func (r *Proxy) State(name string) State {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.contributions[name]
	if c == nil {
		return State{}
	}
	return State{Connected: c.connected, Since: c.since, Cached: c.cached(), Refused: c.refusals()}
}

// Accepted returns the names of the resources of one type that Envoy accepted last from an upstream, or an Envoy before it, in order.
func (r *Proxy) Accepted(name, typeURL string) []string {
	k, ok := kindOf(typeURL)
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.contributions[name]
	if c == nil || !ok {
		return nil
	}
	return slices.Sorted(maps.Keys(c.shares[k].accepted))
}

// Changed is signalled (never blocks, capacity 1) when the State of any upstream may have changed.
func (r *Proxy) Changed() <-chan struct{} { return r.changed }

func (r *Proxy) signal() { poke(r.changed) }

// contribution returns that of an upstream, which it makes if there is none.
func (r *Proxy) contribution(name string) *contribution {
	c := r.contributions[name]
	if c == nil {
		c = newContribution(r, name)
		r.contributions[name] = c
	}
	return c
}

// sorted are all contributions, by name.
func (r *Proxy) sorted() []*contribution {
	return slices.SortedFunc(maps.Values(r.contributions), func(a, b *contribution) int { return strings.Compare(a.name, b.name) })
}

// wake has the session look for what it can send.
func (r *Proxy) wake() {
	if r.session != nil {
		poke(r.session.wake)
	}
}

// poke signals a channel of capacity 1.
func poke(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// Run keeps the upstream's stream open until ctx ends, with a jittered backoff. It returns nil then, and an error at once
// when the xds-server says that this identity will never be served again (codes.FailedPrecondition): it wraps ErrOver. A
// name has one Run at a time.
func (r *Proxy) Run(ctx context.Context, u Upstream) error {
	if !namePattern.MatchString(u.Name) {
		return fmt.Errorf("checking name of upstream: %q does not match %s", u.Name, namePattern)
	}
	return r.run(ctx, u)
}
