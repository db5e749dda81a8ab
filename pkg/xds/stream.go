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
	// maxDetail is how many bytes are logged of an Envoy's, or its agent's, reason to reject resources.
	maxDetail = 2 << 10
	// maxLogged is how many nodes and reasons are recorded for the limits of the log.
	maxLogged = 4096
)

var (
	// streamRefusalRate limits the log lines about the same rejected stream. Agents of an unknown tunnel retry every
	// minute.
	streamRefusalRate = limit.Rate{Every: time.Hour, Burst: 1}
	// refusalRate limits the log lines about resources that one node rejects: each may be about others.
	refusalRate = limit.Rate{Every: time.Minute, Burst: 10}
)

// stream is the ADS stream of a gateway. It implements the callbacks and caches of go-control-plane. The certificate
// selects the caches, and no request can select others.
type stream struct {
	server  *Server
	subject model.Subject
	log     *slog.Logger
	end     context.CancelCauseFunc
	named   bool                            // the node id is checked
	bind    envoy.GatewayBind               // where it listens
	caches  map[string]*cachev3.LinearCache // by type URL; begin creates them

	positions map[string]*position // in what all gateways share, by type URL; begin creates them
	progress  [len(order)]progress.Progress
}

// resources are the resources of one Envoy, by type URL and name.
type resources map[string]map[string]types.Resource

// DeltaAggregatedResources implements ADS.
func (s *Server) DeltaAggregatedResources(
	conn discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer,
) error {
	subject, err := caller(conn.Context(), s.domain, s.now())
	switch {
	case err != nil:
	case subject.Role.Enrols():
		err = s.edgeStream(conn, subject)
	default:
		err = s.stream(conn, subject)
	}
	s.refused(subject, err)
	return err
}

// refused counts and logs why a stream was rejected or closed: rarely for each node, because a rejected client
// retries.
func (s *Server) refused(subject model.Subject, err error) {
	code := status.Code(err)
	s.figures.noteEnd(code)
	switch code {
	case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.FailedPrecondition:
	case codes.Unavailable:
		if s.open.Err() != nil {
			return // the server closes all streams
		}
	default:
		return
	}
	if subject.Role.Enrols() && s.limits.lines.Peek(subject.ID, logRate) > 0 {
		return
	}
	if s.logged.Take(subject.Node+" "+subject.ID+" "+code.String(), streamRefusalRate) == 0 {
		s.log.Warn("stream rejected", "node", subject.Node, "error", err)
	}
}

// stream serves the stream of a gateway until it ends.
func (s *Server) stream(
	conn discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer, subject model.Subject,
) error {
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
	defer s.removeStream(st)
	defer context.AfterFunc(s.open, func() { end(errShutdown) })()
	st.log.Info("stream opened", "role", subject.Role)
	defer st.log.Info("stream closed")
	err = delta.NewServer(ctx, st, st).DeltaStreamHandler(conn, resourcev3.AnyType)
	if cause := context.Cause(ctx); cause != nil && conn.Context().Err() == nil {
		return cause // go-control-plane does not return it
	}
	return err
}

// newStream returns the stream of a gateway that is admitted.
func (s *Server) newStream(subject model.Subject, end context.CancelCauseFunc) (*stream, error) {
	st := &stream{
		server: s, subject: subject, end: end,
		log:    s.log.With("node", subject.Node),
		caches: map[string]*cachev3.LinearCache{},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.admit(subject); err != nil {
		return nil, err
	}
	return st, nil
}

func (s *Server) removeStream(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.gatewayStreams, st)
}

// edgeResources builds all resources of one edge. It needs no lock.
func (s *Server) edgeResources(r rendering, wc model.WorkloadCluster, node string, dial envoy.EdgeDial) resources {
	if wc.Prepared {
		return resources{resourcev3.ClusterType: {}, resourcev3.ListenerType: {}}
	}
	inst := r.inst
	dial.Version, dial.First = dial.Version.AtMost(r.version), r.initial
	static := set(envoy.StaticClusters())
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

// gatewayListeners builds all listeners of one gateway. The caller holds s.publishing.
func (s *Server) gatewayListeners(st *stream) resources {
	r, bind := s.profiles.of(st.subject), st.bind
	bind.Version = bind.Version.AtMost(r.version)
	listeners, errs := check(envoy.GatewayListeners(r.inst, st.subject.Node, bind, s.denials.filter), nil, s.taken)
	s.leftOut(resourcev3.ListenerType, errs, "node", st.subject.Node)
	return resources{resourcev3.ListenerType: listeners}
}

// make creates the caches of a stream.
func (st *stream) make(all resources) {
	for typeURL, r := range all {
		st.caches[typeURL] = newCache(typeURL, r, st.server.log)
	}
}

// set replaces resources in the caches of a stream. Equal resources are not sent.
func (st *stream) set(all resources) {
	for _, typeURL := range order {
		r, there := all[typeURL]
		if cache := st.caches[typeURL]; there && cache != nil {
			st.progress[slices.Index(order[:], typeURL)].Change()
			cache.SetResources(r)
		}
	}
}

// OnStreamDeltaRequest implements delta.Callbacks. It checks each request before go-control-plane uses it.
func (st *stream) OnStreamDeltaRequest(_ int64, r *discoveryv3.DeltaDiscoveryRequest) error {
	st.noteAnswer(r)
	st.server.nack(st.subject, r)
	// The first request must name the node. Later ones may, but must not name another.
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

// nack logs that an Envoy rejects resources, within rate limits.
func (s *Server) nack(subject model.Subject, r *discoveryv3.DeltaDiscoveryRequest) {
	detail := r.GetErrorDetail()
	if detail == nil || s.logged.Take(subject.Node+" "+subject.ID+" resources", refusalRate) > 0 {
		return
	}
	if subject.Role.Enrols() && s.limits.refusalText.Take(subject.ID, tunnelRefusalRate) > 0 {
		return
	}
	s.log.Error(
		"resources rejected", "node", subject.Node, "type_url", csds.Printable(r.GetTypeUrl(), maxQuoted), "error",
		csds.Printable(detail.GetMessage(), maxDetail),
	)
}

func checkNames(r *discoveryv3.DeltaDiscoveryRequest) error {
	for _, name := range r.GetResourceNamesSubscribe() {
		if name != "*" { // otherwise one stream could make the server store any number of names
			return status.Error(codes.InvalidArgument, "resources are not served by name, subscribe to all")
		}
	}
	return nil
}

// begin creates the caches and the positions of a stream, which depend on the metadata of its node.
func (st *stream) begin(node *corev3.Node) (err error) {
	if st.bind, err = envoy.ParseGatewayBind(node); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	s := st.server
	s.publishing.Lock() // no change may come between the build of the listeners and the entry in s.gatewayStreams
	defer s.publishing.Unlock()
	st.make(s.gatewayListeners(st))
	st.positions = s.newPositions(st)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gatewayStreams[st] = true
	return nil
}

// CreateDeltaWatch implements cache.ConfigWatcher.
func (st *stream) CreateDeltaWatch(
	r *cachev3.DeltaRequest, sub cachev3.Subscription, to chan cachev3.DeltaResponse,
) (func(), error) {
	if of := st.server.sharedOf(r.GetTypeUrl()); of != nil {
		return of.Watch(st.positions[r.GetTypeUrl()].reader, r, sub, to), nil
	}
	cache, ok := st.caches[r.GetTypeUrl()]
	if !ok {
		return nil, status.Errorf(
			codes.InvalidArgument, "resources of type %q are not served", csds.Printable(r.GetTypeUrl(), maxQuoted),
		)
	}
	return cache.CreateDeltaWatch(r, sub, to)
}

// CreateWatch implements cache.ConfigWatcher, for state of the world, which is not served.
func (st *stream) CreateWatch(*cachev3.Request, cachev3.Subscription, chan cachev3.Response) (func(), error) {
	return nil, errors.ErrUnsupported
}

// OnDeltaStreamOpen implements delta.Callbacks.
func (st *stream) OnDeltaStreamOpen(context.Context, int64, string) error { return nil }

// OnDeltaStreamClosed implements delta.Callbacks.
func (st *stream) OnDeltaStreamClosed(int64, *corev3.Node) {}

// OnStreamDeltaResponse implements delta.Callbacks.
func (st *stream) OnStreamDeltaResponse(
	_ int64, _ *discoveryv3.DeltaDiscoveryRequest, r *discoveryv3.DeltaDiscoveryResponse,
) {
	st.noteSent(r)
	st.log.Debug("resources sent", "type_url", r.GetTypeUrl(), "version", r.GetSystemVersionInfo(),
		"resources", len(r.GetResources()), "removed", len(r.GetRemovedResources()))
}

// newCache returns a cache of one type. It logs only warnings and errors of go-control-plane: the rest would print
// every version of every resource.
func newCache(typeURL string, initial map[string]types.Resource, log *slog.Logger) *cachev3.LinearCache {
	return cachev3.NewLinearCache(
		typeURL,
		cachev3.WithInitialResources(initial),
		cachev3.WithLogger(controllog.LoggerFuncs{
			WarnFunc:  func(format string, args ...any) { logf(log, slog.LevelWarn, format, args) },
			ErrorFunc: func(format string, args ...any) { logf(log, slog.LevelError, format, args) },
		}),
	)
}

// logf adapts slog for go-control-plane, which formats its messages.
func logf(log *slog.Logger, level slog.Level, format string, args []any) {
	log.Log(context.Background(), level, "go-control-plane reported an error", "error", fmt.Sprintf(format, args...))
}

// Register adds ADS to a gRPC server.
func (s *Server) Register(g grpc.ServiceRegistrar) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, s)
}
