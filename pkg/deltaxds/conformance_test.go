package deltaxds_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/deltaxds"
	"github.com/fairlead/fairlead/pkg/deltaxds/conformance"
)

// cluster returns a resource with one of several contents.
func cluster(t testing.TB, name string, content int) *deltaxds.Resource {
	t.Helper()
	r, err := deltaxds.Encode(
		resourcev3.ClusterType, name, &clusterv3.Cluster{Name: name, AltStatName: fmt.Sprint(content)},
	)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// server serves resources with the state machine alone, over gRPC. Types are in the order of sending.
type server struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	types []string

	mu       sync.Mutex
	all      [][]*deltaxds.Resource // by type
	streams  map[*stream]bool
	sent     int      // resources, removed ones too
	rejected []string // reasons of NACKs
}

// stream is an open stream. The server's lock guards its state.
type stream struct {
	state    deltaxds.Stream
	notified chan struct{}
}

func newServer(types ...string) *server {
	return &server{types: types, all: make([][]*deltaxds.Resource, len(types)), streams: map[*stream]bool{}}
}

// set replaces all resources of a type.
func (s *server) set(kind int, all ...*deltaxds.Resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[kind] = all
	for st := range s.streams {
		st.state.Changed(kind)
		st.notify()
	}
}

func (st *stream) notify() {
	select {
	case st.notified <- struct{}{}:
	default:
	}
}

// DeltaAggregatedResources implements ADS.
func (s *server) DeltaAggregatedResources(
	conn discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer,
) error {
	st := &stream{deltaxds.NewStream(len(s.types), 0), make(chan struct{}, 1)}
	s.mu.Lock()
	s.streams[st] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.streams, st)
	}()
	go s.send(conn, st)
	for {
		r, err := conn.Recv()
		if err != nil {
			return err
		}
		kind := slices.Index(s.types, r.GetTypeUrl())
		if kind < 0 {
			return status.Error(codes.InvalidArgument, r.GetTypeUrl())
		}
		s.mu.Lock()
		if st.state.Receive(kind, r) == deltaxds.NACK {
			s.rejected = append(s.rejected, r.GetErrorDetail().GetMessage())
		}
		s.mu.Unlock()
		st.notify()
	}
}

// send sends what is due until the stream ends.
func (s *server) send(conn discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer, st *stream) {
	for {
		select {
		case <-st.notified:
		case <-conn.Context().Done():
			return
		}
		for {
			s.mu.Lock()
			kind, _, ok := st.state.Next()
			var r *discoveryv3.DeltaDiscoveryResponse
			if ok {
				r, _ = st.state.Respond(kind, deltaxds.Whole(s.all[kind]))
			}
			s.sent += len(r.GetResources()) + len(r.GetRemovedResources())
			s.mu.Unlock()
			if !ok {
				break
			}
			if r == nil {
				continue
			}
			r.TypeUrl = s.types[kind]
			if conn.Send(r) != nil {
				return
			}
		}
	}
}

// listen serves ADS on a Unix socket in a folder.
func listen(t testing.TB, dir string, ads discoveryv3.AggregatedDiscoveryServiceServer) *grpc.Server {
	t.Helper()
	path := filepath.Join(dir, "ads.sock")
	_ = os.Remove(path)
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, ads)
	go func() { _ = g.Serve(listener) }()
	t.Cleanup(g.Stop)
	return g
}

// conform returns the errors of a server in the table of exchanges, by rule.
func conform(
	t *testing.T, ads discoveryv3.AggregatedDiscoveryServiceServer, set func(map[string]int) error,
) map[string]error {
	t.Helper()
	dir := envoytest.Dir(t)
	listen(t, dir, ads)
	conn, err := grpc.NewClient("unix://"+dir+"/ads.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	client := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	target := conformance.Server{
		TypeURL: resourcev3.ClusterType, Set: set, Names: true, Node: &corev3.Node{Id: "test"},
		Open: func(ctx context.Context) (conformance.Stream, error) { return client.DeltaAggregatedResources(ctx) },
	}
	errs := map[string]error{}
	for _, e := range conformance.Table(target) {
		if err := e.Run(t.Context(), target); err != nil {
			errs[e.Rule] = err
		}
	}
	return errs
}

func TestConformance(t *testing.T) {
	s := newServer(resourcev3.ClusterType)
	for rule, err := range conform(t, s, func(resources map[string]int) error {
		var all []*deltaxds.Resource
		for name, content := range resources {
			all = append(all, cluster(t, name, content))
		}
		s.set(0, all...)
		return nil
	}) {
		t.Errorf("%s: %v", rule, err)
	}
}

// linear serves a LinearCache with go-control-plane's server.
type linear struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	cache *cachev3.LinearCache
}

// DeltaAggregatedResources implements ADS.
func (l linear) DeltaAggregatedResources(
	conn discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer,
) error {
	return delta.NewServer(conn.Context(), l.cache, nil).DeltaStreamHandler(conn, resourcev3.AnyType)
}

// TestGoControlPlane records in which exchanges go-control-plane deviates, for docs/decisions/0067-own-engine.md. A
// version that deviates in none would be a reason to compare again.
func TestGoControlPlane(t *testing.T) {
	cache := cachev3.NewLinearCache(resourcev3.ClusterType)
	errs := conform(t, linear{cache: cache}, func(resources map[string]int) error {
		all := map[string]types.Resource{}
		for name, content := range resources {
			all[name] = &clusterv3.Cluster{Name: name, AltStatName: fmt.Sprint(content)}
		}
		cache.SetResources(all)
		return nil
	})
	for rule, err := range errs {
		t.Logf("%s: %v", rule, err)
	}
	if len(errs) == 0 {
		t.Error("it does not deviate any more: compare it with pkg/deltaxds again")
	}
}
