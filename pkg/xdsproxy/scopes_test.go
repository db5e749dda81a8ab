package xdsproxy_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

// scope returns the routes of requests with the header x-scope: name. They answer with a text.
func scope(name, text string) *routev3.ScopedRouteConfiguration {
	return &routev3.ScopedRouteConfiguration{
		Name: name,
		Key: &routev3.ScopedRouteConfiguration_Key{Fragments: []*routev3.ScopedRouteConfiguration_Key_Fragment{{
			Type: &routev3.ScopedRouteConfiguration_Key_Fragment_StringKey{StringKey: name},
		}}},
		RouteConfiguration: &routev3.RouteConfiguration{
			Name: name,
			VirtualHosts: []*routev3.VirtualHost{{Name: "all", Domains: []string{"*"}, Routes: []*routev3.Route{{
				Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
				Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{
					Status: 200,
					Body:   &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: text}},
				}},
			}}}},
			ValidateClusters: wrapperspb.Bool(false),
		},
	}
}

func packed(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	body, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// scoped returns a listener that selects the scope by the header x-scope.
func scoped(t testing.TB, name string) *listenerv3.Listener {
	t.Helper()
	manager := &hcmv3.HttpConnectionManager{
		StatPrefix: name,
		HttpFilters: []*hcmv3.HttpFilter{{
			Name:       "envoy.filters.http.router",
			ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed(t, &routerv3.Router{})},
		}},
		RouteSpecifier: &hcmv3.HttpConnectionManager_ScopedRoutes{ScopedRoutes: &hcmv3.ScopedRoutes{
			Name: "by_header",
			ScopeKeyBuilder: &hcmv3.ScopedRoutes_ScopeKeyBuilder{
				Fragments: []*hcmv3.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder{{
					Type: &hcmv3.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder_HeaderValueExtractor_{
						HeaderValueExtractor: &hcmv3.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder_HeaderValueExtractor{
							Name:        "x-scope",
							ExtractType: &hcmv3.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder_HeaderValueExtractor_Index{Index: 0},
						},
					},
				}},
			},
			ConfigSpecifier: &hcmv3.ScopedRoutes_ScopedRds{ScopedRds: &hcmv3.ScopedRds{
				ScopedRdsConfigSource: &corev3.ConfigSource{
					ResourceApiVersion:    corev3.ApiVersion_V3,
					ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
				},
			}},
		}},
	}
	return &listenerv3.Listener{
		Name: name, Address: pipe(name + ".sock"),
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name:       "envoy.filters.network.http_connection_manager",
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(t, manager)},
		}}}},
	}
}

// answers waits until a request with a scope gets a text; "404": no scope has it.
func (b *bed) answers(t testing.TB, scope, want string) {
	t.Helper()
	envoytest.Eventually(t, "scope "+scope+" answers "+want, func() error {
		conn, err := net.Dial("unix", filepath.Join(filepath.Dir(b.socket), "in.sock"))
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nhost: a\r\nx-scope: %s\r\n\r\n", scope); err != nil {
			return err
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if got := string(body); err != nil || got != want && fmt.Sprint(response.StatusCode) != want {
			return errors.Join(err, fmt.Errorf("%d %q", response.StatusCode, got))
		}
		return nil
	})
}

func (s *server) setScopes(t testing.TB, all ...*routev3.ScopedRouteConfiguration) {
	t.Helper()
	resources := map[string]types.Resource{}
	for _, r := range all {
		resources[r.GetName()] = r
	}
	s.caches[srds].SetResources(resources)
}

// TestARealEnvoyHasItsScopesWithoutAnXDSServer starts the agent and Envoy of a gateway from the disk alone.
func TestARealEnvoyHasItsScopesWithoutAnXDSServer(t *testing.T) {
	s := newServer(t, named(to("out", greeter(t))), named(scoped(t, "in")))
	s.setScopes(t, scope("one", "first"), scope("two", "second"))
	bed := newBed(t, t.TempDir())
	bed.follow(t, "a", s, nil)
	real := bed.startEnvoy(t)
	bed.answers(t, "one", "first")
	bed.answers(t, "two", "second")
	bed.answers(t, "three", "404")
	bed.file(t, "a.scopes.cache", "first", "second")
	bed.Ran()
	bed.file(t, "a.scopes.good", "first", "second")

	// A change of one scope reaches Envoy alone. What Envoy rejects leaves the others, and the xds-server gets the reason.
	s.setScopes(t, scope("one", "changed"), scope("two", "second"))
	bed.answers(t, "one", "changed")
	expect(t, "scopes that were sent for a change of one", len(s.last(srds).GetResources()), 1)
	double := scope("double", "never")
	double.Key = scope("two", "").GetKey()
	s.setScopes(t, scope("one", "changed again"), scope("two", "second"), double)
	bed.answers(t, "one", "changed again")
	bed.is(t, "a", "is rejected", func(s xdsproxy.State) bool { return strings.Contains(s.Refused, "double") })
	bed.answers(t, "two", "second")
	s.setScopes(t, scope("one", "last"), scope("three", "third"))
	bed.answers(t, "two", "404")
	bed.file(t, "a.scopes.cache", "last", "third")

	bed, real = bed.restartFromDisk(t, s, real)
	bed.answers(t, "one", "last")
	bed.answers(t, "three", "third")
	bed.answers(t, "two", "404")
	bed.is(t, "a", "is cached", func(s xdsproxy.State) bool { return s.Cached && !s.Connected })

	// A scope that is removed meanwhile goes when the xds-server answers again.
	s.setScopes(t, scope("one", "last"))
	bed.restartAgent(t, s)
	bed.answers(t, "three", "404")
	bed.answers(t, "one", "last")

	// A damaged cache of scopes only delays them until the xds-server answers.
	bed = bed.restartDamaged(t, real, "a.scopes.cache", "a.scopes.good")
	bed.follow(t, "a", s, nil)
	bed.startEnvoy(t)
	bed.answers(t, "one", "last")
}

// TestScopesReturnWithTheirListener: an Envoy that loses its last listener with scopes forgets them.
func TestScopesReturnWithTheirListener(t *testing.T) {
	s := newServer(t, nil, named(scoped(t, "in")))
	s.setScopes(t, scope("one", "first"), scope("two", "second"))
	bed := newBed(t, t.TempDir())
	bed.follow(t, "a", s, nil)
	bed.startEnvoy(t)
	bed.answers(t, "one", "first")
	// A changed listener has them at once.
	changed := scoped(t, "in")
	changed.PerConnectionBufferLimitBytes = wrapperspb.UInt32(1 << 15)
	s.caches[lds].SetResources(named(changed))
	envoytest.Eventually(t, "Envoy has both", func() error {
		if len(s.last(lds).GetResources()) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	bed.answers(t, "one", "first")
	for _, text := range []string{"again", "once more"} {
		s.caches[lds].SetResources(nil)
		bed.gone(t)
		s.setScopes(t, scope("one", text), scope("two", "second"))
		s.caches[lds].SetResources(named(scoped(t, "in")))
		bed.answers(t, "one", text)
		bed.answers(t, "two", "second")
	}
}

// TestScopesReturnAfterAnXDSServerWithoutThem: it is used for so long that the listener with scopes has drained. A real
// Envoy then has no subscription of scopes, but neither says so nor subscribes again with the next such listener.
func TestScopesReturnAfterAnXDSServerWithoutThem(t *testing.T) {
	s := newServer(t, nil, named(scoped(t, "in")))
	s.setScopes(t, scope("one", "first"), scope("two", "second"))
	bed := newBed(t, t.TempDir())
	bed.follow(t, "a", s, nil)
	real := bed.startEnvoy(t, "--drain-time-s", "1")
	bed.answers(t, "one", "first")
	restart := func(old bool, listeners ...types.ResourceWithName) {
		s.mu.Lock()
		s.old = old
		s.mu.Unlock()
		s.grpc.Stop()
		s.caches[lds].SetResources(named(listeners...))
		s.start(t)
	}
	for range 2 {
		restart(true)
		bed.gone(t)
		envoytest.Eventually(t, "the listener has drained", func() error {
			if n := real.Sum(t, `^listener_manager\.total_listeners_draining$`); n > 0 {
				return fmt.Errorf("%d drain", n)
			}
			return nil
		})
		restart(false, scoped(t, "in"))
		bed.answers(t, "one", "first")
		bed.answers(t, "two", "second")
	}
}

// gone waits until nothing listens.
func (b *bed) gone(t testing.TB) {
	t.Helper()
	envoytest.Eventually(t, "nothing listens", func() error {
		conn, err := net.Dial("unix", filepath.Join(filepath.Dir(b.socket), "in.sock"))
		if err != nil {
			return nil
		}
		_ = conn.Close()
		return errors.New("it does")
	})
}

// TestOnlyAnEnvoyWithScopesHasThemRequested: an edge never has, and an xds-server that predates scopes would close the
// stream of an agent that requests them.
func TestOnlyAnEnvoyWithScopesHasThemRequested(t *testing.T) {
	s := newServer(t, named(cluster("c", 1)), named(listener("l")))
	bed := newBed(t, t.TempDir())
	bed.follow(t, "a", s, nil)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "c")
	e.until(t, lds, "l")
	s.none(t, srds)
	s.setScopes(t, scope("one", "first"))
	e.subscribe(t, srds)
	e.until(t, srds, "one")
	s.next(t, srds)
}

// TestClustersComeBeforeScopesAndGoAfterThem: the xds-server sends scopes first, which is the wrong order.
func TestClustersComeBeforeScopesAndGoAfterThem(t *testing.T) {
	s := newServer(t, named(cluster("c", 1)), named(listener("l")))
	bed := newBed(t, t.TempDir())
	bed.follow(t, "a", s, nil)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds, lds, srds)
	for answered := map[string]bool{}; len(answered) < 3; { // also with the first answer without scopes
		answered[e.next(t).GetTypeUrl()] = true
	}
	// While Envoy has not answered yet, everything else arrives.
	s.caches[cds].SetResources(named(cluster("c", 2)))
	first := e.receive(t)
	expect(t, "the type of the first response", first.GetTypeUrl(), cds)
	s.caches[lds].SetResources(named(listener("l"), listener("m")))
	s.setScopes(t, scope("one", "first"))
	for _, typeURL := range []string{lds, srds} {
		envoytest.Eventually(t, "the change arrives", func() error {
			if s.last(typeURL).GetResources() == nil {
				return errors.New("not yet")
			}
			return nil
		})
	}
	time.Sleep(pause)
	e.answer(t, first)
	expect(t, "the second", e.next(t).GetTypeUrl(), srds)
	expect(t, "the third", e.next(t).GetTypeUrl(), lds)
}

// TestAnXDSServerWithoutScopesIsStillUsed: an agent with scopes, on disk or of a newer xds-server, meets an older one.
func TestAnXDSServerWithoutScopesIsStillUsed(t *testing.T) {
	dir := t.TempDir()
	s := newServer(t, named(cluster("c", 1)), named(listener("l")))
	s.setScopes(t, scope("one", "first"))
	bed := newBed(t, dir)
	bed.follow(t, "a", s, nil)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds, lds, srds)
	e.until(t, srds, "one")
	bed.file(t, "a.scopes.cache", "first")

	s.mu.Lock()
	s.old = true
	s.mu.Unlock()
	s.grpc.Stop()
	s.caches[cds].SetResources(named(cluster("c", 1), cluster("d", 1)))
	s.start(t)
	e.until(t, cds, "c", "d")
	bed.is(t, "a", "is connected", connected)
	expect(t, "scopes of Envoy", len(e.have[srds]), 1)

	// So does an agent that starts with them, and an Envoy that starts then gets everything else at once.
	bed.stop()
	bed = newBed(t, dir)
	bed.follow(t, "a", s, nil)
	bed.is(t, "a", "is connected", connected)
	e = bed.envoy(t, nil)
	e.subscribe(t, cds, lds, srds)
	e.until(t, cds, "c", "d")
	e.until(t, lds, "l")

	// A newer one serves them again.
	s.mu.Lock()
	s.old = false
	s.mu.Unlock()
	s.setScopes(t, scope("one", "first"), scope("two", "second"))
	s.grpc.Stop()
	s.start(t)
	e.until(t, srds, "one", "two")
}

// TestAnEnvoyWithoutScopesOnDiskOrServerGetsItsListeners: a scope that never comes must not delay anything.
func TestAnEnvoyWithoutScopesOnDiskOrServerGetsItsListeners(t *testing.T) {
	s := newServer(t, named(cluster("c", 1)), named(listener("l")))
	s.old = true
	bed := newBed(t, t.TempDir())
	bed.follow(t, "a", s, nil)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds, srds, lds)
	e.until(t, cds, "c")
	e.until(t, lds, "l")
	s.caches[lds].SetResources(named(listener("l"), listener("m")))
	e.until(t, lds, "l", "m")
	bed.file(t, "a.listeners.cache", "m")
	envoytest.Eventually(t, "it is stable without scopes", func() error {
		bed.Ran()
		_, err := os.Stat(filepath.Join(bed.dir, "a.listeners.good"))
		return err
	})
}
