package xdsproxy_test

import (
	"maps"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

// local returns a listener of an address that several upstreams serve.
func local(name string) *listenerv3.Listener {
	return &listenerv3.Listener{Name: name, Address: pipe("local.sock")}
}

// errMoved is what an xds-server answers after a tunnel was moved away.
var errMoved = status.Error(codes.Unavailable, "the tunnel is not known")

// changes expects one listener to be removed and then another one to be added. Envoy rejects the opposite order.
func (e *envoy) changes(t testing.TB, removed, added string) {
	t.Helper()
	expect(t, "removed", e.next(t).GetRemovedResources(), []string{removed})
	expect(t, "added", names(e.next(t)), []string{added})
}

// rivals are two installations. The first has a listener, and the second will want its address.
type rivals struct {
	bed           *bed
	envoy         *envoy
	first, second *server
	other         *run // of the second
}

// newRivals starts both, and an Envoy that has the listeners of the first.
func newRivals(t *testing.T, more ...types.ResourceWithName) rivals {
	t.Helper()
	r := rivals{bed: newBed(t, t.TempDir()), second: newServer(t, nil, nil)}
	served := named(append(more, local("first"))...)
	r.first = newServer(t, nil, served)
	r.bed.follow(t, "a", r.first, nil)
	r.other = r.bed.follow(t, "b", r.second, nil)
	r.envoy = r.bed.envoy(t, nil)
	r.envoy.subscribe(t, cds, lds)
	r.envoy.until(t, lds, slices.Collect(maps.Keys(served))...)
	return r
}

func TestTheListenerThatWasOfferedLastHasTheAddress(t *testing.T) {
	r := newRivals(t, listener("own"))
	bed, e, first, second := r.bed, r.envoy, r.first, r.second

	second.caches[lds].SetResources(named(local("second"))) // the Cluster arrives there
	e.changes(t, "first", "second")
	bed.is(t, "a", "has no error", func(s xdsproxy.State) bool { return s.Refused == "" && s.Connected })
	bed.file(t, "b.listeners.cache", "second")

	first.reject(t, errMoved) // it has left
	bed.is(t, "a", "is disconnected", func(s xdsproxy.State) bool { return !s.Connected })
	e.quiet(t)

	first.reject(t, nil) // it is moved back, before the other installation has noticed
	e.changes(t, "second", "first")
	second.reject(t, errMoved)
	bed.is(t, "b", "is disconnected", func(s xdsproxy.State) bool { return !s.Connected })
	e.quiet(t)
}

func TestAListenerReturnsWhenTheOtherUpstreamEnds(t *testing.T) {
	for name, ends := range map[string]func(*testing.T, *bed, *server, *run){
		"by its stream": func(t *testing.T, _ *bed, s *server, _ *run) { t.Helper(); s.reject(t, errMoved) },
		"by its removal": func(_ *testing.T, b *bed, _ *server, r *run) {
			r.cancel()
			b.Remove("b")
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRivals(t)
			bed, e, second := r.bed, r.envoy, r.second
			second.caches[lds].SetResources(named(local("second")))
			e.changes(t, "first", "second")
			ends(t, bed, second, r.other)
			e.changes(t, "second", "first")
		})
	}
}

// TestAnAgentThatStartsKeepsTheListenerThatHasTheAddress: both installations are unreachable then.
func TestAnAgentThatStartsKeepsTheListenerThatHasTheAddress(t *testing.T) {
	r := newRivals(t)
	bed, e, second := r.bed, r.envoy, r.second
	second.caches[lds].SetResources(named(local("second")))
	e.changes(t, "first", "second")
	bed.file(t, "b.listeners.cache", "second")
	e.kill()
	bed.stop()
	bed.serve(t)
	e = bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.until(t, lds, "second")
	e.quiet(t)
}

// TestARealEnvoyGivesAnAddressToAnotherListener: connections that are open continue, and new ones soon work again.
func TestARealEnvoyGivesAnAddressToAnotherListener(t *testing.T) {
	out := greeter(t)
	first := newServer(t, named(to("out-a", out)), named(from(t, "in-a", pipe("in.sock"), "out-a")))
	second := newServer(t, named(to("out-b", out)), nil)
	bed := newBed(t, t.TempDir())
	bed.follow(t, "a", first, nil)
	bed.follow(t, "b", second, nil)
	envoytest.Start(t, filepath.Dir(bed.socket), []byte(bootstrap))
	bed.greets(t)
	second.caches[lds].SetResources(named(from(t, "in-b", pipe("in.sock"), "out-b")))
	bed.file(t, "b.listeners.cache", "in-b")
	began, failed := time.Now(), 0
	for {
		conn, err := net.Dial("unix", filepath.Join(filepath.Dir(bed.socket), "in.sock"))
		if err == nil {
			_ = conn.Close()
			break
		}
		if failed++; time.Since(began) > patience {
			t.Fatal(err)
		}
	}
	t.Logf("%d connections failed, for %s", failed, time.Since(began))
	bed.greets(t)
	if refused := bed.State("b").Refused; refused != "" {
		t.Errorf("Envoy rejects it: %s", refused)
	}
}
