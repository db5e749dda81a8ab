package deltaxds_test

import (
	"slices"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"

	"github.com/fairlead/fairlead/pkg/deltaxds"
)

var invalid = &statusv1.Status{Code: int32(codes.InvalidArgument), Message: "not valid"}

// contents describes a response: names of resources, and of removed ones after a minus.
func contents(r *discoveryv3.DeltaDiscoveryResponse) string {
	if r == nil {
		return "nothing"
	}
	var all []string
	for _, resource := range r.GetResources() {
		all = append(all, resource.GetName())
	}
	for _, name := range r.GetRemovedResources() {
		all = append(all, "-"+name)
	}
	return strings.Join(all, " ")
}

// drain answers everything that is sent, and returns it in order, as type:contents.
func drain(t *testing.T, s *deltaxds.Stream, offers [2]deltaxds.Offer) (sent []string) {
	t.Helper()
	for range 20 {
		kind, _, ok := s.Next()
		if !ok {
			return sent
		}
		r, _ := s.Respond(kind, offers[kind])
		if r == nil {
			continue
		}
		sent = append(sent, "01"[kind:kind+1]+":"+contents(r))
		if got := s.Receive(kind, &discoveryv3.DeltaDiscoveryRequest{ResponseNonce: r.GetNonce()}); got != deltaxds.ACK {
			t.Fatalf("an ACK is taken for %v", got)
		}
	}
	t.Fatalf("it does not end: %v", sent)
	return nil
}

// TestRemovalsComeAfterTheChangesOfLaterTypes replaces a resource of the first type, and what refers to it.
func TestRemovalsComeAfterTheChangesOfLaterTypes(t *testing.T) {
	old, refersToOld := cluster(t, "old", 1), cluster(t, "user", 1)
	replaced, refersToNew := cluster(t, "new", 1), cluster(t, "user", 2)
	for name, first := range map[string]deltaxds.Offer{
		"offers of all":  deltaxds.Whole([]*deltaxds.Resource{replaced}),
		"partial offers": deltaxds.Part([]*deltaxds.Resource{replaced}, []string{"old"}),
	} {
		t.Run(name, func(t *testing.T) {
			s := deltaxds.NewStream(2, 0)
			before := [2]deltaxds.Offer{
				deltaxds.Whole([]*deltaxds.Resource{old}), deltaxds.Whole([]*deltaxds.Resource{refersToOld}),
			}
			for kind := range before {
				s.Receive(kind, &discoveryv3.DeltaDiscoveryRequest{})
			}
			if got, want := drain(t, &s, before), []string{"0:old", "1:user"}; !slices.Equal(got, want) {
				t.Fatalf("at first %v is sent, want %v", got, want)
			}
			for kind := range before {
				s.Changed(kind)
			}
			got := drain(t, &s, [2]deltaxds.Offer{first, deltaxds.Whole([]*deltaxds.Resource{refersToNew})})
			if want := []string{"0:new", "1:user", "0:-old"}; !slices.Equal(got, want) {
				t.Errorf("%v is sent, want %v", got, want)
			}
		})
	}
}

// TestARemovalDoesNotWaitForAnAnswerOfALaterType covers an agent without an Envoy, which answers nothing.
func TestARemovalDoesNotWaitForAnAnswerOfALaterType(t *testing.T) {
	s := deltaxds.NewStream(2, 0)
	offers := [2]deltaxds.Offer{
		deltaxds.Whole([]*deltaxds.Resource{cluster(t, "a", 1)}), deltaxds.Whole([]*deltaxds.Resource{cluster(t, "user", 1)}),
	}
	s.Receive(0, &discoveryv3.DeltaDiscoveryRequest{})
	drain(t, &s, offers)
	s.Receive(1, &discoveryv3.DeltaDiscoveryRequest{})
	kind, _, _ := s.Next()
	if r, _ := s.Respond(kind, offers[kind]); kind != 1 || s.Idle(1) {
		t.Fatalf("%s of type %d is sent", contents(r), kind)
	}
	s.Changed(0)
	s.Changed(1)
	if kind, _, _ = s.Next(); kind != 0 {
		t.Fatalf("type %d is next", kind)
	}
	if r, rest := s.Respond(0, deltaxds.Whole(nil)); contents(r) != "-a" || rest {
		t.Errorf("%s is sent, and there is a rest: %t", contents(r), rest)
	}
}

// TestATypeIsSentInParts: one resource fits into a response. Later types wait for the last part, which they may refer
// to, and the removals of earlier types for what later types still have to send.
func TestATypeIsSentInParts(t *testing.T) {
	old := []*deltaxds.Resource{cluster(t, "old", 1)}
	all := []*deltaxds.Resource{cluster(t, "a", 1), cluster(t, "b", 1), cluster(t, "c", 1)}
	users := []*deltaxds.Resource{cluster(t, "x", 1), cluster(t, "y", 1)}
	for name, offers := range map[string][2]deltaxds.Offer{
		"offers of all":  {deltaxds.Whole(all), deltaxds.Whole(users)},
		"partial offers": {deltaxds.Part(all, []string{"old"}), deltaxds.Part(users, nil)},
	} {
		t.Run(name, func(t *testing.T) {
			s := deltaxds.NewStream(2, 1)
			s.Receive(0, &discoveryv3.DeltaDiscoveryRequest{})
			s.Receive(1, &discoveryv3.DeltaDiscoveryRequest{})
			drain(t, &s, [2]deltaxds.Offer{deltaxds.Whole(old), deltaxds.Whole(nil)})
			s.Changed(0)
			s.Changed(1)
			kind, _, _ := s.Next()
			r, rest := s.Respond(kind, offers[kind])
			if contents(r) != "a" || kind != 0 || !rest || s.Due() || s.Idle(0) {
				t.Errorf("%s of type %d is sent, there is a rest: %t, and more is due: %t", contents(r), kind, rest, s.Due())
			}
			nack := &discoveryv3.DeltaDiscoveryRequest{ResponseNonce: r.GetNonce(), ErrorDetail: invalid}
			if got := s.Receive(0, nack); got != deltaxds.NACK {
				t.Errorf("a NACK is taken for %v", got)
			}
			got := drain(t, &s, offers)
			if want := []string{"0:b", "0:c", "1:x", "1:y", "0:-old"}; !slices.Equal(got, want) {
				t.Errorf("then %v is sent, want %v", got, want)
			}
			if !s.Idle(0) || !s.Idle(1) {
				t.Error("it is not idle")
			}
		})
	}
}

// TestAPartRemovesNothing: a client that removes only what no later type needs would not answer, and later types come
// after the last part.
func TestAPartRemovesNothing(t *testing.T) {
	s := deltaxds.NewStream(2, 1)
	s.Receive(0, &discoveryv3.DeltaDiscoveryRequest{InitialResourceVersions: map[string]string{"0": "1", "gone": "1"}})
	all := []*deltaxds.Resource{cluster(t, "a", 1), cluster(t, "b", 1)}
	offers := [2]deltaxds.Offer{deltaxds.Whole(all), deltaxds.Whole([]*deltaxds.Resource{cluster(t, "x", 1)})}
	kind, _, _ := s.Next()
	r, rest := s.Respond(kind, offers[kind])
	if contents(r) != "a" || kind != 0 || !rest {
		t.Fatalf("%s of type %d is sent, and there is a rest: %t", contents(r), kind, rest)
	}
	s.Receive(1, &discoveryv3.DeltaDiscoveryRequest{})
	s.Receive(0, &discoveryv3.DeltaDiscoveryRequest{ResponseNonce: r.GetNonce()})
	got := drain(t, &s, offers)
	if want := []string{"0:b", "1:x", "0:-0 -gone"}; !slices.Equal(got, want) {
		t.Errorf("then %v is sent, want %v", got, want)
	}
}

// TestVersions: the same content has the same version everywhere, and the version in memory tells versions apart.
func TestVersions(t *testing.T) {
	a, again, other := cluster(t, "a", 1), cluster(t, "a", 1), cluster(t, "a", 2)
	if a.Version() != again.Version() || a.Version() == other.Version() || len(a.Version()) != 64 {
		t.Errorf("versions are %s, %s and %s", a.Version(), again.Version(), other.Version())
	}
	for version, sent := range map[string]bool{
		a.Version(): false, strings.ToUpper(a.Version()): false, other.Version(): true, "": true, "1": true,
		a.Version() + "+": true, strings.Repeat("g", 64): true,
	} {
		s := deltaxds.NewStream(1, 0)
		s.Receive(0, &discoveryv3.DeltaDiscoveryRequest{InitialResourceVersions: map[string]string{"a": version}})
		r, _ := s.Respond(0, deltaxds.Whole([]*deltaxds.Resource{a}))
		if (contents(r) == "a") != sent {
			t.Errorf("a client that has version %q is sent %q", version, contents(r))
		}
	}
}

// BenchmarkPart measures the comparison of one change among 10,000 resources: a stream's lock is held for as long.
func BenchmarkPart(b *testing.B) {
	s := deltaxds.NewStream(1, 0)
	s.Receive(0, &discoveryv3.DeltaDiscoveryRequest{})
	var all []*deltaxds.Resource
	for i := range 10_000 {
		all = append(all, cluster(b, "c"+string(rune('a'+i%26))+strings.Repeat("x", i/26), 1))
	}
	r, _ := s.Respond(0, deltaxds.Whole(all))
	versions := []deltaxds.Offer{
		deltaxds.Part([]*deltaxds.Resource{cluster(b, all[77].Name(), 2)}, nil), deltaxds.Part(all[77:78], nil),
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s.Receive(0, &discoveryv3.DeltaDiscoveryRequest{ResponseNonce: r.GetNonce()})
		s.Changed(0)
		s.Next()
		if r, _ = s.Respond(0, versions[i%2]); len(r.GetResources()) != 1 {
			b.Fatal(contents(r))
		}
	}
}
