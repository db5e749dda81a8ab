package xdsproxy_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

// crashing returns an edge whose Envoy has run well with c1, and has since got c2 and another c1.
func crashing(t *testing.T, dir string) (*bed, *server, string) {
	t.Helper()
	s := newServer(t, named(cluster("c1", 1)), named(listener("l")))
	bed := newBed(t, dir)
	bed.follow(t, "a", s, nil)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "c1")
	e.until(t, lds, "l")
	good := e.have[cds]["c1"]
	bed.file(t, "a.listeners.cache", "l")
	bed.Ran()
	bed.file(t, "a.clusters.good", good)
	bed.file(t, "a.listeners.good", "l")
	if err := s.caches[cds].UpdateResources(named(cluster("c1", 2), cluster("c2", 1)), nil); err != nil {
		t.Fatal(err)
	}
	e.until(t, cds, "c1", "c2")
	bed.file(t, "a.clusters.cache", "c2")
	e.kill()
	return bed, s, good
}

// crash starts an Envoy that ends unexpectedly.
func (b *bed) crash(t testing.TB, names ...string) (back bool) {
	t.Helper()
	e := b.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.until(t, cds, names...)
	e.kill()
	return b.Crashed()
}

func TestEnvoyGetsItsLastGoodResourcesAfterCrashes(t *testing.T) {
	dir := t.TempDir()
	bed, s, good := crashing(t, dir)
	expect(t, "back after one", bed.Crashed(), false)
	expect(t, "back after two", bed.crash(t, "c1", "c2"), false)
	for range 3 {
		s.next(t, cds) // subscription and two ACKs
	}
	expect(t, "back after three", bed.crash(t, "c1", "c2"), true)
	nack := s.next(t, cds)
	expect(t, "code", codes.Code(nack.GetErrorDetail().GetCode()), codes.Aborted)
	const why = "Envoy ended 3 times in a row with the newest clusters"
	if got := nack.GetErrorDetail().GetMessage(); !strings.HasPrefix(got, why) || !strings.Contains(got, "c1, c2") {
		t.Errorf("the server is told %q", got)
	}
	e := bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "c1")
	expect(t, "version", e.have[cds]["c1"], good)
	bed.file(t, "a.clusters.cache", why)
	for range 5 {
		expect(t, "back from what is good", bed.Crashed(), false)
	}
	bed.stop()
	s.grpc.Stop()

	// The rollback also holds for the next agent, and while other resources change.
	s.start(t)
	bed = newBed(t, dir)
	if got := bed.State("a").Refused; !strings.HasPrefix(got, why) {
		t.Errorf("the next agent says %q", got)
	}
	bed.follow(t, "a", s, nil)
	e = bed.envoy(t, e.have)
	e.subscribe(t, cds, lds)
	for s.next(t, cds).GetErrorDetail() == nil {
	}
	s.set(t, cluster("c3", 1))
	e.until(t, cds, "c1", "c3")
	expect(t, "version", e.have[cds]["c1"], good)

	// Until the server sends another version.
	s.set(t, cluster("c1", 3))
	e.until(t, cds, "c1", "c2", "c3")
	bed.is(t, "a", "is fine", func(s xdsproxy.State) bool { return s.Refused == "" })
}

func TestCrashesThatAreNotTheFaultOfResources(t *testing.T) {
	tests := map[string]func(*testing.T, *bed){
		"Envoy was healthy in between": func(t *testing.T, b *bed) {
			b.crash(t, "c1", "c2")
			e := b.envoy(t, nil)
			e.subscribe(t, cds, lds)
			e.until(t, cds, "c1", "c2")
			b.Ran()
			e.kill()
			b.Crashed()
			b.crash(t, "c1", "c2")
		},
		"Envoy ended before its first request": func(_ *testing.T, b *bed) {
			for range 5 {
				b.Crashed()
			}
		},
	}
	for name, crash := range tests {
		t.Run(name, func(t *testing.T) {
			bed, _, _ := crashing(t, t.TempDir())
			crash(t, bed)
			expect(t, "refused", bed.State("a").Refused, "")
		})
	}
}

func TestResourcesThatEnvoyHasHadForAWhileAreGood(t *testing.T) {
	s := newServer(t, named(cluster("c1", 1)), named(listener("l")))
	bed := newBed(t, t.TempDir())
	bed.Hasten(100*time.Millisecond, time.Hour, 200*time.Millisecond)
	bed.follow(t, "a", s, nil)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "c1")
	e.until(t, lds, "l")
	bed.Ran() // it has not run for long enough
	bed.file(t, "a.clusters.good", e.have[cds]["c1"])
	bed.file(t, "a.listeners.good", e.have[lds]["l"])
}

func TestANewUpstreamThatEnvoyCannotRunWithDoesNotAffectOthers(t *testing.T) {
	bed, _, _ := crashing(t, t.TempDir())
	e := bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "c1", "c2")
	bed.Ran() // the old upstream is good
	bad := newServer(t, named(cluster("bad", 1)), named(listener("lbad")))
	bed.follow(t, "b", bad, nil)
	e.until(t, cds, "bad", "c1", "c2")
	e.until(t, lds, "l", "lbad")
	e.kill()
	expect(t, "back after one", bed.Crashed(), false)
	bed.crash(t, "bad", "c1", "c2")
	expect(t, "back after three", bed.crash(t, "bad", "c1", "c2"), true)
	e = bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "c1", "c2")
	e.until(t, lds, "l")
	expect(t, "refused of the old", bed.State("a").Refused, "")
	for bad.next(t, lds).GetErrorDetail() == nil {
	}
}

func TestTheLastAnswerOfACrashedEnvoyIsIgnored(t *testing.T) {
	bed, _, good := crashing(t, t.TempDir())
	bed.Crashed()
	bed.crash(t, "c1", "c2")
	e := bed.envoy(t, nil)
	e.subscribe(t, cds)
	r := e.receive(t)
	expect(t, "back after three", bed.Crashed(), true)
	e.answer(t, r)
	select {
	case err := <-e.end:
		t.Log(err)
	case <-time.After(patience):
		t.Fatal("its stream is still open")
	}
	e = bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "c1")
	expect(t, "version", e.have[cds]["c1"], good)
	bed.file(t, "a.clusters.cache", good, "Envoy ended 3 times")
}

func TestChangedIsNotified(t *testing.T) {
	s := newServer(t, named(cluster("c1", 1)), nil)
	bed := newBed(t, t.TempDir())
	run := bed.follow(t, "a", s, nil)
	wait := func(what string, ok func(xdsproxy.State) bool) {
		t.Helper()
		for deadline := time.After(patience); !ok(bed.State("a")); {
			select {
			case <-bed.Changed():
			case <-deadline:
				t.Fatalf("%s: nothing was signalled", what)
			}
		}
	}
	wait("connected", connected)
	e := bed.envoy(t, nil, "c1")
	e.subscribe(t, cds)
	e.next(t)
	wait("refused", func(s xdsproxy.State) bool { return s.Refused != "" })
	run.cancel()
	wait("ended", func(s xdsproxy.State) bool { return !s.Connected })
	eventually.True(t, patience, "Run ends", func() error {
		select {
		case err := <-run.end:
			return err
		default:
			return errors.New("it goes on")
		}
	})
}
