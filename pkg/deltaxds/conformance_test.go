package deltaxds_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

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

// server serves some resources of one type to streams without a network.
type server struct {
	t testing.TB

	mu      sync.Mutex
	all     []*deltaxds.Resource
	streams map[*stream]bool
}

// stream is a client's side of a stream.
type stream struct {
	of    *server
	ctx   context.Context
	state deltaxds.Stream
	out   chan *discoveryv3.DeltaDiscoveryResponse
}

func (s *server) open(ctx context.Context) (conformance.Stream, error) {
	st := &stream{s, ctx, deltaxds.NewStream(1), make(chan *discoveryv3.DeltaDiscoveryResponse, 64)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[st] = true
	return st, nil
}

func (s *server) set(resources map[string]int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = nil
	for name, content := range resources {
		s.all = append(s.all, cluster(s.t, name, content))
	}
	for st := range s.streams {
		st.state.Changed(0)
		st.respond()
	}
	return nil
}

// respond sends what is due. The caller holds the server's lock.
func (st *stream) respond() {
	for {
		kind, _, ok := st.state.Next()
		if !ok {
			return
		}
		if r, _ := st.state.Respond(kind, deltaxds.Whole(st.of.all)); r != nil {
			r.TypeUrl = resourcev3.ClusterType
			st.out <- r
		}
	}
}

func (st *stream) Send(r *discoveryv3.DeltaDiscoveryRequest) error {
	st.of.mu.Lock()
	defer st.of.mu.Unlock()
	st.state.Request(0, r)
	st.respond()
	return nil
}

func (st *stream) Recv() (*discoveryv3.DeltaDiscoveryResponse, error) {
	select {
	case r := <-st.out:
		return r, nil
	case <-st.ctx.Done():
		return nil, st.ctx.Err()
	}
}

func TestConformance(t *testing.T) {
	s := &server{t: t, streams: map[*stream]bool{}}
	target := conformance.Server{TypeURL: resourcev3.ClusterType, Open: s.open, Set: s.set, Names: true}
	for _, e := range conformance.Table(target) {
		t.Run(e.Rule, func(t *testing.T) {
			if err := e.Run(t.Context(), target); err != nil {
				t.Error(err)
			}
		})
	}
}
