package xdsproxy_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/deltaxds/conformance"
)

// deviation is where an agent deviates from an exchange, and why that is accepted.
type deviation struct{ step, why string }

// deviations are those of an agent, by rule: see docs/decisions/0067-own-engine.md.
var deviations = map[string]deviation{
	"the content before a rejected one is sent, because the client may have discarded it": {
		"step 9", "an Envoy that rejects a change of one resource keeps what it had, and each rejected one is sent alone",
	},
	"a rejected resource does not hold back others, nor its own removal": {
		"step 6", "first the halves of the rejected response are sent again, until each rejected resource is alone",
	},
	"a client that returns gets what has changed meanwhile": {
		"step 8", "removals come in a response of their own, after what is new in all types",
	},
	"a client that has unsubscribed from all gets nothing, and everything when it subscribes again": {
		"step 8", "Envoy never unsubscribes from all resources of a type, and subscribes again only on another stream",
	},
	"a client that unsubscribes from one of all resources is sent it again": {
		"step 6", "Envoy unsubscribes only from names to which it has subscribed, and such a request ends the stream",
	},
}

// TestAgentsConform runs the table of exchanges against an agent, with the Envoy clusters of one upstream.
func TestAgentsConform(t *testing.T) {
	left := maps.Clone(deviations)
	for _, e := range conformance.Table(conformance.Server{}) {
		want, deviates := deviations[e.Rule]
		delete(left, e.Rule)
		t.Run(e.Rule, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			if deviates { // some wait for a response that is not sent
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, 5*time.Second)
				defer cancel()
			}
			err := e.Run(ctx, newTarget(t))
			switch {
			case !deviates && err != nil:
				t.Error(err)
			case deviates && err == nil:
				t.Error("it does not deviate any more: remove it from the deviations")
			case deviates && !strings.HasPrefix(err.Error(), want.step+":"):
				t.Errorf("it deviates elsewhere, want %s, where %s: %v", want.step, want.why, err)
			}
		})
	}
	for rule := range left {
		t.Errorf("no exchange has the rule %q", rule)
	}
}

// newTarget returns an agent with one upstream, as a server of the table.
func newTarget(t *testing.T) conformance.Server {
	t.Helper()
	s, bed := newSource(t), newBed(t, t.TempDir())
	bed.follow(t, "a", &server{socket: s.socket}, nil)
	conn, err := grpc.NewClient("unix://"+bed.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	client := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	return conformance.Server{
		TypeURL: cds,
		Open:    func(ctx context.Context) (conformance.Stream, error) { return client.DeltaAggregatedResources(ctx) },
		Set: func(resources map[string]int) error {
			changed, err := s.set(resources)
			if err == nil {
				bed.offers(t, changed)
			}
			return err
		},
	}
}

// offers waits until Envoy is offered these versions of Envoy clusters; empty: none of this name.
func (b *bed) offers(t testing.TB, versions map[string]string) {
	t.Helper()
	eventually.True(t, patience, "Envoy is offered what has changed", func() error {
		offered := map[string]string{}
		b.Clusters(func(name, version string, _ *anypb.Any) { offered[name] = version })
		var err error
		for name, version := range versions {
			if offered[name] != version {
				err = errors.Join(err, fmt.Errorf("of %s it has %q, want %q", name, offered[name], version))
			}
		}
		return err
	})
}

// source is an xds-server that sends Envoy clusters at once, without reading requests and answers: an agent answers
// only when its Envoy has.
type source struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	socket    string
	responses chan *discoveryv3.DeltaDiscoveryResponse
	sent      int
	has       map[string]int // contents that were sent, by name
}

func newSource(t testing.TB) *source {
	t.Helper()
	s := &source{
		socket: filepath.Join(envoytest.Dir(t), "xds.sock"), has: map[string]int{},
		responses: make(chan *discoveryv3.DeltaDiscoveryResponse, 16),
	}
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, s)
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	return s
}

// DeltaAggregatedResources implements ADS.
func (s *source) DeltaAggregatedResources(
	conn discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer,
) error {
	for {
		select {
		case r := <-s.responses:
			if err := conn.Send(r); err != nil {
				return err
			}
		case <-conn.Context().Done():
			return conn.Context().Err()
		}
	}
}

// set sends what differs from what was sent before, and returns the versions that it sends; empty: a removal.
func (s *source) set(resources map[string]int) (changed map[string]string, err error) {
	s.sent++
	r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: cds, Nonce: fmt.Sprint(s.sent)}
	changed = map[string]string{}
	for name, content := range resources {
		if s.has[name] == content {
			continue
		}
		body, err := anypb.New(&clusterv3.Cluster{Name: name, AltStatName: fmt.Sprint(content)})
		if err != nil {
			return nil, err
		}
		changed[name] = fmt.Sprint(content)
		r.Resources = append(r.Resources, &discoveryv3.Resource{Name: name, Version: changed[name], Resource: body})
	}
	for name := range s.has {
		if _, still := resources[name]; !still {
			changed[name] = ""
			r.RemovedResources = append(r.RemovedResources, name)
		}
	}
	s.has = maps.Clone(resources)
	s.responses <- r
	return changed, nil
}
