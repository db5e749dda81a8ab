package xdsproxy_test

import (
	"errors"
	"os"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

var errForbidden = errors.New("it is forbidden")

// files returns the names of the files in a folder.
func files(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	return all
}

// unreachable returns a server that cannot be reached.
func unreachable(t testing.TB) *server {
	t.Helper()
	s := newServer(t, nil, nil)
	s.grpc.Stop()
	return s
}

func TestEnvoyWaitsForTheFirstUpstream(t *testing.T) {
	s := newServer(t, named(cluster("c1", 1)), nil)
	s.grpc.Stop()
	bed := newBed(t, t.TempDir())
	e := bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.quiet(t) // no upstream is known
	bed.follow(t, "a", s, nil)
	e.quiet(t) // longer than the wait for other upstreams
	s.start(t)
	e.until(t, cds, "c1")
	expect(t, "listeners", names(e.next(t)), []string(nil)) // an empty answer: Envoy continues
}

func TestADeadUpstreamDoesNotKeepEnvoyFromOthers(t *testing.T) {
	s := newServer(t, named(cluster("c1", 1)), named(listener("l")))
	late := newServer(t, named(cluster("c2", 1)), nil)
	late.grpc.Stop()
	bed := newBed(t, t.TempDir())
	bed.Keep(xdsproxy.Upstream{Name: "dead"}, xdsproxy.Upstream{Name: "a"})
	bed.follow(t, "dead", late, nil)
	bed.follow(t, "a", s, nil)
	// An Envoy that has a resource of the unavailable upstream keeps it.
	e := bed.envoy(t, map[string]map[string]string{cds: {"c2": "1", "c9": "1"}})
	e.subscribe(t, cds, lds)
	e.until(t, cds, "c1", "c2", "c9")
	e.until(t, lds, "l")
	e.quiet(t)
	late.start(t)
	e.until(t, cds, "c1", "c2") // c9 has no owner
	if e.have[cds]["c2"] == "1" {
		t.Error("c2 is the old one")
	}
}

func TestClustersComeBeforeListenersAndGoAfterThem(t *testing.T) {
	s := newServer(t, named(cluster("c1", 1)), named(listener("l1")))
	bed := newBed(t, t.TempDir())
	bed.follow(t, "a", s, nil)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "c1")
	e.until(t, lds, "l1")

	// Both change while Envoy is busy. The proxy has all changes when Envoy answers.
	s.set(t, cluster("busy", 1))
	busy := e.receive(t)
	t.Log("sent", names(busy))
	s.caches[lds].SetResources(named(listener("l2")))
	other := newServer(t, named(cluster("c2", 1)), named(listener("l3")))
	bed.follow(t, "b", other, nil)
	bed.is(t, "b", "is connected", connected)
	for _, server := range []*server{s, other} {
		eventually.True(t, patience, "listeners are sent", func() error {
			if r := server.last(lds); r == nil || names(r)[0] == "l1" {
				return errors.New("not yet")
			}
			return nil
		})
	}
	e.quiet(t)
	e.answer(t, busy)
	var order [][]string
	for range 4 {
		r := e.next(t)
		order = append(order, append(names(r), r.GetRemovedResources()...))
	}
	expect(t, "order of what is added", order, [][]string{{"c2"}, {"l2"}, {"l3"}, {"l1"}})

	r := func() *discoveryv3.DeltaDiscoveryResponse {
		s.caches[lds].SetResources(named(listener("l4")))
		return e.receive(t)
	}()
	s.caches[cds].SetResources(nil)
	eventually.True(t, patience, "removals are sent", func() error {
		if len(s.last(cds).GetRemovedResources()) != 2 {
			return errors.New("not yet")
		}
		return nil
	})
	e.quiet(t)
	e.answer(t, r)
	expect(t, "removed first", e.next(t).GetRemovedResources(), []string{"l2"})
	expect(t, "removed then", e.next(t).GetRemovedResources(), []string{"busy", "c1"})
}

func TestAForbiddenResource(t *testing.T) {
	tests := map[string]struct {
		clusters map[string]types.Resource
		want     string
	}{
		"of another upstream": {
			map[string]types.Resource{"taken": cluster("taken", 2)},
			`resource "taken" belongs to another xds-server of this Envoy`,
		},
		"by another name inside": {
			map[string]types.Resource{"fine": cluster("taken", 2)},
			`resource "fine" has the name "taken" in its content`,
		},
		"that the check rejects": {map[string]types.Resource{"forbidden": cluster("forbidden", 1)}, "it is forbidden"},
		"in one response of good": {
			map[string]types.Resource{"forbidden": cluster("forbidden", 1), "good": cluster("good", 1)},
			"it is forbidden",
		},
		"without a name": {map[string]types.Resource{"": cluster("", 1)}, "a resource has no name"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			owner := newServer(t, named(cluster("taken", 1)), nil)
			bed := newBed(t, t.TempDir())
			bed.follow(t, "owner", owner, nil)
			e := bed.envoy(t, nil)
			e.subscribe(t, cds, lds)
			e.until(t, cds, "taken")
			version := e.have[cds]["taken"]

			s := newServer(t, test.clusters, nil)
			bed.follow(t, "thief", s, forbid)
			s.next(t, cds)
			nack := s.next(t, cds)
			expect(t, "NACK", nack.GetErrorDetail().GetMessage(), test.want)
			expect(t, "state", bed.State("thief").Refused, test.want)
			e.until(t, cds, "taken")
			expect(t, "version", e.have[cds]["taken"], version)
			expect(t, "state of the owner", bed.State("owner").Refused, "")
		})
	}
}

func forbid(_ string, resource *anypb.Any) error {
	if c, err := resource.UnmarshalNew(); err != nil || c.(interface{ GetName() string }).GetName() == "forbidden" {
		return errForbidden
	}
	return nil
}

func TestResourcesRejectedTogetherAreRetriedTogether(t *testing.T) {
	s := newServer(t, named(cluster("c1", 1)), nil)
	bed := newBed(t, t.TempDir())
	bed.follow(t, "a", s, func(_ string, resource *anypb.Any) error {
		if c, err := resource.UnmarshalNew(); err != nil ||
			c.(interface{ GetConnectTimeout() *durationpb.Duration }).GetConnectTimeout().GetSeconds() == 2 {
			return errForbidden
		}
		return nil
	})
	e := bed.envoy(t, nil)
	e.subscribe(t, cds)
	e.until(t, cds, "c1")
	version := e.have[cds]["c1"]
	if err := s.caches[cds].UpdateResources(named(cluster("c1", 2), cluster("c2", 1)), nil); err != nil {
		t.Fatal(err)
	}
	e.quiet(t)
	s.set(t, cluster("c3", 1)) // a change of another resource
	e.until(t, cds, "c1", "c3")
	expect(t, "version", e.have[cds]["c1"], version)
	s.set(t, cluster("c1", 3))
	e.until(t, cds, "c1", "c2", "c3")
	bed.is(t, "a", "is fine", func(s xdsproxy.State) bool { return s.Refused == "" })
}

func TestKeep(t *testing.T) {
	dir := t.TempDir()
	bed := newBed(t, dir)
	for _, name := range []string{"mine", "moved"} {
		s := newServer(t, named(cluster("forbidden", 1), cluster(name, 1)), nil)
		if name == "moved" {
			s.caches[cds].SetResources(named(cluster(name, 1)))
		}
		bed.follow(t, name, s, nil)
	}
	e := bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "forbidden", "mine", "moved")
	bed.file(t, "mine.clusters.cache", "forbidden")
	bed.file(t, "mine.listeners.cache")
	bed.file(t, "moved.clusters.cache", "moved")
	bed.file(t, "moved.listeners.cache")
	bed.stop()

	bed = newBed(t, dir)
	bed.Keep(xdsproxy.Upstream{Name: "mine", Check: forbid}, xdsproxy.Upstream{Name: "late"})
	expect(t, "state of one that is not there", bed.State("moved"), xdsproxy.State{})
	e = bed.envoy(t, e.have)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "mine", "moved") // which may belong to the late upstream
	expect(t, "why", bed.State("mine").Refused, "it is forbidden")
	expect(t, "files", files(t, dir), []string{"mine.clusters.cache", "mine.listeners.cache"})
}

func TestAnUpstreamThatIsRemovedWhileItRunsStartsAgain(t *testing.T) {
	s := newServer(t, named(cluster("c1", 1)), named(listener("l")))
	bed := newBed(t, t.TempDir())
	bed.follow(t, "a", s, nil)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "c1")
	s.next(t, cds)
	s.next(t, cds)
	bed.Remove("a")
	expect(t, "versions of the next stream", len(s.next(t, cds).GetInitialResourceVersions()), 0)
	e.until(t, cds, "c1")
	bed.file(t, "a.clusters.cache", e.have[cds]["c1"])
}

func TestRunRejectsANameThatIsNotAFileName(t *testing.T) {
	bed := newBed(t, t.TempDir())
	for _, name := range []string{"", "../a", "A", ".a"} {
		if err := bed.follow(t, name, unreachable(t), nil).wait(t); err == nil {
			t.Errorf("%q is taken", name)
		}
	}
}

func TestRemovingAResourceOfAnotherUpstreamIsAnswered(t *testing.T) {
	owner := newServer(t, named(cluster("taken", 1)), nil)
	bed := newBed(t, t.TempDir())
	bed.follow(t, "owner", owner, nil)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "taken")
	s := newServer(t, named(cluster("taken", 2), cluster("mine", 1)), nil)
	bed.follow(t, "thief", s, nil)
	for s.next(t, cds).GetErrorDetail() == nil {
	}
	if err := s.caches[cds].DeleteResource("taken"); err != nil {
		t.Fatal(err)
	}
	e.until(t, cds, "mine", "taken")
	if ack := s.next(t, cds); ack.GetErrorDetail() != nil {
		t.Errorf("the answer is %v", ack)
	}
	expect(t, "state", bed.State("thief").Refused, "")
}
