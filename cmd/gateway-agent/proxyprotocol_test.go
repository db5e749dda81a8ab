package main

import (
	"slices"
	"testing"

	"github.com/fairlead/fairlead/pkg/envoy"
)

func TestNetworksOfBalancersAreNormalised(t *testing.T) {
	o := options{balancers: []string{"192.0.2.7/24", "::ffff:198.51.100.7/120", "2001:db8::7/64"}}
	var got envoy.ProxyProtocol
	if err := o.proxyProtocol(&got); err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, n := range got.Balancers {
		texts = append(texts, n.String())
	}
	if want := []string{"192.0.2.0/24", "198.51.100.0/24", "2001:db8::/64"}; !slices.Equal(texts, want) {
		t.Errorf("got %q, want %q", texts, want)
	}
}
