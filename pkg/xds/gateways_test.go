package xds_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pkg/model"
)

// replicas returns n gateways, beginning with gateway-0.
func replicas(n int) []model.Gateway {
	var all []model.Gateway
	for i := range n {
		all = append(
			all,
			model.Gateway{
				Name: fmt.Sprintf("gateway-%d", i),
				Peer: model.Endpoint{Host: fmt.Sprintf("10.0.0.%d", 1+i), Port: 443},
			},
		)
	}
	return all
}

func gatewayAt(i int) model.Subject {
	return model.Subject{Role: model.RoleGateway, Node: fmt.Sprintf("gateway-%d", i)}
}

func TestGatewaysCanBeAddedAndRemoved(t *testing.T) {
	c1 := workload("c1")
	b := newBed(t, c1)
	g, e := b.envoy(t, gateway), b.envoy(t, edgeOf(c1))
	g.fetch(t, cds)
	listeners := g.fetch(t, lds)
	e.fetch(t, cds)
	before := e.fetch(t, lds)

	b.SetGateways(replicas(3))
	// Each stream receives the Envoy cluster, and the listener that refers to it.
	added := both(t, g)
	expect(t, "new Envoy clusters of a gateway", added[cds].names, []string{"peer_gateway-2"})
	expect(t, "changed listeners of a gateway", added[lds].names, []string{"public"})
	if after := b.envoy(t, gateway).fetch(t, lds); after["public"] == listeners["public"] ||
		after["connect"] != listeners["connect"] {
		t.Errorf("listeners are %v, before %v", after, listeners)
	}
	added = both(t, e)
	expect(t, "new Envoy clusters of an edge", added[cds].names, []string{"gateway-2_edge-a"})
	expect(t, "new listeners of an edge", added[lds].names, []string{"tunnel_edge-a_gateway-2"})

	b.SetGateways(replicas(3)) // nothing is new, so the next response is the removal
	b.SetGateways(replicas(2))
	removed := both(t, g)
	expect(t, "Envoy clusters that a gateway loses", removed[cds].removed, []string{"peer_gateway-2"})
	expect(t, "listeners of a gateway that change again", removed[lds].names, []string{"public"})
	removed = both(t, e)
	expect(t, "Envoy clusters that an edge loses", removed[cds].removed, []string{"gateway-2_edge-a"})
	expect(t, "listeners that an edge loses", removed[lds].removed, []string{"tunnel_edge-a_gateway-2"})
	expect(t, "sent to it", append(removed[cds].names, removed[lds].names...), nil)
	for name, version := range b.envoy(t, edgeOf(c1)).fetch(t, lds) {
		if before[name] != version {
			t.Errorf("listener %s has another version, so an edge would lose its tunnels", name)
		}
	}

	b.SetGateways(nil) // the installation would be unreachable
	expect(
		t, "Envoy clusters of a gateway after that", names(firstOf(t, b.envoy(t, gateway))),
		sorted("c1.prod.tunnels.example.com"),
	)
}

// response is the content of one response.
type response struct{ names, removed []string }

// both waits for one response of each of the two types, in any order.
func both(t *testing.T, a *ads) map[string]response {
	t.Helper()
	got := map[string]response{}
	for range 2 {
		r := a.next(t)
		if _, twice := got[r.GetTypeUrl()]; twice {
			t.Fatalf("%s was sent twice", r.GetTypeUrl())
		}
		got[r.GetTypeUrl()] = response{names(r), r.GetRemovedResources()}
	}
	return got
}

func TestNothingIsServedBeforeTheGatewaysAreKnown(t *testing.T) {
	bare := inst
	bare.Gateways = nil
	b := newBedOf(t, bare)
	b.Replace([]model.WorkloadCluster{workload("c1")})
	a, e := b.envoy(t, gateway), b.envoy(t, edgeOf(workload("c1")))
	a.subscribe(t, cds, nil)
	e.subscribe(t, lds, nil)
	for _, stream := range []*ads{a, e} {
		select {
		case r := <-stream.got:
			t.Fatalf("sent %v", names(r))
		case err := <-stream.end:
			t.Fatalf("the stream has ended: %v", err)
		case <-time.After(pause):
		}
	}
	if err := b.Admit(gateway); status.Code(err) != codes.Unavailable || b.Published() {
		t.Errorf("it admits a gateway (%v), or says that everything is published (%t)", err, b.Published())
	}
	b.SetGateways(inst.Gateways)
	expect(t, "Envoy clusters of a gateway", names(a.next(t)), sorted("c1.prod.tunnels.example.com"))
	expect(t, "listeners of an edge", names(e.next(t)), edgeListeners)
}

func TestAGatewayOutsideTheListIsRejected(t *testing.T) {
	b := newBed(t)
	third := gatewayAt(2)
	refusal := b.Admit(third)
	if code := status.Code(refusal); code != codes.Unavailable ||
		!strings.Contains(refusal.Error(), "gateway-2 is not a gateway") ||
		!strings.Contains(refusal.Error(), "gateway-0 to gateway-1") {
		t.Errorf("got %v", refusal)
	}
	a := b.envoy(t, third)
	a.subscribe(t, cds, nil)
	if code := a.refusal(t); code != codes.Unavailable {
		t.Errorf("its stream ended with %s", code)
	}

	b.SetGateways(replicas(3))
	if err := b.Admit(third); err != nil {
		t.Error(err)
	}
	a = b.envoy(t, third)
	a.fetch(t, cds)
	a.fetch(t, lds)
	b.SetGateways(replicas(2))
	if code := a.refusal(t); code != codes.Unavailable {
		t.Errorf("after it has left its stream ended with %s", code)
	}
}

func TestManyEdgesAreUpdatedInBatches(t *testing.T) {
	const edges = 150
	c1 := workload("c1")
	b := newBed(t, c1)
	var all []*ads
	for i := range edges {
		s := edgeOf(c1)
		s.Node = fmt.Sprintf("edge-%d", i)
		a := b.envoy(t, s)
		a.fetch(t, lds)
		all = append(all, a)
	}
	b.SetGateways(replicas(3))
	if at := told(all); at > 110 {
		t.Errorf("%d of %d are told at once", at, edges)
	}
	begin := time.Now()
	for _, a := range all {
		if got := names(a.next(t)); len(got) != 1 || !strings.HasSuffix(got[0], "_gateway-2") {
			t.Fatalf("sent %v", got)
		}
	}
	if took := time.Since(begin); took > 15*time.Second {
		t.Errorf("all were told within %s", took)
	}
	// Changes in the meantime are sent to them too, and nothing is sent twice.
	b.SetGateways(replicas(4))
	b.SetGateways(replicas(5))
	for _, a := range all {
		var got []string
		for len(got) < 2 {
			got = append(got, names(a.next(t))...)
		}
		if slices.Sort(got); len(got) != 2 || !strings.HasSuffix(got[0], "_gateway-3") ||
			!strings.HasSuffix(got[1], "_gateway-4") {
			t.Fatalf("sent %v", got)
		}
	}
}

// told returns how many streams have received a response a moment later.
func told(all []*ads) int {
	<-time.After(pause)
	n := 0
	for _, a := range all {
		n += len(a.got)
	}
	return n
}

// TestListenersStayWhileGatewaysChange changes the gateways again and again, so that listeners are built while Envoy
// clusters are published. A listener that refers to an Envoy cluster which is not published yet would be left out.
func TestListenersStayWhileGatewaysChange(t *testing.T) {
	b := newBed(t, workload("c1"))
	a := b.envoy(t, gateway)
	a.fetch(t, cds)
	a.fetch(t, lds)
	const changes = 300
	go func() {
		for i := range changes {
			b.SetGateways(replicas(2 + i%3))
		}
		b.SetGateways(replicas(9))
	}()
	for { // until the last change has arrived
		r := a.next(t)
		if gone := r.GetRemovedResources(); r.GetTypeUrl() == lds && len(gone) > 0 {
			t.Fatalf("listeners %v are removed", gone)
		}
		if slices.Contains(names(r), "peer_gateway-8") {
			return
		}
	}
}
