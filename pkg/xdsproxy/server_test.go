package xdsproxy_test

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// server is an xds-server with caches of go-control-plane. It records the requests.
type server struct {
	serverv3.CallbackFuncs
	socket string
	caches map[string]*cachev3.LinearCache
	grpc   *grpc.Server

	mu        sync.Mutex
	rejection error                                // ends every stream
	old       bool                                 // it predates scopes
	requests  []*discoveryv3.DeltaDiscoveryRequest // received requests
	sent      []*discoveryv3.DeltaDiscoveryResponse
}

// newServer starts a server.
func newServer(t testing.TB, clusters, listeners map[string]types.Resource) *server {
	t.Helper()
	s := &server{socket: filepath.Join(envoytest.Dir(t), "xds.sock")}
	s.caches = map[string]*cachev3.LinearCache{
		cds:  cachev3.NewLinearCache(cds, cachev3.WithInitialResources(clusters)),
		lds:  cachev3.NewLinearCache(lds, cachev3.WithInitialResources(listeners)),
		srds: cachev3.NewLinearCache(srds),
	}
	s.start(t)
	t.Cleanup(func() { s.grpc.Stop() })
	return s
}

// start serves on the same socket as before.
func (s *server) start(t testing.TB) {
	t.Helper()
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := &cachev3.MuxCache{
		Classify:      func(r *cachev3.Request) string { return r.GetTypeUrl() },
		ClassifyDelta: func(r *cachev3.DeltaRequest) string { return r.GetTypeUrl() },
		Caches:        map[string]cachev3.Cache{cds: s.caches[cds], lds: s.caches[lds], srds: s.caches[srds]},
	}
	s.grpc = grpc.NewServer(grpc.MaxRecvMsgSize(8 << 20))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s.grpc, serverv3.NewServer(context.Background(), mux, s))
	go func(g *grpc.Server) { _ = g.Serve(l) }(s.grpc)
}

// OnDeltaStreamOpen implements serverv3.Callbacks.
func (s *server) OnDeltaStreamOpen(context.Context, int64, string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rejection
}

// OnStreamDeltaRequest implements serverv3.Callbacks.
func (s *server) OnStreamDeltaRequest(_ int64, r *discoveryv3.DeltaDiscoveryRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, proto.CloneOf(r))
	if s.old && r.GetTypeUrl() == srds {
		return status.Errorf(codes.InvalidArgument, "resources of type %q are not served", r.GetTypeUrl())
	}
	return nil
}

// OnStreamDeltaResponse implements serverv3.Callbacks.
func (s *server) OnStreamDeltaResponse(
	_ int64, _ *discoveryv3.DeltaDiscoveryRequest, r *discoveryv3.DeltaDiscoveryResponse,
) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, r)
}

// OnDeltaStreamClosed implements serverv3.Callbacks.
func (s *server) OnDeltaStreamClosed(int64, *corev3.Node) {}

// reject ends every stream with an error, and each new one.
func (s *server) reject(t testing.TB, err error) {
	t.Helper()
	s.mu.Lock()
	s.rejection = err
	s.mu.Unlock()
	s.grpc.Stop()
	s.start(t)
}

// next waits for a request of a type and removes it from the record.
func (s *server) next(t testing.TB, typeURL string) *discoveryv3.DeltaDiscoveryRequest {
	t.Helper()
	var found *discoveryv3.DeltaDiscoveryRequest
	envoytest.Eventually(t, "a request comes", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		i := slices.IndexFunc(
			s.requests, func(r *discoveryv3.DeltaDiscoveryRequest) bool { return r.GetTypeUrl() == typeURL },
		)
		if i < 0 {
			return context.DeadlineExceeded
		}
		found = s.requests[i]
		s.requests = slices.Delete(s.requests, i, i+1)
		return nil
	})
	return found
}

// none fails if a request of a type comes.
func (s *server) none(t testing.TB, typeURL string) {
	t.Helper()
	<-time.After(pause)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if r.GetTypeUrl() == typeURL {
			t.Fatalf("a request came: %v", r)
		}
	}
}

// last returns the last response of a type.
func (s *server) last(typeURL string) *discoveryv3.DeltaDiscoveryResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range slices.Backward(s.sent) {
		if r.GetTypeUrl() == typeURL {
			return r
		}
	}
	return nil
}
