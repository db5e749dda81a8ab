// Package xds publishes Envoy resources to gateways and edges over delta ADS, and decides which of them are still
// admitted. Input: workload clusters, each as a whole, and ended tunnels. Output: the resources that differ from what
// an Envoy has, only to the Envoys that they concern. It does not know where workload clusters come from or what the
// resources mean.
//
// The clients are agents, each on behalf of its Envoy: an Envoy's answer in these comments is what its agent passes
// on.
//
// Trade-offs. All gateways share one set of Envoy clusters, so a change costs memory once and one message for each
// gateway, however many Envoy clusters there are. An edge's few resources are built for each stream and discarded with
// it, as are a gateway's listeners. So an xds-server keeps nothing about a disconnected client, and a client that
// reconnects reports what it has. Only delta ADS is served: state of the world would send 10,000 Envoy clusters at
// each change. Versions are hashes of the resources, so that an agent can change from one xds-server to another
// without being sent anything.
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

// Server holds the published resources. It is safe for concurrent use.
type Server struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer // rejects state-of-the-world requests

	domain    model.TunnelDomain
	log       *slog.Logger
	now       func() time.Time
	gateways  *feed           // the Envoy clusters of all gateways
	published chan struct{}   // closed when both workload clusters and gateways are known
	target    rollout.Profile // what this server is configured for
	open      context.Context // ends at shutdown, and every stream with it
	close     context.CancelFunc
	said      *limit.Rates // limits repeated log messages
	figures   *figures

	limits *limits

	// publishing orders changes: it is held while a change is built and sent. No stream of an edge takes it.
	publishing sync.Mutex
	common     map[string]types.Resource // the Envoy clusters that every gateway has; no tunnel may have their names
	taken      map[string]bool           // names of common, and of Envoy's own Envoy clusters
	replaced   bool                      // Replace was called

	// mu guards the fields below. Nothing is built, marshalled or hashed while it is held. A change of what is
	// published takes publishing first, so the holder of publishing may read without mu.
	mu       sync.RWMutex
	inst     model.Installation // without gateways: they are not known yet
	telling  telling
	profiles profiles
	clusters map[model.Key]model.WorkloadCluster // the served ones
	withheld withheld
	holders  map[string]model.Key // by Envoy cluster of a tunnel: its last publisher
	tunnels  map[string]*tunnel   // by Tunnel.spec.id
	edges    map[*edge]bool       // the streams of all edges
	streams  uint64               // number of streams so far
	hosts    map[*stream]bool     // the streams of gateways that have reported where they listen
	denials  denials
}

// tunnel is a tunnel that exists, and the streams of its edges.
type tunnel struct {
	cluster model.WorkloadCluster
	streams map[*edge]bool
}

// NewServer returns a server for an installation, which must be valid; it need not have gateways, because SetGateways
// sets them. It serves no client before the first Replace and before gateways are known: a client that reconnects
// would remove what is not published yet.
func NewServer(inst model.Installation, log *slog.Logger) *Server {
	open, closeAll := context.WithCancel(context.Background())
	s := &Server{
		inst: inst, domain: inst.Domain, log: log, now: time.Now, target: targetOf(inst),
		gateways:  newFeed(),
		published: make(chan struct{}),
		open:      open,
		close:     closeAll,
		said:      limit.NewRates(maxSaid),
		limits:    newLimits(),
		clusters:  map[model.Key]model.WorkloadCluster{},
		withheld:  newWithheld(),
		holders:   map[string]model.Key{},
		tunnels:   map[string]*tunnel{},
		edges:     map[*edge]bool{},
		hosts:     map[*stream]bool{},
		denials:   newDenials(),
		telling:   newTelling(),
	}
	s.figures = newFigures(s)
	s.limits.waited, s.limits.refusedStreams = s.figures.paused.Inc, s.figures.overLimit.Inc
	s.profiles = newProfiles(inst, s.target, nil)
	changes := changes{}
	s.setCommon(changes)
	s.send(changes)
	return s
}

// Replace publishes exactly these workload clusters, and no others.
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
	changes := changes{}
	for _, wc := range clusters {
		delete(gone, wc.Key)
		s.put(wc, changes)
	}
	for key := range gone {
		s.remove(key, changes)
	}
	s.send(changes)
	s.deny()
	s.replaced = true
	s.publish()
}

// Publish replaces the workload cluster of a key; nil removes it. An unchanged workload cluster is not sent. If two
// have the same name, the one that was published last has it.
func (s *Server) Publish(key model.Key, cluster *model.WorkloadCluster) {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	ctx, end := s.figures.Trace(key)
	defer end()
	changes := changes{}
	_, build := traces.Begin(ctx, "build")
	if cluster == nil {
		s.remove(key, changes)
	} else {
		s.put(*cluster, changes)
	}
	build.End()
	s.send(changes)
	s.deny()
}

// Close ends all streams, which would not end by themselves, and rejects new ones.
func (s *Server) Close() {
	s.close()
	s.mu.Lock()
	s.denials.stop()
	s.telling.stop()
	all := slices.Collect(maps.Keys(s.edges))
	s.mu.Unlock()
	for _, e := range all {
		e.end(errShutdown)
	}
}

// Published reports whether Replace was called and gateways are known.
func (s *Server) Published() bool {
	select {
	case <-s.published:
		return true
	default:
		return false
	}
}

// Tunnel returns the key of the tunnel with an id, and false if there is none: then its edges get no leaf and no
// configuration.
func (s *Server) Tunnel(id string) (model.Key, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t, ok := s.tunnels[id]
	if !ok {
		return model.Key{}, false
	}
	return t.cluster.Key, true
}

// changes are Envoy clusters to set, by name; nil: to remove.
type changes map[string]types.Resource

// put records a workload cluster and notifies its edges. The caller holds s.publishing.
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
	if wc.Prepared {
		routes = nil
	}
	good, errs := check(routes, s.taken, s.taken)
	s.leftOut(resourcev3.ClusterType, errs, "cluster", wc.Key.String())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clusters[wc.Key] = wc
	s.withheld.remove(wc.Key)
	s.doubt(old, wc)
	for name, r := range good {
		s.holders[name] = wc.Key
		changes[name] = r
	}
	s.release(old, good, changes)
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
	s.doubt(old)
	s.release(old, nil, changes)
	s.end(old)
}

// doubt marks the denials as stale if the changed workload clusters may affect them.
func (s *Server) doubt(changed ...model.WorkloadCluster) {
	if len(s.withheld.ids) > 0 || slices.ContainsFunc(changed, func(wc model.WorkloadCluster) bool { return len(wc.Revoked) > 0 }) {
		s.denials.stale = true
	}
}

// release removes the Envoy clusters of a workload cluster, except ones that it keeps or that now belong to another.
func (s *Server) release(old model.WorkloadCluster, kept map[string]types.Resource, changes changes) {
	for _, name := range old.Names() {
		if _, keeps := kept[name]; !keeps && s.holders[name] == old.Key {
			delete(s.holders, name)
			changes[name] = nil
		}
	}
}

// follow creates or updates the tunnel of a workload cluster.
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

// end ends the tunnel of a workload cluster and the streams of its edges.
func (s *Server) end(wc model.WorkloadCluster) {
	t, ok := s.tunnels[wc.ID]
	if !ok || t.cluster.Key != wc.Key {
		return
	}
	delete(s.tunnels, wc.ID)
	for e := range t.streams {
		e.end(s.admit(e.subject))
	}
}
