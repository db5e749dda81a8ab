package xds

import (
	"context"
	"errors"
	"log/slog"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	controllog "github.com/envoyproxy/go-control-plane/pkg/log"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// maxDetail is how much of an Envoy's words is logged.
const maxDetail = 2 << 10

// stream is one ADS stream. It tells go-control-plane what it may send: the caches are chosen by the certificate, and
// nothing in a request can lead to others.
type stream struct {
	server  *Server
	subject model.Subject
	log     *slog.Logger
	end     context.CancelCauseFunc
	named   bool                            // the node id was checked
	caches  map[string]*cachev3.LinearCache // by type URL
}

// resources are those of one Envoy, by type URL and name.
type resources map[string]map[string]types.Resource

// DeltaAggregatedResources implements ADS.
func (s *Server) DeltaAggregatedResources(conn discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	subject, err := caller(conn.Context(), s.inst.Domain, s.now())
	if err == nil {
		err = s.stream(conn, subject)
	}
	if code := status.Code(err); code == codes.PermissionDenied || code == codes.Unauthenticated || code == codes.InvalidArgument {
		s.log.Warn("stream refused", "node", subject.Node, "error", err)
	}
	return err
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

// newStream registers a stream, so that it follows its tunnel.
func (s *Server) newStream(subject model.Subject, end context.CancelCauseFunc) (*stream, error) {
	st := &stream{
		server: s, subject: subject, end: end,
		log:    s.log.With("node", subject.Node),
		caches: map[string]*cachev3.LinearCache{},
	}
	if subject.Role == model.RoleGateway {
		st.caches[resourcev3.ClusterType] = s.gateways // its listeners come when it has said where they listen
		return st, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tunnels[subject.ID]
	if !ok {
		return nil, errTunnelEnded
	}
	for typeURL, r := range s.edgeResources(t.cluster, subject.Node) {
		st.caches[typeURL] = newCache(typeURL, r, s.log)
	}
	t.streams[st] = true
	return st, nil
}

func (s *Server) forget(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, ok := s.tunnels[st.subject.ID]; ok {
		delete(t.streams, st)
	}
}

// edgeResources are all resources of one edge.
func (s *Server) edgeResources(wc model.WorkloadCluster, node string) resources {
	static := set(envoy.StaticClusters())
	clusters, errs := check(envoy.EdgeClusters(s.inst, wc), static, static)
	s.leftOut(resourcev3.ClusterType, errs, "node", node)
	listeners, errs := check(envoy.EdgeListeners(s.inst, wc, node), nil, namesOf(clusters, static))
	s.leftOut(resourcev3.ListenerType, errs, "node", node)
	return resources{resourcev3.ClusterType: clusters, resourcev3.ListenerType: listeners}
}

// set replaces the resources of an edge; those that are equal are not sent.
func (st *stream) set(all resources) {
	for typeURL, r := range all {
		st.caches[typeURL].SetResources(r)
	}
}

// OnStreamDeltaRequest implements delta.Callbacks: it looks at each request before anything is done with it.
func (st *stream) OnStreamDeltaRequest(_ int64, r *discoveryv3.DeltaDiscoveryRequest) error {
	if detail := r.GetErrorDetail(); detail != nil {
		text := detail.GetMessage()
		st.log.Error("resources refused by Envoy", "type_url", r.GetTypeUrl(), "error", text[:min(len(text), maxDetail)])
	}
	// Envoy names its node in the first request only; more often is allowed, but not another.
	if r.GetNode() != nil || !st.named {
		if err := checkNode(r.GetNode(), st.subject); err != nil {
			return err
		}
	}
	if !st.named && st.subject.Role == model.RoleGateway {
		if err := st.listen(r.GetNode()); err != nil {
			return err
		}
	}
	st.named = true
	for _, name := range r.GetResourceNamesSubscribe() {
		if name != "*" { // else one stream could have us remember any number of names
			return status.Error(codes.InvalidArgument, "resources are not served by name, subscribe to all")
		}
	}
	return nil
}

// listen makes the listeners of a gateway.
func (st *stream) listen(node *corev3.Node) error {
	bind, err := envoy.ParseGatewayBind(node)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	s := st.server
	listeners, errs := check(envoy.GatewayListeners(s.inst, st.subject.Node, bind), nil, s.common)
	s.leftOut(resourcev3.ListenerType, errs, "node", st.subject.Node)
	st.caches[resourcev3.ListenerType] = newCache(resourcev3.ListenerType, listeners, s.log)
	return nil
}

// CreateDeltaWatch implements cache.ConfigWatcher.
func (st *stream) CreateDeltaWatch(r *cachev3.DeltaRequest, sub cachev3.Subscription, to chan cachev3.DeltaResponse) (func(), error) {
	cache, ok := st.caches[r.GetTypeUrl()]
	if !ok {
		return nil, status.Errorf(codes.InvalidArgument, "resources of type %q are not served", r.GetTypeUrl())
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
