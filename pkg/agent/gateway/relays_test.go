package gateway

import (
	"context"
	"errors"
	"maps"
	"math"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/fairlead/fairlead/pkg/envoy"
)

func TestAGatewayThatCannotBeResolvedNowKeepsItsAddresses(t *testing.T) {
	single := func(text string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(text)} }
	known := map[string][]netip.Prefix{
		"gateway-1": single("192.0.2.1/32"), "gateway-2": single("192.0.2.2/32"), "gateway-3": single("192.0.2.3/32"),
		"removed": single("192.0.2.9/32"),
	}
	lookup := func(_ context.Context, _, host string) ([]netip.Addr, error) {
		switch host {
		case "gateway-1":
			return nil, errors.New("DNS does not answer")
		case "gateway-2":
			return nil, &net.DNSError{IsNotFound: true}
		case "gateway-3":
			return []netip.Addr{netip.MustParseAddr("::ffff:192.0.2.30"), netip.MustParseAddr("2001:db8::3")}, nil
		}
		return make([]netip.Addr, 100), nil
	}
	got := resolveRelays(t.Context(), []string{"gateway-1", "gateway-2", "gateway-3", "many"}, known, lookup)
	if n := len(got["many"]); n != maxRelayAddresses {
		t.Errorf("a host has %d addresses", n)
	}
	delete(got, "many")
	want := map[string][]netip.Prefix{
		"gateway-1": single("192.0.2.1/32"),
		"gateway-3": {netip.MustParsePrefix("192.0.2.30/32"), netip.MustParsePrefix("2001:db8::3/128")},
	}
	if !maps.EqualFunc(got, want, slices.Equal[[]netip.Prefix]) {
		t.Errorf("got %v, want %v", got, want)
	}
	a := newTestAdmissions(t, t.TempDir(), 1)
	a.config.ProxyProtocol.Balancers = single("198.51.100.1/32")
	before := a.Form(envoy.PublicListener)
	if !a.setRelays(got) || a.setRelays(want) {
		t.Error("the addresses changed once")
	}
	if after := a.Form(envoy.PublicListener); after == before {
		t.Errorf("the listener still has the form %s", after)
	}
	if peer := "peer_gateway-1"; a.Form(peer) != a.config.ProxyProtocol.Form() {
		t.Errorf("an Envoy cluster has the form %s", a.Form(peer))
	}
}

// TestOnlyABalancerHasManySilentConnections has a balancer in the /64 of others.
func TestOnlyABalancerHasManySilentConnections(t *testing.T) {
	a := newTestAdmissions(t, t.TempDir(), 1)
	a.config.ProxyProtocol.Balancers = []netip.Prefix{
		netip.MustParsePrefix("2001:db8::/128"), netip.MustParsePrefix("2001:db8::5/128"),
		netip.MustParsePrefix("192.0.2.0/31"),
	}
	for address, want := range map[string]int{
		"2001:db8::": math.MaxInt, "2001:db8::5": math.MaxInt, "2001:db8::6": silentPerSource,
		"192.0.2.1": math.MaxInt, "192.0.2.2": silentPerSource,
	} {
		if got := a.maxSilent(a.silentSource(netip.MustParseAddr(address))); got != want {
			t.Errorf("%s may have %d, want %d", address, got, want)
		}
	}
	if a.silentSource(netip.MustParseAddr("2001:db8::6")) == a.silentSource(netip.MustParseAddr("2001:db8::5")) {
		t.Error("the balancer and another source are the same")
	}
}
