package xdsproxy_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

func TestEnvoyGetsTheResourcesOfAllUpstreams(t *testing.T) {
	a := newServer(t, named(cluster("a1", 1), cluster("a2", 1)), named(listener("la")))
	b := newServer(t, named(cluster("b1", 1)), named(listener("lb")))
	bed := newBed(t, t.TempDir())
	bed.follow(t, "a", a, nil)
	bed.follow(t, "b", b, nil)
	bed.is(t, "a", "is connected", connected)
	bed.is(t, "b", "is connected", connected)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "a1", "a2", "b1")
	e.until(t, lds, "la", "lb")
	for _, s := range []*server{a, b} {
		if first := s.next(t, cds); first.GetNode().GetId() == "" || first.GetResponseNonce() != "" {
			t.Errorf("the first request is %v", first)
		}
		if ack := s.next(t, cds); ack.GetErrorDetail() != nil || ack.GetResponseNonce() != s.last(cds).GetNonce() {
			t.Errorf("the answer is %v", ack)
		}
	}
	if err := a.caches[cds].UpdateResources(named(cluster("a3", 1)), []string{"a1"}); err != nil {
		t.Fatal(err)
	}
	e.until(t, cds, "a2", "a3", "b1")
	expect(t, "state", bed.State("a").Refused+bed.State("b").Refused, "")
}

func TestTheServerGetsTheAnswerOfEnvoy(t *testing.T) {
	s := newServer(t, named(cluster("c1", 1)), nil)
	bed := newBed(t, t.TempDir())
	bed.follow(t, "a", s, nil)
	s.next(t, cds)
	bed.is(t, "a", "is connected", connected)
	s.none(t, cds) // without an Envoy nothing is accepted
	e := bed.envoy(t, nil)
	e.subscribe(t, cds)
	r := e.receive(t)
	s.none(t, cds)
	e.answer(t, r)
	if ack := s.next(t, cds); ack.GetErrorDetail() != nil {
		t.Errorf("the answer is %v", ack)
	}
	if err := s.caches[cds].DeleteResource("c1"); err != nil {
		t.Fatal(err)
	}
	expect(t, "removed", e.receive(t).GetRemovedResources(), []string{"c1"})
	s.none(t, cds)
}

func TestARejectionGoesToItsUpstreamWithTheReasonOfEnvoy(t *testing.T) {
	a := newServer(t, named(cluster("a1", 1)), nil)
	b := newServer(t, named(cluster("b1", 1)), nil)
	bed := newBed(t, t.TempDir())
	bed.follow(t, "a", a, nil)
	bed.follow(t, "b", b, nil)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds)
	e.until(t, cds, "a1", "b1")
	for range 2 {
		a.next(t, cds)
		b.next(t, cds)
	}
	old := e.have[cds]["b1"]
	bed.file(t, "b.clusters.cache", old)

	e.bad["b1"] = true
	b.set(t, cluster("b1", 2))
	e.next(t)
	nack := b.next(t, cds)
	expect(t, "NACK", nack.GetErrorDetail().GetMessage(), "envoy can't have b1")
	expect(t, "code", codes.Code(nack.GetErrorDetail().GetCode()), codes.Internal)
	expect(t, "nonce", nack.GetResponseNonce(), b.last(cds).GetNonce())
	expect(t, "state of b", bed.State("b").Refused, "envoy can't have b1")
	expect(t, "state of a", bed.State("a").Refused, "")
	a.none(t, cds)
	bed.file(t, "b.clusters.cache", old)
	e.quiet(t)

	// A rejection outlives the stream, and the server gets it again.
	b.grpc.Stop()
	b.start(t)
	expect(t, "versions after a refusal", b.next(t, cds).GetInitialResourceVersions(), map[string]string{"b1": old})
	expect(t, "NACK on a new stream", b.next(t, cds).GetErrorDetail().GetMessage(), "envoy can't have b1")
	e.quiet(t)

	delete(e.bad, "b1")
	b.set(t, cluster("b1", 3))
	e.next(t)
	if ack := b.next(t, cds); ack.GetErrorDetail() != nil {
		t.Errorf("the answer is %v", ack)
	}
	expect(t, "state of b", bed.State("b").Refused, "")
	bed.file(t, "b.clusters.cache", e.have[cds]["b1"])
}

// set sends an Envoy cluster.
func (s *server) set(t testing.TB, r types.ResourceWithName) {
	t.Helper()
	if err := s.caches[cds].UpdateResource(r.GetName(), r); err != nil {
		t.Fatal(err)
	}
}

func TestBadResourcesDoNotKeepEnvoyFromGoodOnes(t *testing.T) {
	all, good := []types.ResourceWithName{}, []string{}
	for i := range 100 {
		name := fmt.Sprintf("c%02d", i)
		all = append(all, cluster(name, 1))
		if i != 17 && i != 18 && i != 80 {
			good = append(good, name)
		}
	}
	s := newServer(t, named(all...), named(listener("l")))
	bed := newBed(t, t.TempDir())
	bed.follow(t, "a", s, nil)
	e := bed.envoy(t, nil, "c17", "c18", "c80")
	e.subscribe(t, cds)
	e.until(t, cds, good...)
	for s.next(t, cds).GetResponseNonce() == "" {
	}
	bed.is(t, "a", "tells of all that was refused", func(st xdsproxy.State) bool {
		return st.Refused == "envoy can't have c17; envoy can't have c18; envoy can't have c80"
	})
	// The others continue to change.
	s.set(t, cluster("c17", 2))
	delete(e.bad, "c17")
	e.until(t, cds, append(good, "c17")...)
	bed.is(
		t, "a", "forgets a refusal",
		func(st xdsproxy.State) bool { return st.Refused == "envoy can't have c18; envoy can't have c80" },
	)
}

func TestResourcesThatEnvoyHasNotAcceptedAreSentAgain(t *testing.T) {
	s := newServer(t, named(cluster("c1", 1)), nil)
	bed := newBed(t, t.TempDir())
	bed.follow(t, "a", s, nil)
	s.next(t, cds)
	bed.is(t, "a", "is connected", connected)
	s.grpc.Stop()
	bed.is(t, "a", "is not connected", func(s xdsproxy.State) bool { return !s.Connected })
	s.start(t)
	expect(t, "versions that it has", len(s.next(t, cds).GetInitialResourceVersions()), 0)
	e := bed.envoy(t, nil, "c1")
	e.subscribe(t, cds)
	e.next(t)
	expect(t, "NACK", s.next(t, cds).GetErrorDetail().GetMessage(), "envoy can't have c1")
}

func TestAPartOfAnAnswerIsNotWritten(t *testing.T) {
	s := newServer(t, named(cluster("c1", 1), cluster("c2", 1)), nil)
	dir := t.TempDir()
	bed := newBed(t, dir)
	bed.follow(t, "a", s, nil)
	e := bed.envoy(t, nil, "c2")
	e.subscribe(t, cds)
	e.next(t)
	expect(t, "sent again", names(e.next(t)), []string{"c1"})
	r := e.receive(t)
	e.quiet(t)
	if slices.Contains(files(t, dir), "a.clusters.cache") {
		t.Error("Envoy would come up with a part")
	}
	e.answer(t, r)
	bed.file(t, "a.clusters.cache", "c1")
}

func TestARestartedServerSendsOnlyTheDifferences(t *testing.T) {
	s := newServer(t, named(cluster("c1", 1), cluster("c2", 1), cluster("c3", 1)), named(listener("l")))
	bed := newBed(t, t.TempDir())
	bed.follow(t, "a", s, nil)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "c1", "c2", "c3")
	e.until(t, lds, "l")
	s.next(t, cds)
	s.next(t, cds)

	s.grpc.Stop()
	bed.is(t, "a", "is not connected", func(s xdsproxy.State) bool { return !s.Connected })
	if err := s.caches[cds].UpdateResources(named(cluster("c2", 2)), []string{"c3"}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	s.start(t)
	first := s.next(t, cds)
	expect(t, "versions that it has", len(first.GetInitialResourceVersions()), 3)
	e.until(t, cds, "c1", "c2")
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the server was asked again after %s", took)
	}
	expect(t, "sent", names(s.last(cds)), []string{"c2"})
	s.next(t, cds)
	e.quiet(t)
}

func TestAReconnectingEnvoyReceivesNoUnchangedResources(t *testing.T) {
	s := newServer(t, named(cluster("c1", 1), cluster("c2", 1)), named(listener("l")))
	dir := t.TempDir()
	bed := newBed(t, dir)
	bed.follow(t, "a", s, nil)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "c1", "c2")
	e.until(t, lds, "l")
	bed.file(t, "a.clusters.cache", "c1", "c2")
	bed.file(t, "a.listeners.cache", "l")
	bed.stop()
	s.grpc.Stop()
	s.set(t, cluster("c3", 1))

	bed = newBed(t, dir) // another agent, the same Envoy
	run := bed.follow(t, "a", s, nil)
	e = bed.envoy(t, e.have)
	e.subscribe(t, cds, lds)
	for range 2 {
		r := e.next(t)
		expect(t, "sent to one that has everything", len(r.GetResources())+len(r.GetRemovedResources()), 0)
	}
	bed.is(
		t, "a", "serves from the cache", func(s xdsproxy.State) bool { return s.Cached && !s.Connected && !s.Since.IsZero() },
	)
	eventually.True(t, patience, "the fault is reported", func() error {
		if n := bed.log.Count("level=INFO", "xds-server does not answer, Envoy is served from the "+
			"cache", "upstream=a"); n != 1 {
			return fmt.Errorf("%d lines do", n)
		}
		return nil
	})
	s.start(t)
	expect(t, "sent when the server is back", names(e.next(t)), []string{"c3"})
	bed.is(t, "a", "is up to date", func(s xdsproxy.State) bool { return !s.Cached && s.Connected })
	run.cancel()
	if err := run.wait(t); err != nil {
		t.Error(err)
	}
	e.kill()
	e = bed.envoy(t, nil) // another Envoy
	e.subscribe(t, cds, lds)
	e.until(t, cds, "c1", "c2", "c3")
	e.until(t, lds, "l")
}

func TestARejectedIdentityEndsTheStream(t *testing.T) {
	s := newServer(t, named(cluster("c1", 1)), nil)
	bed := newBed(t, t.TempDir())
	run := bed.follow(t, "a", s, nil)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds)
	e.until(t, cds, "c1")
	s.reject(t, status.Error(codes.FailedPrecondition, "revoked"))
	if err := run.wait(t); !errors.Is(err, xdsproxy.ErrOver) {
		t.Fatalf("got %v", err)
	}
	e.quiet(t) // nothing changes before Remove
	bed.Remove("a")
	expect(t, "removed", e.next(t).GetRemovedResources(), []string{"c1"})
	expect(t, "state", bed.State("a"), xdsproxy.State{})
	e.quiet(t)
}

func TestEnvoySubscribesOnlyToPermittedTypes(t *testing.T) {
	tests := map[string]*discoveryv3.DeltaDiscoveryRequest{
		"resources of an unknown type": {TypeUrl: "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"},
		"one resource by name":         {TypeUrl: cds, ResourceNamesSubscribe: []string{"c1"}},
	}
	for name, request := range tests {
		t.Run(name, func(t *testing.T) {
			e := newBed(t, t.TempDir()).envoy(t, nil)
			e.send(t, request)
			expect(t, "code", e.rejection(t), codes.InvalidArgument)
		})
	}
}

func TestTheNewestEnvoyIsServed(t *testing.T) {
	s := newServer(t, named(cluster("c1", 1)), nil)
	bed := newBed(t, t.TempDir())
	bed.follow(t, "a", s, nil)
	old := bed.envoy(t, nil)
	old.subscribe(t, cds)
	old.until(t, cds, "c1")
	e := bed.envoy(t, nil)
	e.subscribe(t, cds)
	e.until(t, cds, "c1")
	expect(t, "the end of the other", old.rejection(t), codes.Aborted)
}
