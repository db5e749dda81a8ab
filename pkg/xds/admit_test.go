package xds_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/logtest"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/xds"
)

// node returns an edge of a workload cluster.
func node(wc model.WorkloadCluster, name string) model.Subject {
	return model.Subject{Role: model.RoleEdge, Node: name, ID: wc.ID}
}

func TestAdmit(t *testing.T) {
	c1, c2 := workload("c1"), workload("c2")
	c1.Revoked = []string{"edge-b", "gateway-0", "NO NAME"}
	tests := map[string]struct {
		before func(s *xds.Server)
		in     model.Subject
		want   codes.Code
	}{
		"an edge": {in: node(c1, "edge-a")},
		"an edge, before anything was published": {
			before: func(*xds.Server) {},
			in:     node(c1, "edge-a"),
			want:   codes.Unavailable,
		},
		"a gateway, before anything was published": {before: func(*xds.Server) {}, in: gateway, want: codes.Unavailable},
		"a revoked edge": {in: node(c1, "edge-b"), want: codes.FailedPrecondition},
		"one of the same node name in another tunnel": {in: node(c2, "edge-b")},
		"a gateway, which no Tunnel can revoke":       {in: gateway},
		"an edge of a tunnel that is not known":       {in: node(workload("c9"), "edge-a"), want: codes.Unavailable},
		"an edge of a tunnel that has ended":          {in: node(workload("c3"), "edge-a"), want: codes.FailedPrecondition},
		"an edge of a tunnel that ended long ago":     {in: node(workload("c4"), "edge-a"), want: codes.FailedPrecondition},
		"the controller, which reads the reports":     {in: model.ControllerSubject()},
		"an edge that was revoked and is not any more": {
			before: func(s *xds.Server) { publish(s, c1); again := workload("c1"); s.Publish(again.Key, &again) },
			in:     node(c1, "edge-b"),
		},
		"an edge whose Tunnel is not any more": {
			before: func(s *xds.Server) { publish(s, c1, c2); s.Publish(c1.Key, nil) },
			in:     node(c1, "edge-b"),
			want:   codes.Unavailable,
		},
		"a revoked edge of a Tunnel that is withheld": {
			before: func(s *xds.Server) { publish(s, c1, c2); two := withheld(c1); s.Publish(c1.Key, &two) },
			in:     node(c1, "edge-b"),
			want:   codes.FailedPrecondition,
		},
		"one that was withheld from the beginning": {
			before: func(s *xds.Server) { publish(s, withheld(c1)) },
			in:     node(c1, "edge-b"),
			want:   codes.FailedPrecondition,
		},
		"another edge of a Tunnel that is withheld": {
			before: func(s *xds.Server) { publish(s, withheld(c1)) },
			in:     node(c1, "edge-a"),
			want:   codes.Unavailable,
		},
		"one that is no longer withheld": {
			before: func(s *xds.Server) { publish(s, withheld(c1)); s.Publish(c1.Key, nil) },
			in:     node(c1, "edge-b"),
			want:   codes.Unavailable,
		},
		"one that is served again without revocations": {
			before: func(s *xds.Server) { publish(s, withheld(c1)); again := workload("c1"); s.Publish(again.Key, &again) },
			in:     node(c1, "edge-b"),
		},
		"an edge that a Tunnel with a claim to its id revokes": {before: func(s *xds.Server) {
			claims := withheld(c1)
			claims.ID = c2.ID
			publish(s, claims, c2)
		}, in: node(c2, "edge-b")},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := xds.NewServer(inst, slog.New(slog.DiscardHandler))
			defer s.Close()
			s.Ended(
				map[string]time.Time{workload("c3").ID: time.Now().Add(time.Hour), workload("c4").ID: time.Now().Add(-time.Hour)},
			)
			if tc.before == nil {
				tc.before = func(s *xds.Server) { publish(s, c1, c2) }
			}
			tc.before(s)
			if err := s.Admit(tc.in); status.Code(err) != tc.want {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

// withheld returns the workload cluster as one that is not served.
func withheld(wc model.WorkloadCluster) model.WorkloadCluster {
	wc.Withheld = true
	return wc
}

func publish(s *xds.Server, clusters ...model.WorkloadCluster) { s.Replace(clusters) }

func TestGatewaysDenyRevokedEdgesAndEndedTunnels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := xds.NewServer(inst, slog.New(slog.DiscardHandler))
		defer s.Close()
		now := time.Now()
		ended := map[string]time.Time{"b": now.Add(time.Hour), "a": now.Add(2 * time.Hour), "past": now.Add(-time.Second)}
		ids := []string{"a", "b", "past"} // as long as they are on record, because a tunnel outlives its certificate
		c1, c2 := workload("c1"), workload("c2")
		c1.Revoked, c2.Revoked = []string{"edge-z", "edge-y", "gateway-1", "A B"}, []string{"edge-y", "edge-x"}
		first := []model.EdgeRef{{Node: "edge-y", ID: c1.ID}, {Node: "edge-z", ID: c1.ID}}
		both := append(first[:2:2], model.EdgeRef{Node: "edge-x", ID: c2.ID}, model.EdgeRef{Node: "edge-y", ID: c2.ID})
		slices.SortFunc(both, model.EdgeRef.Compare)
		kept, other := withheld(c2), withheld(workload("c3"))
		other.ID, other.Revoked = c1.ID, []string{"edge-a"}
		steps := []struct {
			what    string
			do      func()
			want    model.Denied
			changes bool
		}{
			{what: "nothing was denied", do: func() {}},
			{what: "tunnels ended", do: func() { s.Ended(ended) }, want: model.Denied{IDs: ids}, changes: true},
			{what: "the same again", do: func() { s.Ended(ended) }, want: model.Denied{IDs: ids}},
			{
				what:    "edges are revoked",
				do:      func() { s.Replace([]model.WorkloadCluster{c1, c2}) },
				want:    model.Denied{Edges: both, IDs: ids},
				changes: true,
			},
			{what: "one is not served", do: func() { s.Publish(c2.Key, &kept) }, want: model.Denied{Edges: both, IDs: ids}},
			{
				what: "one that claims the id of another",
				do:   func() { s.Publish(other.Key, &other) },
				want: model.Denied{Edges: both, IDs: ids},
			},
			{
				what:    "one was removed",
				do:      func() { s.Publish(c2.Key, nil) },
				want:    model.Denied{Edges: first, IDs: ids},
				changes: true,
			},
			{
				what: "no leaf of b is valid any more",
				do:   func() { time.Sleep(time.Hour + time.Second) },
				want: model.Denied{Edges: first, IDs: ids},
			},
			{
				what:    "b is no longer recorded",
				do:      func() { delete(ended, "b"); s.Ended(ended) },
				want:    model.Denied{Edges: first, IDs: []string{"a", "past"}},
				changes: true,
			},
		}
		for _, step := range steps {
			_, changed := s.Denied()
			step.do()
			time.Sleep(xds.DenyInterval)
			synctest.Wait()
			got, _ := s.Denied()
			if diff := cmp.Diff(step.want, got); diff != "" {
				t.Errorf("%s:\n%s", step.what, diff)
			}
			select {
			case <-changed:
				if !step.changes {
					t.Errorf("%s: it says that something changed", step.what)
				}
			default:
				if step.changes {
					t.Errorf("%s: it does not say that something changed", step.what)
				}
			}
		}
	})
}

// TestDenialsAreAppliedTogether: the first revocation takes effect at once, the next ones within the interval, and none
// is lost.
func TestDenialsAreAppliedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const changes, every = 200, 10 * time.Millisecond
		var log logtest.Journal
		s := xds.NewServer(inst, slog.New(slog.NewTextHandler(&log, nil)))
		defer s.Close()
		wc := workload("c1")
		publish(s, wc)
		time.Sleep(time.Minute)
		for i := range changes {
			wc.Revoked = []string{fmt.Sprintf("edge-%d", i)}
			s.Publish(wc.Key, &wc)
			if denied, _ := s.Denied(); i == 0 && len(denied.Edges) == 0 {
				t.Error("the first revocation has to wait")
			}
			if err := s.Admit(node(wc, wc.Revoked[0])); status.Code(err) != codes.FailedPrecondition {
				t.Errorf("a revoked edge is admitted: %v", err)
			}
			time.Sleep(every)
		}
		time.Sleep(xds.DenyInterval)
		synctest.Wait()
		if denied, _ := s.Denied(); len(denied.Edges) != 1 || denied.Edges[0].Node != wc.Revoked[0] {
			t.Errorf("after all changes %v is denied", denied.Edges)
		}
		most := int(changes*every/xds.DenyInterval) + 2
		if n := log.Count("denials changed"); n > most {
			t.Errorf("%d changes were applied %d times, want at most %d", changes, n, most)
		}
	})
}

// TestLongDenyListsChangeLessOften: owners of namespaces decide how often a list changes, and how long it is.
func TestLongDenyListsChangeLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tunnels, each, changes, every = 300, 1024, 100, 100 * time.Millisecond
		var log logtest.Journal
		s := xds.NewServer(inst, slog.New(slog.NewTextHandler(&log, nil)))
		defer s.Close()
		all := make([]model.WorkloadCluster, tunnels)
		for i := range all {
			all[i] = workload(fmt.Sprintf("c%dx", i))
			for n := range each {
				all[i].Revoked = append(all[i].Revoked, fmt.Sprintf("edge-%d", n))
			}
			all[i].Recorded = each
		}
		publish(s, all...)
		time.Sleep(time.Minute)
		before, wc := log.Count("denials changed"), workload("other")
		for i := range changes {
			wc.Revoked = []string{fmt.Sprintf("edge-%d", i)}
			s.Publish(wc.Key, &wc)
			time.Sleep(every)
		}
		_, _, filtered := s.Revoked()
		denied, _ := s.Denied()
		most := int(changes*every.Seconds()*xds.DenyRate)/(len(filtered)*340+len(denied.Edges)*60) + 2
		if n := log.Count("denials changed") - before; n < 2 || n > most {
			t.Errorf("%d changes of %d edges were applied %d times, want at most %d", changes, len(denied.Edges), n, most)
		}
	})
}

// TestOtherChangesResolveNoDenials: each resolution reads all tunnels, and a fleet always has some that are withheld.
func TestOtherChangesResolveNoDenials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := xds.NewServer(inst, slog.New(slog.DiscardHandler))
		defer s.Close()
		c1, c2, c3 := workload("c1"), withheld(workload("c2")), workload("c3")
		c2.Revoked = []string{"edge-b"}
		claims, without := withheld(workload("c4")), withheld(workload("c5"))
		claims.ID, claims.Revoked, without.ID = c1.ID, []string{"edge-a"}, ""
		ended := map[string]time.Time{"gone0000000000000000": time.Now().Add(time.Hour)}
		s.Ended(ended)
		publish(s, c1, c2, claims, without)
		for what, do := range map[string]func(){
			"the same tunnels ended":      func() { s.Ended(ended) },
			"a workload cluster is added": func() { s.Publish(c3.Key, &c3) },
		} {
			if do(); s.Stale() {
				t.Errorf("%s: denials are resolved again", what)
			}
		}
		other, own := model.EdgeRef{Node: "edge-b", ID: c2.ID}, model.EdgeRef{Node: "edge-a", ID: c1.ID}
		for _, step := range []struct {
			what string
			do   func()
			want []model.EdgeRef
		}{
			{what: "its id is served", do: func() {}, want: []model.EdgeRef{other}},
			{what: "it is not served", do: func() { s.Publish(c1.Key, nil) }, want: []model.EdgeRef{own, other}},
			{what: "it is served again", do: func() { s.Publish(c1.Key, &c1) }, want: []model.EdgeRef{other}},
		} {
			step.do()
			time.Sleep(xds.DenyInterval)
			synctest.Wait()
			denied, _ := s.Denied()
			slices.SortFunc(step.want, model.EdgeRef.Compare)
			if diff := cmp.Diff(step.want, denied.Edges); diff != "" {
				t.Errorf("a withheld Tunnel claims an id, %s:\n%s", step.what, diff)
			}
		}
	})
}

// TestTunnelsWithoutRevocationsCostNothing: a revocation waits while those of all tunnels are read.
func TestTunnelsWithoutRevocationsCostNothing(t *testing.T) {
	const tunnels = 10_000
	s := xds.NewServer(inst, slog.New(slog.DiscardHandler))
	defer s.Close()
	all := make([]model.WorkloadCluster, tunnels)
	for i := range all {
		all[i] = workload(fmt.Sprintf("c%dx", i))
		if i%2 == 0 {
			all[i] = withheld(all[i])
		}
	}
	s.Replace(all)
	if allocations := testing.AllocsPerRun(3, func() { s.Revoked() }); allocations > tunnels/10 {
		t.Errorf("%.0f allocations for %d tunnels", allocations, tunnels)
	}
}

// TestTheFilterOfGatewaysIsBounded: the owners of namespaces can revoke any number of names that no edge has had.
func TestTheFilterOfGatewaysIsBounded(t *testing.T) {
	const tunnels, each = 300, 1024
	all := make([]model.WorkloadCluster, tunnels)
	for i := range all {
		all[i] = withheld(workload(fmt.Sprintf("c%dx", i)))
		for n := range each {
			all[i].Revoked = append(all[i].Revoked, fmt.Sprintf("edge-%d", (n*7)%each)) // not in the order of names
		}
	}
	few := withheld(workload("few"))
	few.Key.Namespace, few.Revoked = "small", []string{"edge-a", "edge-b"}
	b := newBed(t, append(all, few)...)
	a := b.envoy(t, gateway)
	a.fetch(t, cds)
	a.subscribe(t, lds, nil)
	first := publicListener(t, a.next(t))
	inFilter := deniedBy(t, first.GetFilterChains()[0]) // that of lanes is a copy
	if len(inFilter) == 0 || len(inFilter) > 16_384 {
		t.Errorf("the filter denies %d edges", len(inFilter))
	}
	for _, wc := range append(all, few) {
		newest := model.EdgeRef{ID: domain.TunnelID(wc.ID), Node: model.NodeID(wc.Revoked[len(wc.Revoked)-1])}
		if !inFilter[newest] {
			t.Fatalf("the filter does not deny %v", newest)
		}
	}
	if !inFilter[model.EdgeRef{ID: domain.TunnelID(few.ID), Node: model.NodeID("edge-a")}] {
		t.Error("the filter does not deny all edges of a namespace with few")
	}
	b.Replace(append(all, few))
	late := b.envoy(t, gateway)
	late.fetch(t, cds)
	late.subscribe(t, lds, nil)
	if !proto.Equal(first, publicListener(t, late.next(t))) {
		t.Error("the same revocations give another listener")
	}
}

// TestWhatAgentsOfGatewaysDenyIsBounded: each agent gets all of it with each change. Edges that have enrolled have a
// bound of their own, and namespaces fill both in turn.
func TestWhatAgentsOfGatewaysDenyIsBounded(t *testing.T) {
	const tunnels, each, enrolled, most = 300, 1024, 3, 16_384
	var log logtest.Journal
	s := xds.NewServer(inst, slog.New(slog.NewTextHandler(&log, nil)))
	defer s.Close()
	all := make([]model.WorkloadCluster, tunnels)
	for i := range all {
		all[i] = withheld(workload(fmt.Sprintf("c%dx", i)))
		for n := range each {
			all[i].Revoked = append(all[i].Revoked, fmt.Sprintf("edge-%d", n))
		}
		all[i].Recorded = enrolled
	}
	few := withheld(workload("few"))
	few.Key.Namespace, few.Revoked = "small", []string{"edge-a", "edge-b"}
	publish(s, append(all, few)...)
	denied, _ := s.Denied()
	is := map[model.EdgeRef]bool{}
	for _, edge := range denied.Edges {
		is[edge] = true
	}
	if want := most + tunnels*enrolled; len(is) != want || len(denied.Edges) != want {
		t.Errorf("%d edges are denied, %d different ones, want %d", len(denied.Edges), len(is), want)
	}
	for _, wc := range all {
		for _, name := range wc.Revoked[each-enrolled:] {
			if edge := (model.EdgeRef{Node: name, ID: wc.ID}); !is[edge] {
				t.Fatalf("%v has enrolled, and is not denied", edge)
			}
		}
	}
	for _, name := range few.Revoked {
		if !is[model.EdgeRef{Node: name, ID: few.ID}] {
			t.Errorf("%s of a namespace with few is not denied", name)
		}
	}
	oldest := node(all[0], all[0].Revoked[0])
	if is[model.EdgeRef{Node: oldest.Node, ID: oldest.ID}] {
		t.Errorf("%v is denied before newer ones", oldest)
	}
	if err := s.Admit(oldest); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("the server itself denies all: %v", err)
	}
	if n := log.Count(fmt.Sprintf("omitted=%d", tunnels*(each-enrolled)+2-most)); n != 1 {
		t.Errorf("the log has the number of edges that are left out %d times", n)
	}
}

// publicListener returns the public listener of a response.
func publicListener(t *testing.T, r *discoveryv3.DeltaDiscoveryResponse) *listenerv3.Listener {
	t.Helper()
	for _, resource := range r.GetResources() {
		l := &listenerv3.Listener{}
		if err := resource.GetResource().UnmarshalTo(l); err != nil {
			t.Fatal(err)
		}
		if l.GetName() == "public" {
			return l
		}
	}
	t.Fatal("there is no public listener")
	return nil
}

// deniedBy returns the edges that a filter chain denies, by the names in their leaves.
func deniedBy(t *testing.T, chain *listenerv3.FilterChain) map[model.EdgeRef]bool {
	t.Helper()
	for _, filter := range chain.GetFilters() {
		rbac := &rbacv3.RBAC{}
		if filter.GetTypedConfig().UnmarshalTo(rbac) != nil {
			continue
		}
		denied := map[model.EdgeRef]bool{}
		for _, policy := range rbac.GetRules().GetPolicies() {
			for _, p := range policy.GetPrincipals() {
				both := p.GetAndIds().GetIds()
				denied[model.EdgeRef{
					ID:   both[0].GetAuthenticated().GetPrincipalName().GetExact(),
					Node: both[1].GetAuthenticated().GetPrincipalName().GetExact(),
				}] = true
			}
		}
		return denied
	}
	t.Fatal("the chain denies nothing")
	return nil
}

// revoke publishes a workload cluster that revokes nodes.
func (b *bed) revoke(wc model.WorkloadCluster, nodes ...string) {
	wc.Revoked = nodes
	b.publish(wc)
}

func TestRevocationEndsOnlyTheStreamsOfTheEdge(t *testing.T) {
	c1, c2 := workload("c1"), workload("c2")
	tests := map[string]func(b *bed){
		"it is revoked":        func(b *bed) { b.revoke(c1, "edge-a") },
		"its tunnel has ended": func(b *bed) { b.Ended(map[string]time.Time{c1.ID: time.Now().Add(time.Hour)}) },
		"ended, and is not here": func(b *bed) {
			b.Ended(map[string]time.Time{c1.ID: time.Now().Add(time.Hour)})
			b.Publish(
				c1.Key, nil)
		},
	}
	for name, end := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, c1, c2)
			denied, other := b.envoy(t, node(c1, "edge-a")), b.envoy(t, node(c2, "edge-b"))
			silent := b.envoy(t, node(c1, "edge-a")) // a stream that has not named its node
			denied.fetch(t, cds)
			other.fetch(t, cds)
			end(b)
			for what, a := range map[string]*ads{"its stream": denied, "its silent stream": silent, "a new stream": b.envoy(t,
				node(c1, "edge-a"))} {
				if code := a.refusal(t); code != codes.FailedPrecondition {
					t.Errorf("%s ended with %s", what, code)
				}
			}
			other.fetch(t, lds) // still open
		})
	}
}

// TestARevocationThatIsLeftOutEndsStreams: gateway-agents deny only so many names that no edge has had. This server
// denies all of them.
func TestARevocationThatIsLeftOutEndsStreams(t *testing.T) {
	const tunnels, each = 40, 1024
	var names []string
	for n := range each {
		names = append(names, fmt.Sprintf("edge-%d", n))
	}
	served := workload("served")
	served.Revoked = names
	all := []model.WorkloadCluster{served}
	for i := range tunnels {
		other := withheld(workload(fmt.Sprintf("c%dx", i)))
		other.Revoked = names
		all = append(all, other)
	}
	b := newBed(t, all...)
	denied := b.envoy(t, node(served, "edge-x"))
	denied.fetch(t, cds)
	b.revoke(served, append([]string{"edge-x"}, names[1:]...)...) // the newest are the last
	if code := denied.refusal(t); code != codes.FailedPrecondition {
		t.Errorf("the stream ended with %s", code)
	}
	if list, _ := b.Denied(); slices.Contains(list.Edges, model.EdgeRef{Node: "edge-x", ID: served.ID}) {
		t.Error("it is not left out")
	}
}

func TestAnEndedTunnelIsDeniedOnlyWhileALeafIsValid(t *testing.T) {
	b := newBed(t, workload("c1"))
	a := b.envoy(t, gateway)
	a.fetch(t, cds)
	a.fetch(t, lds)
	const id = "gone0000000000000000"
	b.Ended(map[string]time.Time{id: time.Now().Add(xds.DenyInterval + 2*pause)})
	for _, want := range []bool{true, false} {
		if r := a.next(t); mentions(r, id) != want {
			t.Errorf("the listener denies it: %t, want %t", !want, want)
		}
	}
	if denied, _ := b.Denied(); !slices.Equal(denied.IDs, []string{id}) {
		t.Errorf("the gateway-agent is told %v: a tunnel outlives the leaf by which it was opened", denied)
	}
}

func TestRevocationSendsOneListenerToEachGateway(t *testing.T) {
	c1 := workload("c1")
	b := newBed(t, c1)
	second := model.Subject{Role: model.RoleGateway, Node: "gateway-1"}
	all := map[string]*ads{"edge-b": b.envoy(t, gateway), "edge-c": b.envoy(t, second)}
	for _, a := range all {
		a.fetch(t, cds)
		a.fetch(t, lds)
	}
	edge := b.envoy(t, node(c1, "edge-a"))
	edge.fetch(t, cds)
	edge.fetch(t, lds)
	b.revoke(c1, "edge-b")
	for _, a := range all {
		r := a.next(t)
		expect(t, "sent", names(r), []string{"public"})
		expect(t, "removed", r.GetRemovedResources(), nil)
		if !mentions(r, "edge-b") {
			t.Error("the listener does not deny the edge")
		}
	}
	b.Ended(map[string]time.Time{"gone0000000000000000": time.Now().Add(time.Hour)})
	for _, a := range all {
		r := a.next(t)
		expect(t, "sent for a tunnel that has ended", names(r), []string{"public"})
		if !mentions(r, "gone0000000000000000") || !mentions(r, "edge-b") {
			t.Error("the listener does not deny both")
		}
	}
	late := b.envoy(t, gateway)
	late.subscribe(t, lds, nil)
	if r := late.next(t); !mentions(r, "edge-b") {
		t.Error("a gateway that comes later does not hear who is denied")
	}
	select {
	case r := <-edge.got:
		t.Errorf("the edge was sent %v", names(r))
	case <-time.After(pause):
	}
}

// mentions reports whether a word is anywhere in the resources of a response.
func mentions(r *discoveryv3.DeltaDiscoveryResponse, word string) bool {
	return slices.ContainsFunc(r.GetResources(), func(resource *discoveryv3.Resource) bool {
		return containsText(resource.GetResource(), word)
	})
}

// containsText reports whether the encoding of a resource contains a word. Texts of nested messages are encoded as
// they are.
func containsText(resource *anypb.Any, word string) bool {
	return bytes.Contains(resource.GetValue(), []byte(word))
}

func TestAnUnknownEdgeIsLoggedOnce(t *testing.T) {
	b := newBed(t, workload("c1"))
	for range 5 {
		a := b.envoy(t, node(workload("c9"), "edge-q"))
		if code := a.refusal(t); code != codes.Unavailable {
			t.Fatalf("the stream ended with %s", code)
		}
	}
	if n := b.log.Count("stream rejected", "node=edge-q"); n != 1 {
		t.Errorf("it was logged %d times", n)
	}
}

func TestTheNodeMetadataOfAnEdgeShapesItsConfiguration(t *testing.T) {
	c1 := workload("c1")
	b := newBed(t, c1)
	subject := node(c1, "edge-a")
	open := func(dial envoy.EdgeDial) *ads {
		identity := b.identity(t, subject, time.Now().Add(time.Hour))
		return b.claim(t, &identity, &corev3.Node{Id: subject.NodeID(), Metadata: dial.Metadata()})
	}
	plain := open(envoy.EdgeDial{}).fetch(t, cds)
	local := open(envoy.EdgeDial{APIServers: []model.Endpoint{{Host: "10.9.9.9", Port: 6443}}})
	before := local.fetch(t, cds)
	if before["apiserver_edge-a"] == plain["apiserver_edge-a"] || before["gateway-0_edge-a"] != plain["gateway-0_edge-a"] {
		t.Error("its own apiserver is not in its configuration, or in more than that")
	}
	c1.APIServer.Port = 7443
	b.publish(c1)
	r := local.next(t)
	expect(t, "sent for a change", names(r), []string{"apiserver_edge-a"})
	if !mentions(r, "10.9.9.9") {
		t.Error("after a change its own apiserver is forgotten")
	}
	if versions(r)["apiserver_edge-a"] == before["apiserver_edge-a"] {
		t.Error("nothing changed")
	}
}
