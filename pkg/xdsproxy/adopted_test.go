package xdsproxy_test

import (
	"slices"
	"testing"

	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

// away returns an agent with the cache that cached has left, and whose xds-server is unavailable.
func away(t *testing.T) (b *bed, s *server, have map[string]map[string]string) {
	t.Helper()
	dir := t.TempDir()
	have = cached(t, dir)
	s = newServer(t, named(cluster("c1", 2), cluster("c2", 2)), named(listener("l")))
	s.grpc.Stop()
	b = newBed(t, dir)
	b.Keep(xdsproxy.Upstream{Name: "a"})
	b.follow(t, "a", s, nil)
	return b, s, have
}

func TestAnEnvoyWithNewerResourcesThanTheCacheKeepsThem(t *testing.T) {
	bed, s, have := away(t)
	old := have[cds]["c2"]
	have[cds] = map[string]string{"c1": "newer", "c3": "newer"}
	e := bed.envoy(t, have)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "c1", "c2", "c3")
	e.next(t) // there are no other listeners
	e.quiet(t)
	expect(t, "versions", e.have[cds], map[string]string{"c1": "newer", "c2": old, "c3": "newer"})

	// Envoy has not run with what is in the cache.
	bed.Ran()
	e.quiet(t)
	if slices.Contains(files(t, bed.dir), "a.clusters.good") {
		t.Error("what Envoy never had is good")
	}

	s.start(t)
	e.until(t, cds, "c1", "c2")
	if got := e.have[cds]; got["c1"] == "newer" || got["c2"] == old {
		t.Errorf("Envoy has %v", got)
	}
	bed.file(t, "a.clusters.cache", e.have[cds]["c1"], e.have[cds]["c2"])
}

func TestRemovedResourcesLeaveAnAdoptedEnvoyAtOnce(t *testing.T) {
	bed, _, have := away(t)
	other := newServer(t, named(cluster("b1", 1)), nil)
	run := bed.follow(t, "b", other, nil)
	e := bed.envoy(t, have)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "b1", "c1", "c2")
	run.cancel()
	if err := run.wait(t); err != nil {
		t.Fatal(err)
	}
	bed.Remove("b")
	e.until(t, cds, "c1", "c2")
	expect(t, "what the other has", e.have[cds], have[cds])
}

func TestAnAdoptedEnvoyLosesRejectedResources(t *testing.T) {
	dir := t.TempDir()
	s := newServer(t, named(cluster("c1", 1), cluster("forbidden", 1)), named(listener("l")))
	bed := newBed(t, dir)
	bed.follow(t, "a", s, nil)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "c1", "forbidden")
	e.until(t, lds, "l")
	bed.file(t, "a.clusters.cache", "forbidden")
	bed.file(t, "a.listeners.cache", "l")
	bed.stop()
	bed = newBed(t, dir)
	bed.Keep(xdsproxy.Upstream{Name: "a", Check: forbid})
	e = bed.envoy(t, e.have)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "c1")
}

func TestResourcesOfAnAdoptedEnvoyAreCheckedAgain(t *testing.T) {
	dir := t.TempDir()
	s := newServer(t, named(cluster("c1", 1), cluster("forbidden", 1)), named(listener("l")))
	bed := newBed(t, dir)
	bed.follow(t, "a", s, nil)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "c1", "forbidden")
	e.until(t, lds, "l")
	bed.file(t, "a.listeners.cache", "l")
	bed.Ran()
	bed.file(t, "a.clusters.good", "forbidden")
	if err := s.caches[cds].UpdateResources(named(cluster("c2", 1)), []string{"forbidden"}); err != nil {
		t.Fatal(err)
	}
	e.until(t, cds, "c1", "c2", "forbidden")
	e.until(t, cds, "c1", "c2")
	bed.file(t, "a.clusters.cache", "c2")
	e.kill()
	bed.stop()
	s.grpc.Stop()

	bed = newBed(t, dir)
	bed.Keep(xdsproxy.Upstream{Name: "a", Check: forbid})
	for !bed.crash(t, "c1", "c2") {
	}
	e = bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "c1")
	e.until(t, lds, "l")
}
