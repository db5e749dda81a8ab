package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	controllog "github.com/envoyproxy/go-control-plane/pkg/log"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/limit"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/xds/csds"
	"github.com/fairlead/fairlead/pkg/xds/progress"
)

const (
	// maxDetail is how much is logged of what an Envoy, or its agent, says about resources that it refuses.
	maxDetail = 2 << 10
	// maxSaid is how many nodes and reasons are remembered, so that each is logged once in a while.
	maxSaid = 4096
)

var (
	// sayRate is how often the same refusal is logged. Those who wait for a tunnel that is not known ask every minute.
	sayRate = limit.Rate{Every: time.Hour, Burst: 1}
	// refusalRate is how often it is logged that a node refuses resources: each may be about others.
	refusalRate = limit.Rate{Every: time.Minute, Burst: 10}
)

// stream is the ADS stream of a gateway. It tells go-control-plane what it may send: the caches are chosen by the certificate, and
// nothing in a request can lead to others.
type stream struct {
	server  *Server
	subject model.Subject
	log     *slog.Logger
	end     context.CancelCauseFunc
	named   bool                            // the node id was checked
	bind    envoy.GatewayBind               // where it listens
	caches  map[string]*cachev3.LinearCache // by type URL; they are there with the first request, which says bind
	reader  *reader                         // of the Envoy clusters that all gateways share

	progress [2]progress.Progress // by order
	last     uint64               // the number of the last change of those Envoy clusters that was sent
	told     bool                 // something was
}

// resources are those of one Envoy, by type URL and name.
type resources map[string]map[string]types.Resource

// DeltaAggregatedResources implements ADS.
func (s *Server) DeltaAggregatedResources(conn discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	subject, err := caller(conn.Context(), s.domain, s.now())
	switch {
	case err != nil:
	case subject.Role == model.RoleEdge:
		err = s.edgeStream(conn, subject)
	default:
		err = s.stream(conn, subject)
	}
	s.refused(subject, err)
	return err
}

// refused logs why a stream was refused or cut off: once in a while for each node, because whoever is refused comes back.
func (s *Server) refused(subject model.Subject, err error) {
	code := status.Code(err)
	s.figures.noteEnd(code)
	switch code {
	case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.FailedPrecondition:
	case codes.Unavailable:
		if s.open.Err() != nil {
			return // everybody's streams end now
		}
	default:
		return
	}
	if subject.Role == model.RoleEdge && s.limits.lines.Look(subject.ID, logRate) > 0 {
		return
	}
	if s.said.Take(subject.Node+" "+subject.ID+" "+code.String(), sayRate) == 0 {
		s.log.Warn("stream rejected", "node", subject.Node, "error", err)
	}
}

// stream serves a stream to its end.
func (s *Server) stream(conn discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer, subject model.Subject) error {
	select {
	case <-s.published:
	case <-s.open.Done():
		return errShutdown
	case <-conn.Context().Done():
		return conn.Context().Err()
	}
	ctx, end := context.WithCancelCause(conn.Context())
	defer end(nil)
	st, err := s.newStream(subject, end)
	if err != nil {
		return err
	}
	defer s.forget(st)
	defer context.AfterFunc(s.open, func() { end(errShutdown) })()
	st.log.Info("stream opened", "role", subject.Role)
	defer st.log.Info("stream closed")
	err = delta.NewServer(ctx, st, st).DeltaStreamHandler(conn, resourcev3.AnyType)
	if cause := context.Cause(ctx); cause != nil && conn.Context().Err() == nil {
		return cause // which go-control-plane does not know
	}
	return err
}

// newStream returns the stream of a gateway that is let in.
func (s *Server) newStream(subject model.Subject, end context.CancelCauseFunc) (*stream, error) {
	st := &stream{
		server: s, subject: subject, end: end,
		log:    s.log.With("node", subject.Node),
		caches: map[string]*cachev3.LinearCache{}, reader: &reader{},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.admit(subject); err != nil {
		return nil, err
	}
	return st, nil
}

func (s *Server) forget(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.hosts, st)
}

// edgeResources are all resources of one edge. It needs no lock.
func (s *Server) edgeResources(r rendering, wc model.WorkloadCluster, node string, dial envoy.EdgeDial) resources {
	if wc.Prepared {
		return resources{resourcev3.ClusterType: {}, resourcev3.ListenerType: {}}
	}
	inst := r.inst
	dial.Version, dial.First = dial.Version.AtMost(r.version), r.first
	static := set(envoy.StaticClusters())
	clusters, errs := check(envoy.EdgeClusters(inst, wc, node, dial), static, static)
	s.leftOutOfEdge(resourcev3.ClusterType, errs, wc.ID, node)
	listeners, errs := check(envoy.EdgeListeners(inst, wc, node, dial), nil, namesOf(clusters, static))
	s.leftOutOfEdge(resourcev3.ListenerType, errs, wc.ID, node)
	return resources{resourcev3.ClusterType: clusters, resourcev3.ListenerType: listeners}
}

// servedTo returns what the resources of an edge are built from, and false if its tunnel has ended. What it returns is never
// changed, so that building needs no lock.
func (s *Server) servedTo(edge model.Subject) (rendering, model.WorkloadCluster, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := s.tunnels[edge.ID]
	if t == nil {
		return rendering{}, model.WorkloadCluster{}, false
	}
	return s.profiles.of(edge), t.cluster, true
}

// gatewayListeners are all listeners of one gateway. The caller holds s.publishing.
func (s *Server) gatewayListeners(st *stream) resources {
	r, bind := s.profiles.of(st.subject), st.bind
	bind.Version = bind.Version.AtMost(r.version)
	listeners, errs := check(envoy.GatewayListeners(r.inst, st.subject.Node, bind, s.denials.filter), nil, s.taken)
	s.leftOut(resourcev3.ListenerType, errs, "node", st.subject.Node)
	return resources{resourcev3.ListenerType: listeners}
}

// make makes the caches of a stream.
func (st *stream) make(all resources) {
	for typeURL, r := range all {
		st.caches[typeURL] = newCache(typeURL, r, st.server.log)
	}
}

// set replaces resources of a stream that has caches for them; those that are equal are not sent.
func (st *stream) set(all resources) {
	for _, typeURL := range order {
		r, there := all[typeURL]
		if cache := st.caches[typeURL]; there && cache != nil {
			st.progress[slices.Index(order[:], typeURL)].Change()
			cache.SetResources(r)
		}
	}
}

// OnStreamDeltaRequest implements delta.Callbacks: it looks at each request before anything is done with it.
func (st *stream) OnStreamDeltaRequest(_ int64, r *discoveryv3.DeltaDiscoveryRequest) error {
	st.noteAnswer(r)
	st.server.nack(st.subject, r)
	// The node is named in the first request only; more often is allowed, but not another.
	if r.GetNode() != nil || !st.named {
		if err := checkNode(r.GetNode(), st.subject); err != nil {
			return err
		}
	}
	if !st.named {
		if err := st.begin(r.GetNode()); err != nil {
			return err
		}
	}
	st.named = true
	return checkNames(r)
}

// nack logs that an Envoy refuses resources.
func (s *Server) nack(subject model.Subject, r *discoveryv3.DeltaDiscoveryRequest) {
	detail := r.GetErrorDetail()
	if detail == nil || s.said.Take(subject.Node+" "+subject.ID+" resources", refusalRate) > 0 {
		return
	}
	if subject.Role == model.RoleEdge && s.limits.refusalText.Take(subject.ID, tunnelRefusalRate) > 0 {
		return
	}
	s.log.Error("resources rejected", "node", subject.Node, "type_url", csds.Printable(r.GetTypeUrl(), maxQuoted), "error", csds.Printable(detail.GetMessage(), maxDetail))
}

func checkNames(r *discoveryv3.DeltaDiscoveryRequest) error {
	for _, name := range r.GetResourceNamesSubscribe() {
		if name != "*" { // else one stream could have us remember any number of names
			return status.Error(codes.InvalidArgument, "resources are not served by name, subscribe to all")
		}
	}
	return nil
}

// begin makes what depends on what an agent says of its node.
func (st *stream) begin(node *corev3.Node) (err error) {
	if st.bind, err = envoy.ParseGatewayBind(node); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	s := st.server
	s.publishing.Lock() // so that no change comes between the listeners and the stream's place in the table
	defer s.publishing.Unlock()
	st.make(s.gatewayListeners(st))
	st.reader.variants = s.profiles.differs(st.subject)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts[st] = true
	return nil
}

// CreateDeltaWatch implements cache.ConfigWatcher.
func (st *stream) CreateDeltaWatch(r *cachev3.DeltaRequest, sub cachev3.Subscription, to chan cachev3.DeltaResponse) (func(), error) {
	if r.GetTypeUrl() == st.server.gateways.typeURL {
		return st.server.gateways.watch(st.reader, r, sub, to), nil
	}
	cache, ok := st.caches[r.GetTypeUrl()]
	if !ok {
		return nil, status.Errorf(codes.InvalidArgument, "resources of type %q are not served", csds.Printable(r.GetTypeUrl(), maxQuoted))
	}
	return cache.CreateDeltaWatch(r, sub, to)
}

// CreateWatch implements cache.ConfigWatcher, for state of the world, which nobody can ask for here.
func (st *stream) CreateWatch(*cachev3.Request, cachev3.Subscription, chan cachev3.Response) (func(), error) {
	return nil, errors.ErrUnsupported
}

// OnDeltaStreamOpen implements delta.Callbacks.
func (st *stream) OnDeltaStreamOpen(context.Context, int64, string) error { return nil }

// OnDeltaStreamClosed implements delta.Callbacks.
func (st *stream) OnDeltaStreamClosed(int64, *corev3.Node) {}

// OnStreamDeltaResponse implements delta.Callbacks.
func (st *stream) OnStreamDeltaResponse(_ int64, _ *discoveryv3.DeltaDiscoveryRequest, r *discoveryv3.DeltaDiscoveryResponse) {
	st.noteSent(r)
	st.log.Debug("resources sent", "type_url", r.GetTypeUrl(), "version", r.GetSystemVersionInfo(),
		"resources", len(r.GetResources()), "removed", len(r.GetRemovedResources()))
}

// newCache returns a cache of one type. Of what go-control-plane logs only troubles are kept: the rest would print every
// version of every resource.
func newCache(typeURL string, initial map[string]types.Resource, log *slog.Logger) *cachev3.LinearCache {
	return cachev3.NewLinearCache(typeURL, cachev3.WithInitialResources(initial), cachev3.WithLogger(controllog.LoggerFuncs{
		WarnFunc:  func(format string, args ...any) { logf(log, slog.LevelWarn, format, args) },
		ErrorFunc: func(format string, args ...any) { logf(log, slog.LevelError, format, args) },
	}))
}

// logf is the adapter for go-control-plane, which formats its messages.
func logf(log *slog.Logger, level slog.Level, format string, args []any) {
	log.Log(context.Background(), level, "go-control-plane reported an error", "error", fmt.Sprintf(format, args...))
}

// Register adds ADS to a gRPC server.
func (s *Server) Register(g grpc.ServiceRegistrar) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, s)
}
