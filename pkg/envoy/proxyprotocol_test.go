package envoy_test

import (
	"net/netip"
	"slices"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/fairlead/fairlead/pkg/envoy"
)

// TestGatewaysMayOnlyRelayReverseTunnels has a load balancer, and other gateways.
func TestGatewaysMayOnlyRelayReverseTunnels(t *testing.T) {
	_, _, with := admitted(t, 50)
	p := envoy.ProxyProtocol{
		Balancers: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/28")},
		Gateways:  []netip.Prefix{netip.MustParsePrefix("10.244.0.7/32")},
	}
	l := &listenerv3.Listener{}
	if err := p.Accept(with).UnmarshalTo(l); err != nil {
		t.Fatal(err)
	}
	for _, chain := range l.GetFilterChains() {
		var from []string
		for _, r := range chain.GetFilterChainMatch().GetDirectSourcePrefixRanges() {
			from = append(from, r.GetAddressPrefix())
		}
		want := []string{"192.0.2.0"}
		if chain.GetTransportSocket() != nil { // TLS of reverse tunnels ends here
			want = append(want, "10.244.0.7")
		}
		if !slices.Equal(from, want) {
			t.Errorf("filter chain %s accepts %q, want %q", chain.GetName(), from, want)
		}
	}
	// A flood of connections that will be closed does not reach the agent, as elsewhere.
	var names []string
	for _, f := range l.GetDefaultFilterChain().GetFilters() {
		names = append(names, f.GetName())
	}
	if want := []string{
		"envoy.filters.network.local_ratelimit", "envoy.filters.network.ratelimit", "envoy.filters.network.direct_response",
	}; !slices.Equal(names, want) {
		t.Errorf("other connections pass %q, want %q", names, want)
	}
}
