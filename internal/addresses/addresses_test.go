package addresses

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
)

func TestAddresses(t *testing.T) {
	const up = net.FlagUp
	with := func(name string, flags net.Flags, cidrs ...string) netInterface {
		i := netInterface{Interface: net.Interface{Name: name, Flags: flags}}
		for _, c := range cidrs {
			ip, network, err := net.ParseCIDR(c)
			if err != nil {
				t.Fatal(err)
			}
			i.addresses = append(i.addresses, &net.IPNet{IP: ip, Mask: network.Mask})
		}
		return i
	}
	var services, many []string
	for n := range 100 {
		services = append(services, fmt.Sprintf("10.96.0.%d/32", n+1))
		many = append(many, fmt.Sprintf("10.1.0.%d/24", 100-n))
	}
	tests := map[string]struct {
		all  []netInterface
		want string
	}{
		"in order": {
			[]netInterface{
				with("eth1", up, "192.0.2.9/24", "2001:db8::1/64"),
				with("eth0", up, "10.0.0.10/8", "10.0.0.9/8", "192.0.2.9/24"),
			},
			"10.0.0.9 10.0.0.10 192.0.2.9 2001:db8::1",
		},
		"none of Services": {
			[]netInterface{with("kube-ipvs0", up, services...), with("eth0", up, "192.0.2.1/24")},
			"192.0.2.1",
		},
		"none that others can't reach": {
			[]netInterface{
				with("lo", up|net.FlagLoopback, "127.0.0.1/8", "192.0.2.7/32"),
				with("eth0", up, "fe80::1/64", "169.254.1.1/16", "192.0.2.1/24"),
				with("eth9", 0, "192.0.2.8/24"),
			},
			"192.0.2.1",
		},
		"none": {},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := strings.Join(of(tc.all), " "); got != tc.want {
				t.Errorf("got %s", got)
			}
		})
	}
	bounded := of([]netInterface{with("cni0", up, many...)})
	if len(bounded) != Max || bounded[0] != "10.1.0.1" || !slices.Contains(bounded, "10.1.0.32") {
		t.Errorf("%d addresses: %v", len(bounded), bounded)
	}
}
