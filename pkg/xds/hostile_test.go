package xds_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/model"
)

// flood has the edges of one tunnel request all resources repeatedly, each on as many streams as it can open, as
// fast as the server accepts requests. It returns a function that stops them.
func (b *bed) flood(t testing.TB, wc model.WorkloadCluster, nodes, streams int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for n := range nodes {
		is := model.Subject{Role: model.RoleEdge, Node: fmt.Sprintf("edge-hostile-%d", n), ID: wc.ID}
		identity := b.identity(t, is, time.Now().Add(time.Hour))
		client := b.dial(t, &identity)
		for range streams {
			all.Go(func() {
				for ctx.Err() == nil {
					demand(ctx, client, is)
				}
			})
		}
	}
	return func() { cancel(); all.Wait() }
}

// demand opens a stream and repeatedly claims to have lost all resources, until the stream ends.
func demand(ctx context.Context, client discoveryv3.AggregatedDiscoveryServiceClient, is model.Subject) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.DeltaAggregatedResources(ctx)
	if err != nil {
		return
	}
	go func() {
		defer cancel()
		for {
			if _, err := stream.Recv(); err != nil {
				return
			}
		}
	}()
	r := &discoveryv3.DeltaDiscoveryRequest{Node: nodeOf(is), TypeUrl: cds}
	for stream.Send(r) == nil {
		r = &discoveryv3.DeltaDiscoveryRequest{
			TypeUrl: cds, ResourceNamesUnsubscribe: edgeClusters, ResourceNamesSubscribe: []string{"*"},
		}
	}
	select { // a rejected stream is not retried at once
	case <-ctx.Done():
	case <-time.After(20 * time.Millisecond):
	}
}

// BenchmarkPublishBesideHostileStreams measures a change of one tunnel, alone and while the edges of another tunnel
// request all resources repeatedly on 96 streams.
func BenchmarkPublishBesideHostileStreams(b *testing.B) {
	for _, hostile := range []int{0, 24} {
		b.Run(fmt.Sprintf("%d streams", 4*hostile), func(b *testing.B) {
			bed := newBed(b, workload("c1"), workload("c2"))
			if hostile > 0 {
				defer bed.flood(b, workload("c2"), hostile, 4)()
				time.Sleep(time.Second)
			}
			var took []time.Duration
			for b.Loop() {
				wc := workload("c1", fmt.Sprintf("x%d.example.com", len(took)))
				begin := time.Now()
				bed.Publish(wc.Key, &wc)
				took = append(took, time.Since(begin))
				time.Sleep(2 * time.Millisecond) // changes do not come all at once
			}
			b.StopTimer()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "median-us")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
		})
	}
}

func TestAChangeIsPublishedWhileEdgesWaitForTheirResources(t *testing.T) {
	b := newBed(t, workload("c1"), workload("c2"))
	g := b.envoy(t, gateway)
	g.fetch(t, cds)
	goOn := b.StopBuilding()
	hostile := b.envoy(t, edgeOf(workload("c2")))
	hostile.subscribe(t, cds, nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.publish(workload("c1", "api.example.com"))
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("a change of one tunnel waits for the resources of another one's edge")
	}
	expect(t, "the gateway", names(g.next(t)), []string{"api.example.com"})
	if err := b.Admit(edgeOf(workload("c1"))); err != nil {
		t.Error(err)
	}
	goOn()
	expect(t, "the edge, in the end", names(hostile.next(t)), edgeClusters)
}

// TestResponsesToAnEdgeAreRateLimited has one stream of an edge request all resources repeatedly.
func TestResponsesToAnEdgeAreRateLimited(t *testing.T) {
	answers := func(t *testing.T, b *bed) int {
		t.Helper()
		a := b.envoy(t, edgeOf(workload("c1")))
		a.fetch(t, cds)
		go func() {
			for a.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds, ResourceNamesUnsubscribe: edgeClusters}) == nil {
			}
		}()
		begin, n := time.Now(), 0
		for end := time.After(3 * time.Second); ; n++ {
			select {
			case <-a.got:
			case err := <-a.end:
				t.Fatalf("the stream has ended: %v", err)
			case <-end:
				t.Logf("%d answers in %s", n, time.Since(begin))
				return n
			}
		}
	}
	t.Run("limited", func(t *testing.T) {
		b := newBed(t, workload("c1"))
		b.SetRequestRate(4)
		if n := answers(t, b); n > 4+40 || n < 4 {
			t.Errorf("%d answers, want 4 to 44", n)
		}
		if b.figure(t, "fairlead_xds_paused_requests_total") == 0 {
			t.Error("no request is counted as paused")
		}
	})
	t.Run("without the limit", func(t *testing.T) {
		b := newBed(t, workload("c1"))
		b.Unlimited()
		if n := answers(t, b); n <= 4+40 {
			t.Errorf("%d answers: the attack asks for too little to prove anything", n)
		}
	})
}

func TestTheStreamsOfAnEdgeAndOfATunnel(t *testing.T) {
	b := newBed(t, workload("c1"), workload("c2"))
	of := func(wc model.WorkloadCluster, node string) *ads {
		a := b.envoy(t, model.Subject{Role: model.RoleEdge, Node: node, ID: wc.ID})
		a.fetch(t, cds)
		return a
	}
	b.SetTunnelStreams(6)
	other, same := of(workload("c1"), "edge-b"), of(workload("c2"), "edge-a")
	var mine []*ads
	for range 6 {
		mine = append(mine, of(workload("c1"), "edge-a"))
	}
	for _, oldest := range mine[:2] {
		if code := oldest.refusal(t); code != codes.Aborted {
			t.Errorf("a stream beyond the edge's share ends with %s", code)
		}
	}
	of(workload("c1"), "edge-c")
	refused := b.envoy(t, model.Subject{Role: model.RoleEdge, Node: "edge-d", ID: workload("c1").ID})
	if code := refused.refusal(t); code != codes.ResourceExhausted {
		t.Errorf("a stream beyond the tunnel's share ends with %s", code)
	}
	for _, a := range append(mine[2:], other, same) {
		select {
		case err := <-a.end:
			t.Errorf("another stream has ended: %v", err)
		default:
		}
	}
	of(workload("c2"), "edge-d")
	if n := b.figure(t, "fairlead_xds_over_limit_total"); n != 3 {
		t.Errorf("%v streams are counted as over a limit, want 3", n)
	}
}

// TestRequestsOfAnEdgeAreNeitherStoredNorLoggedAtLength sends many names, and long names.
func TestRequestsOfAnEdgeAreNeitherStoredNorLoggedAtLength(t *testing.T) {
	type request = discoveryv3.DeltaDiscoveryRequest
	long := strings.Repeat("x", 100<<10)
	many := map[string]string{}
	for i := range 5000 {
		many[fmt.Sprint(i)] = ""
	}
	tests := map[string]struct {
		in   *discoveryv3.DeltaDiscoveryRequest
		want codes.Code
	}{
		"a node id of another edge": {&request{Node: &corev3.Node{Id: "CN=edge-z"}, TypeUrl: cds}, codes.PermissionDenied},
		"a long node id":            {&request{Node: &corev3.Node{Id: long}, TypeUrl: cds}, codes.PermissionDenied},
		"a long type":               {&request{TypeUrl: long}, codes.InvalidArgument},
		"secrets":                   {&request{TypeUrl: resourcev3.SecretType}, codes.InvalidArgument},
		"one name": {
			&request{TypeUrl: cds, ResourceNamesSubscribe: []string{"apiserver_edge-z"}}, codes.InvalidArgument,
		},
		"many names": {&request{TypeUrl: cds, InitialResourceVersions: many}, codes.InvalidArgument},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, workload("c1"))
			a := b.envoy(t, edgeOf(workload("c1")))
			if tc.in.GetNode() != nil {
				a.node = tc.in.GetNode()
			}
			a.send(t, tc.in)
			if code := a.refusal(t); code != tc.want {
				t.Errorf("got %s, want %s", code, tc.want)
			}
			eventually.True(t, patience, "the line in the log", func() error {
				if b.log.Count("stream rejected") == 0 {
					return errors.New("there is none")
				}
				return nil
			})
			if size := len(b.log.String()); size > 4<<10 {
				t.Errorf("%d bytes are logged", size)
			}
		})
	}
}

func TestTheLogOfATunnelIsBounded(t *testing.T) {
	b := newBed(t, workload("c1"))
	long := strings.Repeat("é", 60<<10)
	for n := range 20 { // the limit of each alone is ten lines
		a := b.envoy(t, model.Subject{Role: model.RoleEdge, Node: fmt.Sprintf("edge-%d", n), ID: workload("c1").ID})
		a.fetch(t, cds)
		for range 10 {
			a.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds, ErrorDetail: &statusv1.Status{Message: long}})
		}
		a.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: "x"}) // then it has read all of them
		a.refusal(t)
	}
	if n := b.log.Count("resources rejected"); n < 20 || n > 70 {
		t.Errorf("%d lines, want at most 60 and a few", n)
	}
	if size := len(b.log.String()); size > 70*3<<10 {
		t.Errorf("%d bytes are logged", size)
	}
}
