// Package xds publishes Envoy resources to gateways and edges over delta ADS, and decides which of them are still
// admitted. In go workload clusters, each as a whole, ended tunnels, gateways, and the record of rollouts. Out come the
// resources that differ from what an Envoy has, and nothing to other Envoys. It does not know where workload clusters
// come from or what the resources mean.
//
// The clients are agents. What a comment here states about an Envoy, its agent passes on.
//
// Trade-offs. All gateways share one set of Envoy clusters and one of scopes, the routes of apiservers to networks
// (pkg/xds/feed). So a change costs memory once and one message for each gateway, for any number of them. An edge's few
// resources are built for each stream and discarded with it, as are a gateway's listeners. So an xds-server stores
// nothing about an Envoy that is not connected, and an Envoy that returns sends the versions that it has. Only delta
// ADS is served: state of the world would send 10,000 Envoy clusters at each change. Versions are hashes of the
// resources, so an agent can change to another xds-server and receives nothing again.
//
// The package has more than 2,500 lines because publishing, admission and the streams use the same tables under one
// lock.
package xds

import (
	"context"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/limit"
	"github.com/fairlead/fairlead/internal/traces"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/rollout"
)

var errShutdown = status.Error(codes.Unavailable, "the server is shutting down")

// Server holds what is published. It is safe for concurrent use.
type Server struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer // rejects state of the world

	domain    model.TunnelDomain
	log       *slog.Logger
	now       func() time.Time
	gateways  *shared         // the Envoy clusters of all gateways
	scopes    *shared         // the routes of apiservers to networks, of all gateways
	published chan struct{}   // closed when both workload clusters and gateways are known
	target    rollout.Profile // what this server is configured for
	open      context.Context // ends at shutdown; then every stream is closed
	close     context.CancelFunc
	logged    *limit.Rates // log lines by node and reason
	figures   *figures

	limits *limits

	maxResponse int // see the constant; changed only in tests

	// publishing orders changes: each publisher holds it while it builds, encodes, hashes and sends. So a change waits for
	// the ones before it, and the first request of a gateway's stream for the change that is being made. Nothing else
	// takes it, in particular no stream of an edge and no call of the hub.
	publishing sync.Mutex
	common     map[string]types.Resource // the Envoy clusters of every gateway, whose names no tunnel may have
	rendered   map[model.Key][]string    // names of the Envoy clusters of each workload cluster
	networks   networks
	replaced   bool // there was a Replace

	// mu guards the fields below. Every stream waits for it. So no resource is built, encoded or hashed while it is held,
	// and nothing is logged. A change of published state takes publishing first, so the holder of publishing may read
	// without mu.
	mu             sync.RWMutex
	inst           model.Installation // without gateways: they are not known yet
	outdated       outdatedEdges
	profiles       profiles
	taken          map[string]bool // the names of s.common and of Envoy's static clusters; its values never change
	listening      listening
	clusters       map[model.Key]model.WorkloadCluster // served ones
	withheld       withheld
	holders        map[string]model.Key // the last publisher of each Envoy cluster of a tunnel
	tunnels        map[string]*tunnel   // by Tunnel.spec.id
	edges          map[*edge]bool       // the streams of all edges
	streams        uint64               // number of streams of edges so far
	gatewayStreams map[*gateway]bool    // the streams of gateways that have sent their addresses
	denials        denials
}

// listening is what the listeners of gateways are built from. It is replaced as a whole, after the Envoy clusters that
// the listeners refer to: a listener that is built in between would lack an Envoy cluster, and be left out. Its values
// never change.
type listening struct {
	profiles profiles
	denied   model.Denied
	taken    map[string]bool
}

// tunnel is a tunnel that is served, and the streams of its edges.
type tunnel struct {
	cluster model.WorkloadCluster
	streams map[*edge]bool
}

// NewServer returns a server for an installation, which must be valid. It may lack gateways, which SetGateways then
// sets. The server sends nothing before the first Replace, and before gateways are known: an agent that reconnects
// would take resources that are not published yet for removed.
func NewServer(inst model.Installation, log *slog.Logger) *Server {
	open, closeAll := context.WithCancel(context.Background())
	s := &Server{
		inst: inst, domain: inst.Domain, log: log, now: time.Now, target: targetOf(inst),
		gateways:       newShared(resourcev3.ClusterType),
		scopes:         newShared(resourcev3.ScopedRouteType),
		rendered:       map[model.Key][]string{},
		networks:       newNetworks(),
		published:      make(chan struct{}),
		open:           open,
		close:          closeAll,
		logged:         limit.NewRates(maxLogged),
		limits:         newLimits(),
		maxResponse:    maxResponse,
		clusters:       map[model.Key]model.WorkloadCluster{},
		withheld:       newWithheld(),
		holders:        map[string]model.Key{},
		tunnels:        map[string]*tunnel{},
		edges:          map[*edge]bool{},
		gatewayStreams: map[*gateway]bool{},
		denials:        newDenials(),
		outdated:       newOutdatedEdges(),
	}
	s.figures = newFigures(s)
	s.limits.waited, s.limits.refusedStreams = s.figures.paused.Inc, s.figures.overLimit.Inc
	s.profiles = newProfiles(inst, s.target, nil)
	changes := newChanges()
	s.setCommon(changes)
	s.send(changes)
	s.relisten()
	return s
}

// Replace publishes exactly these workload clusters. It removes all others.
func (s *Server) Replace(clusters []model.WorkloadCluster) {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	gone := make(map[model.Key]bool, len(s.clusters))
	for key := range s.clusters {
		gone[key] = true
	}
	for key := range s.withheld.ids {
		gone[key] = true
	}
	changes := newChanges()
	for _, wc := range clusters {
		delete(gone, wc.Key)
		s.put(wc, changes)
	}
	for key := range gone {
		s.remove(key, changes)
	}
	s.setScopes(changes)
	s.send(changes)
	s.deny()
	s.replaced = true
	s.publish()
}

// Publish replaces the workload cluster under a key; nil removes it. A value that is equal to the current one is not
// sent. If two workload clusters have the same name, the one that was published last has it.
func (s *Server) Publish(key model.Key, cluster *model.WorkloadCluster) {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	ctx, end := s.figures.Trace(key)
	defer end()
	changes := newChanges()
	_, build := traces.Begin(ctx, "build")
	if cluster == nil {
		s.remove(key, changes)
	} else {
		s.put(*cluster, changes)
	}
	s.setScopes(changes)
	build.End()
	s.send(changes)
	s.deny()
}

// Close closes all streams, which would never end by themselves, and rejects new ones.
func (s *Server) Close() {
	s.close()
	s.mu.Lock()
	s.denials.stop()
	s.outdated.stop()
	all := slices.Collect(maps.Keys(s.edges))
	s.mu.Unlock()
	for _, e := range all {
		e.close(errShutdown)
	}
}

// Published reports whether there was a Replace, and gateways are known.
func (s *Server) Published() bool {
	select {
	case <-s.published:
		return true
	default:
		return false
	}
}

// Tunnel returns the workload cluster whose tunnel has an id. It returns false if there is none: edges of that id
// get no leaf and no configuration.
func (s *Server) Tunnel(id string) (model.Key, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t, ok := s.tunnels[id]
	if !ok {
		return model.Key{}, false
	}
	return t.cluster.Key, true
}

// Tunnels returns the number of workload clusters that are known, including those that are not served.
func (s *Server) Tunnels() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.clusters) + len(s.withheld.ids)
}

// put serves a workload cluster and notifies its edges. The caller holds s.publishing.
func (s *Server) put(wc model.WorkloadCluster, changes changes) {
	if wc.Withheld {
		s.withhold(wc, changes)
		return
	}
	old, had := s.clusters[wc.Key]
	if had && reflect.DeepEqual(old, wc) {
		return
	}
	routes := envoy.TunnelClusters(s.inst, wc)
	if wc.Prepared || wc.Egress {
		routes = nil
	}
	good, errs := check(routes, s.taken, s.taken)
	s.leftOut(resourcev3.ClusterType, errs, "cluster", wc.Key.String())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clusters[wc.Key] = wc
	if s.withheld.remove(wc.Key) {
		s.denials.stale = true
	}
	s.markDenials(old, wc)
	s.replaceNetwork(old, wc)
	s.release(wc.Key, good, changes)
	for name, r := range good {
		s.holders[name] = wc.Key
		changes.clusters[name] = r
		s.rendered[wc.Key] = append(s.rendered[wc.Key], name)
	}
	if had && old.ID != wc.ID {
		s.end(old)
	}
	s.follow(wc)
}

// withhold ends the tunnel of a workload cluster, if it has one, and keeps its revocations.
func (s *Server) withhold(wc model.WorkloadCluster, changes changes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.withheld.put(wc) {
		s.denials.stale = true
	}
	s.unserve(wc.Key, changes)
}

// remove removes a workload cluster and ends its tunnel.
func (s *Server) remove(key model.Key, changes changes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.withheld.remove(key) {
		s.denials.stale = true
	}
	s.unserve(key, changes)
}

// unserve ends the tunnel of a workload cluster. The caller holds s.mu.
func (s *Server) unserve(key model.Key, changes changes) {
	old, had := s.clusters[key]
	if !had {
		return
	}
	delete(s.clusters, key)
	s.markDenials(old)
	s.replaceNetwork(old, model.WorkloadCluster{})
	s.release(key, nil, changes)
	s.end(old)
}

// markDenials has the denials resolved again if these workload clusters, which have changed, may affect them: they
// revoke edges, or a withheld one has their id, which revokes edges only while none is served.
func (s *Server) markDenials(changed ...model.WorkloadCluster) {
	if slices.ContainsFunc(changed, func(wc model.WorkloadCluster) bool {
		return len(wc.Revoked) > 0 || wc.ID != "" && len(s.withheld.byID[wc.ID]) > 0
	}) {
		s.denials.stale = true
	}
}

// release removes the Envoy clusters of a workload cluster, unless they are in kept, or another workload cluster
// holds them.
func (s *Server) release(key model.Key, kept map[string]types.Resource, changes changes) {
	for _, name := range s.rendered[key] {
		if _, keeps := kept[name]; !keeps && s.holders[name] == key {
			delete(s.holders, name)
			changes.clusters[name] = nil
		}
	}
	delete(s.rendered, key)
}

// follow creates or updates the tunnel of a workload cluster. The caller holds s.mu.
func (s *Server) follow(wc model.WorkloadCluster) {
	if t, ok := s.tunnels[wc.ID]; ok && t.cluster.Key != wc.Key {
		s.end(t.cluster) // its edges reconnect, to this one
	}
	t, ok := s.tunnels[wc.ID]
	if !ok {
		t = &tunnel{streams: map[*edge]bool{}}
		s.tunnels[wc.ID] = t
	}
	t.cluster = wc
	for e := range t.streams {
		e.update()
	}
}

// end ends the tunnel of a workload cluster and closes the streams of its edges. The caller holds s.mu.
func (s *Server) end(wc model.WorkloadCluster) {
	t, ok := s.tunnels[wc.ID]
	if !ok || t.cluster.Key != wc.Key {
		return
	}
	delete(s.tunnels, wc.ID)
	for e := range t.streams {
		e.close(s.admit(e.subject))
	}
}
