// Package xdsproxy is a proxy between xds-servers and one Envoy. It subscribes to the xds-servers by delta ADS over
// the control channel and serves Envoy by delta ADS on a Unix socket. It keeps on disk the resources of each type that
// Envoy accepted last, so that an Envoy starts while the xds-server is unavailable. ACK and NACK pass through. Input
// and output are resources. It does not know their meaning, except that they have names, that listeners have addresses,
// and that scopes and listeners refer to Envoy clusters.
//
// An xds-server gets an ACK when Envoy has accepted its resources; without an Envoy it gets no answer. A rejected
// resource does not affect others: if Envoy or a check rejects it, or it is rolled back after crashes, Envoy keeps the
// version that it had until the xds-server sends another one.
//
// The package has more than 2,500 lines because cache, ACKs and the rollback after crashes change the same state under
// one lock.
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

// MaxRequest is the message size that the gRPC server with a Proxy must accept from Envoy. An Envoy that reconnects
// names every resource that it has, in about 130 bytes each, so this is enough for 120,000.
const MaxRequest = 16 << 20

// namePattern matches valid names of upstreams. The name is part of file names.
var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,127}$`)

// kind is a type of resources. Envoy must get the kinds in this order: scopes and listeners refer to Envoy clusters.
type kind int

const (
	clusters kind = iota
	scopes        // the routes of apiservers. Envoy subscribes to them only if it has a listener that uses them
	listeners
	kinds // number of kinds
)

var typeURLs = [kinds]string{resourcev3.ClusterType, resourcev3.ScopedRouteType, resourcev3.ListenerType}

func (k kind) typeURL() string { return typeURLs[k] }

// String returns the type's part of file names.
func (k kind) String() string { return [kinds]string{"clusters", "scopes", "listeners"}[k] }

func kindOf(typeURL string) (kind, bool) {
	k := slices.Index(typeURLs[:], typeURL)
	return kind(k), k >= 0
}

// Proxy serves one Envoy with the resources of one or several upstreams. It is safe for concurrent use.
type Proxy struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer // rejects state-of-the-world requests

	dir      string
	log      *slog.Logger
	times    times
	changed  chan struct{}
	answers  answers
	override Override   // nil: none
	disk     sync.Mutex // held while files are written or removed; locked before mu

	mu            sync.Mutex
	contributions map[string]*contribution
	owners        [kinds]map[string]*share // owner of each resource, by name
	session       *session                 // of the Envoy that connected last; nil: none is connected
	scoped        bool                     // scopes are on disk, or Envoy has subscribed to them
	served        bool                     // Envoy got resources since it last ended
	trials        trials
	removedAny    bool                   // Remove was called: Envoy may have resources without an owner
	dropped       [kinds]map[string]bool // names of removed resources that Envoy may have
	places        map[string]string      // addresses of listeners, by name

	recording   sync.Mutex // held while the record of trials is written; locked before mu; guards the fields below
	recorded    int        // the count on disk
	recordFails bool
}

// New returns a proxy that keeps its cache in a folder, and loads the cache. It moves an unusable file aside and logs
// that. It returns an error if it can't create or read the folder.
func New(dir string, log *slog.Logger) (*Proxy, error) {
	r := &Proxy{
		dir:           dir,
		log:           log,
		times:         usual,
		changed:       make(chan struct{}, 1),
		contributions: map[string]*contribution{},
		places:        map[string]string{},
	}
	for k := range r.owners {
		r.owners[k], r.dropped[k] = map[string]*share{}, map[string]bool{}
	}
	if err := r.load(); err != nil {
		return nil, fmt.Errorf("loading cache of resources: %w", err)
	}
	return r, nil
}

// Register registers ADS on the gRPC server that serves Envoy's socket.
func (r *Proxy) Register(g grpc.ServiceRegistrar) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, r)
}

// Upstream is one xds-server stream that contributes resources. Resources of different upstreams must have different
// names: a resource that belongs to another upstream is rejected.
type Upstream struct {
	Name string                   // of the cache's file: a node name
	Node func() *corev3.Node      // identity in requests; called at each connect
	Conn grpc.ClientConnInterface // to the xds-server; it must redial within seconds, and detect when the peer is gone
	// Check rejects a resource before Envoy gets it; the xds-server gets a NACK. nil: no check. If it rejects one
	// resource, the whole response is rejected. It may be called concurrently, and must not call the Proxy.
	Check func(typeURL string, resource *anypb.Any) error
}

// Keep sets the upstreams. Call it once, after New and before Envoy is served. It removes the loaded resources of all
// other upstreams, and the ones that the Check of their upstream rejects. The rest is served before Run.
func (r *Proxy) Keep(upstreams ...Upstream) {
	r.mu.Lock()
	unknown := maps.Clone(r.contributions)
	for _, u := range upstreams {
		if namePattern.MatchString(u.Name) { // otherwise Run returns an error
			delete(unknown, u.Name)
			r.contribution(u.Name).vet(u.Check)
		}
	}
	r.mu.Unlock()
	for name := range unknown {
		r.log.Info("removing cached resources, no enrolment has this name", "upstream", name)
		r.Remove(name)
	}
}

// Remove removes the resources of an upstream from Envoy and from disk. If its Run continues, it starts again from
// nothing.
func (r *Proxy) Remove(name string) {
	if !namePattern.MatchString(name) {
		return
	}
	r.disk.Lock() // prevents a new contribution under this name meanwhile
	defer r.disk.Unlock()
	r.mu.Lock()
	if c := r.contributions[name]; c != nil {
		c.remove()
	}
	r.mu.Unlock()
	r.erase(name)
	r.notifyChanged()
}

// State is the state of an upstream.
type State struct {
	Connected bool      // the xds-server has answered on the open stream
	Since     time.Time // last change of Connected, or the start
	// resources were loaded from disk, and the xds-server has not answered since: Envoy has these or what it had before
	Cached  bool
	Refused string // why Envoy, Check or a rollback rejected the newest resources; empty: they are not rejected
}

// State returns the state of an upstream; the zero value if the upstream is not known.
func (r *Proxy) State(name string) State {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.contributions[name]
	if c == nil {
		return State{}
	}
	return State{Connected: c.connected, Since: c.since, Cached: c.cached(), Refused: c.rejections()}
}

// Accepted returns the names of an upstream's resources of one type that Envoy, or an earlier Envoy, accepted last, in
// order.
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

// Changed returns a channel of capacity 1 that receives a value when the State of any upstream may have changed. The
// proxy never blocks on it.
func (r *Proxy) Changed() <-chan struct{} { return r.changed }

func (r *Proxy) notifyChanged() { notify(r.changed) }

// contribution returns the contribution of an upstream. It creates one if there is none.
func (r *Proxy) contribution(name string) *contribution {
	c := r.contributions[name]
	if c == nil {
		c = newContribution(r, name)
		r.contributions[name] = c
	}
	return c
}

// sorted returns all contributions, ordered by name.
func (r *Proxy) sorted() []*contribution {
	return slices.SortedFunc(
		maps.Values(r.contributions), func(a, b *contribution) int { return strings.Compare(a.name, b.name) },
	)
}

// notifySession notifies the session that it may have something to send.
func (r *Proxy) notifySession() {
	if r.session != nil {
		notify(r.session.notified)
	}
}

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
func (r *Proxy) Run(ctx context.Context, u Upstream) error {
	if !namePattern.MatchString(u.Name) {
		return fmt.Errorf("checking name of upstream: %q does not match %s", u.Name, namePattern)
	}
	return r.run(ctx, u)
}
