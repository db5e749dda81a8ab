package xdsproxy_test

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/eventually"
)

// misbehaving is an xds-server that runs a function on each stream, and counts streams.
type misbehaving struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	streams atomic.Int64
	do      func(discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error
}

// DeltaAggregatedResources implements ADS.
func (r *misbehaving) DeltaAggregatedResources(
	s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer,
) error {
	r.streams.Add(1)
	return r.do(s)
}

func TestAServerThatViolatesTheProtocol(t *testing.T) {
	type stream = discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	tests := map[string]struct {
		do   func(stream) error
		want string
	}{
		"it does not wait for answers": {func(s stream) error {
			for i := 0; ; i++ {
				body, err := anypb.New(cluster("c", i))
				if err == nil {
					err = s.Send(&discoveryv3.DeltaDiscoveryResponse{
						TypeUrl: cds, Nonce: strconv.Itoa(i),
						Resources: []*discoveryv3.Resource{{Name: "c", Version: strconv.Itoa(i), Resource: body}},
					})
				}
				if err != nil {
					return err
				}
			}
		}, "the xds-server does not wait for answers"},
		"it sends resources without a subscription": {func(s stream) error {
			if err := s.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: "of something else", Nonce: "1"}); err != nil {
				return err
			}
			<-s.Context().Done()
			return nil
		}, "sends resources that were not requested"},
		"it does not answer": {func(s stream) error {
			<-s.Context().Done()
			return nil
		}, "the xds-server has not answered in time"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := &misbehaving{do: test.do}
			s := &server{socket: filepath.Join(envoytest.Dir(t), "xds.sock")}
			l, err := net.Listen("unix", s.socket)
			if err != nil {
				t.Fatal(err)
			}
			g := grpc.NewServer()
			discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, r)
			go func() { _ = g.Serve(l) }()
			defer g.Stop()
			bed := newBed(t, t.TempDir())
			bed.HastenSilence(200 * time.Millisecond)
			bed.follow(t, "a", s, nil)
			eventually.True(t, patience, "it is requested again", func() error {
				if n := r.streams.Load(); n < 3 {
					return fmt.Errorf("%d streams", n)
				}
				if bed.log.Count("level=WARN", test.want) == 0 {
					return errors.New("nothing is logged")
				}
				return nil
			})
		})
	}
}

func TestNothingRunsAfterTheEnd(t *testing.T) {
	before := runtime.NumGoroutine()
	bed := newBed(t, t.TempDir())
	for i := range 5 {
		s := newServer(t, named(cluster("c"+strconv.Itoa(i), 1)), named(listener("l"+strconv.Itoa(i))))
		defer s.grpc.Stop()
		run := bed.follow(t, "a"+strconv.Itoa(i), s, nil)
		e := bed.envoy(t, nil)
		e.subscribe(t, cds, lds)
		e.until(t, cds, "c"+strconv.Itoa(i))
		e.kill()
		run.cancel()
		if err := run.wait(t); err != nil {
			t.Fatal(err)
		}
		s.grpc.Stop()
		run.close()
		bed.Remove("a" + strconv.Itoa(i))
	}
	bed.stop()
	eventually.True(t, patience, "goroutines end", func() error {
		if n := runtime.NumGoroutine(); n > before {
			stacks := make([]byte, 1<<20)
			return fmt.Errorf("%d more:\n%s", n-before, stacks[:runtime.Stack(stacks, true)])
		}
		return nil
	})
}

func TestRunAgain(t *testing.T) {
	s := newServer(t, named(cluster("c1", 1)), nil)
	bed := newBed(t, t.TempDir())
	e := bed.envoy(t, nil)
	e.subscribe(t, cds)
	for i := range 3 {
		s.set(t, cluster("c"+strconv.Itoa(i+2), 1))
		run := bed.follow(t, "a", s, nil)
		e.until(t, cds, []string{"c1", "c2", "c3", "c4"}[:i+2]...)
		bed.file(t, "a.clusters.cache", "c"+strconv.Itoa(i+2))
		run.cancel()
		if err := run.wait(t); err != nil {
			t.Fatal(err)
		}
	}
}
