package xds

import (
	"context"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/printable"
	"github.com/fairlead/fairlead/pkg/deltaxds"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// edge is the stream of an edge, or of the Envoy beside an apiserver. All of its few resources are built again when the
// tunnel or the gateways change.
type edge struct {
	stream
	pace   *rate.Limiter // of requests
	number uint64        // of the stream: a newer one has a higher number

	// The lock of the stream guards the fields below.
	dial    envoy.EdgeDial // where the edge dials gateways
	made    resources      // until the edge has requested all types; nil: built when they are needed
	updates uint64         // how often made became stale
}

// enterEdge registers a stream, so that it follows its tunnel. If its node has too many streams, the oldest is closed.
func (s *Server) enterEdge(subject model.Subject, conn adsConn, end func(error)) (*stream, error) {
	e := &edge{stream: newStream(s, subject, conn, end), pace: s.limits.newPace()}
	e.source = e
	if err := s.register(e); err != nil {
		return nil, err
	}
	s.logEdge(e.subject, "stream opened", "node", e.subject.Node, "role", e.subject.Role)
	return &e.stream, nil
}

// register enters a stream in the tables of the server.
func (s *Server) register(e *edge) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open.Err() != nil {
		return errShutdown
	}
	if err := s.admit(e.subject); err != nil {
		return err
	}
	t := s.tunnels[e.subject.ID]
	if err := s.limits.evictFor(t, e.subject.Node); err != nil {
		return err
	}
	s.streams++
	e.number = s.streams
	s.edges[e] = true
	t.streams[e] = true
	return nil
}

func (e *edge) exit() {
	e.leave()
	s := e.server
	s.mu.Lock()
	delete(s.edges, e)
	delete(s.outdated.waiting, e)
	if t, ok := s.tunnels[e.subject.ID]; ok {
		delete(t.streams, e)
	}
	s.mu.Unlock()
	s.logEdge(e.subject, "stream closed", "node", e.subject.Node)
}

// update has the stream send what has changed.
func (e *edge) update() {
	e.mu.Lock()
	e.made = nil
	e.updates++
	e.mu.Unlock()
	e.change(0, 1)
}

func (e *edge) wait(ctx context.Context) error { return e.server.limits.wait(ctx, e) }

func (e *edge) begin(node *corev3.Node) error {
	dial, err := envoy.ParseEdgeDial(node)
	if err != nil {
		return status.Error(codes.InvalidArgument, printable.Text(err.Error(), maxQuoted))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dial = dial
	return nil
}

func (e *edge) check(r *discoveryv3.DeltaDiscoveryRequest) error {
	n := len(r.GetInitialResourceVersions()) + len(r.GetResourceNamesSubscribe()) + len(r.GetResourceNamesUnsubscribe())
	if n > maxNames {
		return status.Errorf(codes.InvalidArgument, "the request lists %d names, more than %d", n, maxNames)
	}
	return nil
}

func (e *edge) offer(kind int, _ bool) (deltaxds.Offer, bool, error) {
	s := e.server
	s.limits.builds <- struct{}{}
	defer func() { <-s.limits.builds }()
	e.mu.Lock()
	made, dial, updates := e.made, e.dial, e.updates
	e.mu.Unlock()
	if made == nil {
		rendering, cluster, ok := s.servedTo(e.subject)
		if !ok {
			return deltaxds.Offer{}, false, nil
		}
		made = s.edgeResources(rendering, cluster, e.subject.Node, dial)
		e.mu.Lock()
		if e.updates == updates {
			e.made = made // reuse the resources of the other type
		}
		e.mu.Unlock()
	}
	all, err := encode(edgeOrder[kind], made[edgeOrder[kind]])
	return deltaxds.Whole(all), true, err
}

func (e *edge) sent(kind int, response *discoveryv3.DeltaDiscoveryResponse, _ bool) int64 {
	if response == nil {
		return 0
	}
	return e.progress[kind].TakeChange()
}

func (e *edge) idle() {
	for kind := range e.progress {
		if !e.state.Asked(kind) {
			return // what is built is for the other type, too
		}
	}
	e.made = nil
}

// edgeResources builds all resources of one edge. It needs no lock.
func (s *Server) edgeResources(r rendering, wc model.WorkloadCluster, node string, dial envoy.EdgeDial) resources {
	if wc.Prepared {
		return resources{resourcev3.ClusterType: {}, resourcev3.ListenerType: {}}
	}
	inst := r.inst
	inst.Lanes = inst.LanesFor(r.size, wc)
	dial.Version, dial.First = dial.Version.AtMost(r.version), r.initial
	static := set(envoy.StaticClusters(model.RoleEdge))
	clusters, errs := check(envoy.EdgeClusters(inst, wc, node, dial), static, static)
	s.leftOutOfEdge(resourcev3.ClusterType, errs, wc.ID, node)
	listeners, errs := check(envoy.EdgeListeners(inst, wc, node, dial), nil, namesOf(clusters, static))
	s.leftOutOfEdge(resourcev3.ListenerType, errs, wc.ID, node)
	return resources{resourcev3.ClusterType: clusters, resourcev3.ListenerType: listeners}
}

// servedTo returns what the resources of an edge are built from, and false if its tunnel has ended. The values never
// change, so building needs no lock.
func (s *Server) servedTo(edge model.Subject) (rendering, model.WorkloadCluster, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := s.tunnels[edge.ID]
	if t == nil {
		return rendering{}, model.WorkloadCluster{}, false
	}
	wc := t.cluster
	wc.Forwards = s.networks.forwards[edge.ID]
	return s.profiles.of(edge), wc, true
}
