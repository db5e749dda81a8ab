package xdsproxy_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// envoy behaves as Envoy does: it applies the valid resources of a response and rejects a response that has an invalid
// one. It then does not record the versions of any of them.
type envoy struct {
	discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	have map[string]map[string]string // versions, by type and name
	bad  map[string]bool              // names that it refuses
	got  chan *discoveryv3.DeltaDiscoveryResponse
	end  chan error
	kill func()
}

// envoy connects an Envoy that has some resources already; nil: none.
func (b *bed) envoy(t testing.TB, have map[string]map[string]string, bad ...string) *envoy {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+b.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).
		DeltaAggregatedResources(ctx, grpc.MaxCallRecvMsgSize(256<<20))
	if err != nil {
		t.Fatal(err)
	}
	e := &envoy{
		stream,
		map[string]map[string]string{cds: {}, srds: {}, lds: {}},
		map[string]bool{},
		make(chan *discoveryv3.DeltaDiscoveryResponse, 16),
		make(chan error, 1),
		func() { cancel(); _ = conn.Close() },
	}
	for typeURL, versions := range have {
		e.have[typeURL] = maps.Clone(versions)
	}
	for _, name := range bad {
		e.bad[name] = true
	}
	go func() {
		for {
			r, err := e.Recv()
			if err != nil {
				e.end <- err
				return
			}
			e.got <- r
		}
	}()
	return e
}

// subscribe subscribes to types.
func (e *envoy) subscribe(t testing.TB, typeURLs ...string) {
	t.Helper()
	for _, typeURL := range typeURLs {
		e.send(t, &discoveryv3.DeltaDiscoveryRequest{
			Node: &corev3.Node{Id: "envoy"}, TypeUrl: typeURL,
			ResourceNamesSubscribe: []string{"*"}, InitialResourceVersions: e.have[typeURL],
		})
	}
}

func (e *envoy) send(t testing.TB, r *discoveryv3.DeltaDiscoveryRequest) {
	t.Helper()
	if err := e.Send(r); err != nil {
		t.Logf("sending: %v", err) // the receiver gets the reason
	}
}

// receive waits for a response and does not answer it.
func (e *envoy) receive(t testing.TB) *discoveryv3.DeltaDiscoveryResponse {
	t.Helper()
	select {
	case r := <-e.got:
		return r
	case err := <-e.end:
		t.Fatalf("the stream has ended: %v", err)
	case <-time.After(patience):
		t.Fatal("nothing was sent")
	}
	return nil
}

// next waits for a response and answers it.
func (e *envoy) next(t testing.TB) *discoveryv3.DeltaDiscoveryResponse {
	t.Helper()
	r := e.receive(t)
	e.answer(t, r)
	return r
}

// answer applies a response.
func (e *envoy) answer(t testing.TB, r *discoveryv3.DeltaDiscoveryResponse) {
	t.Helper()
	answer := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}
	var rejected []string
	for _, res := range r.GetResources() {
		if e.bad[res.GetName()] {
			rejected = append(rejected, "envoy can't have "+res.GetName())
		}
	}
	if len(rejected) > 0 {
		answer.ErrorDetail = &statusv1.Status{Code: int32(codes.Internal), Message: strings.Join(rejected, ", ")}
		e.send(t, answer)
		return
	}
	for _, res := range r.GetResources() {
		e.have[r.GetTypeUrl()][res.GetName()] = res.GetVersion()
	}
	for _, name := range r.GetRemovedResources() {
		delete(e.have[r.GetTypeUrl()], name)
	}
	e.send(t, answer)
}

// until answers responses until it has exactly these names of a type.
func (e *envoy) until(t testing.TB, typeURL string, names ...string) {
	t.Helper()
	slices.Sort(names)
	for deadline := time.After(patience); ; {
		if slices.Equal(slices.Sorted(maps.Keys(e.have[typeURL])), names) {
			return
		}
		select {
		case r := <-e.got:
			e.answer(t, r)
		case err := <-e.end:
			t.Fatalf("the stream has ended: %v", err)
		case <-deadline:
			t.Fatalf("Envoy has %v, want %v", slices.Sorted(maps.Keys(e.have[typeURL])), names)
		}
	}
}

// quiet fails if a response comes.
func (e *envoy) quiet(t testing.TB) {
	t.Helper()
	select {
	case r := <-e.got:
		t.Fatalf("something came: %v", r)
	case err := <-e.end:
		t.Fatalf("the stream has ended: %v", err)
	case <-time.After(pause):
	}
}

// rejection waits for the end of the stream and returns its code.
func (e *envoy) rejection(t testing.TB) codes.Code {
	t.Helper()
	select {
	case err := <-e.end:
		return status.Code(err)
	case <-time.After(patience):
		t.Fatal("the stream is still open")
	}
	return codes.OK
}

func names(r *discoveryv3.DeltaDiscoveryResponse) []string {
	var all []string
	for _, res := range r.GetResources() {
		all = append(all, res.GetName())
	}
	slices.Sort(all)
	return all
}

func expect(t testing.TB, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("%s:\n%s", what, diff)
	}
}
