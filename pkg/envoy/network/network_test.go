package network_test

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	dfpclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dynamic_forward_proxy/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	upstreamhttpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/envoy/network"
	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

func prefixes(all ...string) (out []netip.Prefix) {
	for _, p := range all {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// edge returns a listener and the Envoy clusters of an edge.
func edge() (listener *anypb.Any, clusters []*anypb.Any) {
	e := network.Edge{
		Domain: "tunnels.example.com", Node: "edge_a-1", Excluded: prefixes("10.1.3.4/32"),
		Network: model.Network{
			EgressID: "eeeeeeeeeeeeeeeeeeee", CIDRs: prefixes("10.1.0.0/16"), Suffixes: []string{"svc.test"},
			Targets: []model.Target{
				{Name: "a.example.com", Address: model.Endpoint{Host: "10.9.0.1", Port: 443}},
				{Name: "b.example.com", Address: model.Endpoint{Host: "10.1.0.9", Port: 22}},
			},
		},
	}
	m := &hcmv3.HttpConnectionManager{HttpFilters: []*hcmv3.HttpFilter{typed.HTTPFilter("router", &routerv3.Router{})}}
	e.Manager(m)
	for _, c := range e.Clusters() {
		clusters = append(clusters, typed.Pack(c))
	}
	return typed.Pack(&listenerv3.Listener{FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{
		{Name: "manager", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: typed.Pack(m)}},
	}}}}), clusters
}

// dials returns what a resource dials.
func dials(t *testing.T, resource *anypb.Any) []netip.Prefix {
	t.Helper()
	all, err := network.Dials(resource)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func contains(all []netip.Prefix, addr string) bool {
	at := netip.MustParseAddr(addr)
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(at) })
}

// manager returns the HTTP connection manager of a listener.
func manager(t *testing.T, listener *anypb.Any) *hcmv3.HttpConnectionManager {
	t.Helper()
	l, m := &listenerv3.Listener{}, &hcmv3.HttpConnectionManager{}
	if err := listener.UnmarshalTo(l); err != nil {
		t.Fatal(err)
	}
	if err := l.GetFilterChains()[0].GetFilters()[0].GetTypedConfig().UnmarshalTo(m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestTheListOfAddressesIsShort: a wide network without the addresses that no edge dials consists of hundreds of parts.
func TestTheListOfAddressesIsShort(t *testing.T) {
	gateways := func(n int) (all []netip.Prefix) {
		for i := range n {
			all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2 + byte(i/256), byte(i)}), 32))
		}
		return all
	}
	for name, tc := range map[string]struct {
		cidrs, excluded []netip.Prefix
		remain          bool // the list has what remains
	}{
		"a network":                        {cidrs: prefixes("10.1.0.0/16"), remain: true},
		"a network with a gateway":         {cidrs: prefixes("10.1.0.0/16"), excluded: prefixes("10.1.3.4/32"), remain: true},
		"all IPv4 addresses":               {cidrs: prefixes("0.0.0.0/0"), excluded: gateways(2)},
		"all IPv6 addresses":               {cidrs: prefixes("::/0"), excluded: gateways(2)},
		"all addresses":                    {cidrs: prefixes("0.0.0.0/0", "::/0"), excluded: gateways(200)},
		"more gateways than agents accept": {cidrs: prefixes("0.0.0.0/0"), excluded: gateways(300), remain: true},
	} {
		t.Run(name, func(t *testing.T) {
			e := network.Edge{
				Domain: "tunnels.example.com", Node: "edge-a", Excluded: tc.excluded,
				Network: model.Network{EgressID: "eeeeeeeeeeeeeeeeeeee", CIDRs: tc.cidrs},
			}
			cluster := e.Clusters()[0]
			config := &dfpclusterv3.ClusterConfig{}
			if err := cluster.GetClusterType().GetTypedConfig().UnmarshalTo(config); err != nil {
				t.Fatal(err)
			}
			filter := config.GetDnsCacheConfig().GetResolvedAddressFilter()
			if filter.GetInvertMatch() != tc.remain || !tc.remain &&
				len(filter.GetRanges()) > len(model.NeverDialled())+len(tc.excluded)+1 {
				t.Errorf("%d ranges, inverted: %t", len(filter.GetRanges()), filter.GetInvertMatch())
			}
			want := model.Without(tc.cidrs, slices.Concat(model.NeverDialled(), tc.excluded))
			got := dials(t, typed.Pack(cluster))
			if extra, lost := model.Without(got, want), model.Without(want, got); len(extra)+len(lost) > 0 {
				t.Errorf("it dials %v too, and not %v", extra, lost)
			}
		})
	}
}

// TestAnOwnerNarrowsWhatAnEdgeDials checks the listener, which leads to targets, and both Envoy clusters.
func TestAnOwnerNarrowsWhatAnEdgeDials(t *testing.T) {
	listener, clusters := edge()
	if all := dials(t, listener); !contains(all, "10.9.0.1") || contains(all, "10.1.0.5") {
		t.Fatalf("the listener dials %v", all)
	}
	if all := dials(t, clusters[0]); !contains(all, "10.1.0.5") || contains(all, "10.9.0.1") || contains(all, "10.1.3.4") {
		t.Fatalf("the Envoy cluster dials %v", all)
	}
	original := proto.CloneOf(listener)
	allowed := network.Allowed{
		CIDRs: prefixes("10.1.0.0/24", "192.168.0.0/16"), Ports: []model.PortRange{{First: 443, Last: 443}},
	}
	narrowed := network.Narrow(listener, allowed)
	if !proto.Equal(listener, original) {
		t.Error("the argument has changed")
	}
	for _, one := range append([]*anypb.Any{narrowed}, network.Narrow(clusters[0], allowed)) {
		all := dials(t, one)
		if contains(all, "10.1.1.5") || contains(all, "192.168.0.1") || contains(all, "10.9.0.1") {
			t.Errorf("%s dials %v", one.GetTypeUrl(), all)
		}
	}
	if all := dials(t, network.Narrow(clusters[0], allowed)); !contains(all, "10.1.0.5") {
		t.Errorf("an address that is allowed has gone: %v are left", all)
	}
	// The first target is elsewhere, the second at another port.
	if n := len(manager(t, narrowed).GetRouteConfig().GetVirtualHosts()); n != 2 {
		t.Errorf("%d virtual hosts remain, want 2 without targets", n)
	}
	if got := checks(t, network.Narrow(clusters[0], allowed)); !slices.Equal(got, append([]string{"owner"},
		checks(t, clusters[0])...)) {
		t.Errorf("the filters are %v: no one restricts ports", got)
	}
	allowed.Targets = []model.Endpoint{{Host: "10.9.0.1", Port: 443}}
	narrowed = network.Narrow(listener, allowed)
	if !contains(dials(t, narrowed), "10.9.0.1") || len(manager(t, narrowed).GetRouteConfig().GetVirtualHosts()) != 3 {
		t.Error("a target that is allowed has gone")
	}
}

// checks returns the names of the filters of an Envoy cluster.
func checks(t *testing.T, cluster *anypb.Any) (names []string) {
	t.Helper()
	c, options := &clusterv3.Cluster{}, &upstreamhttpv3.HttpProtocolOptions{}
	if err := cluster.UnmarshalTo(c); err != nil {
		t.Fatal(err)
	}
	if err := c.GetTypedExtensionProtocolOptions()[typed.HTTPProtocols].UnmarshalTo(options); err != nil {
		t.Fatal(err)
	}
	for _, f := range options.GetHttpFilters() {
		names = append(names, f.GetName())
	}
	return names
}

// TestAHostileServerCannotWidenWhatAnOwnerAllows has resources of a compromised xds-server for an edge whose owner
// allows a target by its name, so that the addresses of targets are not restricted.
func TestAHostileServerCannotWidenWhatAnOwnerAllows(t *testing.T) {
	allowed := network.Allowed{
		CIDRs: prefixes("10.1.0.0/24"), Ports: []model.PortRange{{First: 443, Last: 443}},
		Targets: []model.Endpoint{{Host: "bmc.example.com", Port: 443}, {Host: "10.9.0.1", Port: 443}},
	}
	listener, clusters := edge()
	hosts := func(change func(*hcmv3.HttpConnectionManager)) (names []string) {
		l := &listenerv3.Listener{}
		if err := listener.UnmarshalTo(l); err != nil {
			t.Fatal(err)
		}
		m := manager(t, listener)
		change(m)
		l.FilterChains[0].Filters[0].GetTypedConfig().Value = typed.Pack(m).GetValue()
		for _, h := range manager(t, network.Narrow(typed.Pack(l), allowed)).GetRouteConfig().GetVirtualHosts() {
			names = append(names, h.GetName())
		}
		return names
	}
	const target = "a.example.com"
	if got := hosts(func(*hcmv3.HttpConnectionManager) {}); !slices.Contains(got, target) {
		t.Fatalf("the hosts are %v, without the target that is allowed", got)
	}
	t.Run("a target without the filter that replaces the destination", func(t *testing.T) {
		got := hosts(func(m *hcmv3.HttpConnectionManager) {
			m.HttpFilters = slices.DeleteFunc(m.HttpFilters, func(f *hcmv3.HttpFilter) bool { return f.GetName() == "targets" })
		})
		if slices.Contains(got, target) {
			t.Errorf("the hosts are %v", got)
		}
	})
	t.Run("addresses as a target", func(t *testing.T) {
		got := hosts(func(m *hcmv3.HttpConnectionManager) {
			for _, h := range m.GetRouteConfig().GetVirtualHosts() {
				if h.GetName() == "addresses" {
					other := proto.CloneOf(h.Routes[0])
					other.GetRoute().ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: "targets_edge_a-1"}
					h.Routes = append([]*routev3.Route{other}, h.Routes...)
				}
			}
		})
		if slices.Contains(got, "addresses") {
			t.Errorf("the hosts are %v", got)
		}
	})
	cluster := func(change func(*clusterv3.Cluster)) *anypb.Any {
		c := &clusterv3.Cluster{}
		if err := clusters[0].UnmarshalTo(c); err != nil {
			t.Fatal(err)
		}
		change(c)
		return network.Narrow(typed.Pack(c), allowed)
	}
	t.Run("a DNS cache with the name of one for targets", func(t *testing.T) {
		all := dials(t, cluster(func(c *clusterv3.Cluster) {
			config := &dfpclusterv3.ClusterConfig{}
			if err := c.GetClusterType().GetTypedConfig().UnmarshalTo(config); err != nil {
				t.Fatal(err)
			}
			config.GetDnsCacheConfig().Name = "targets_edge_a-1_0000000000000000"
			c.GetClusterType().TypedConfig = typed.Pack(config)
		}))
		if contains(all, "10.1.1.5") || !contains(all, "10.1.0.5") {
			t.Errorf("it dials %v", all)
		}
	})
	t.Run("no filters", func(t *testing.T) {
		narrowed := cluster(func(c *clusterv3.Cluster) { c.TypedExtensionProtocolOptions = nil })
		if m, err := narrowed.UnmarshalNew(); err == nil {
			t.Errorf("Envoy gets %v, which restricts no ports", m)
		}
	})
}

func TestNothingIsDialledIfNothingIsAllowed(t *testing.T) {
	listener, clusters := edge()
	for _, one := range append(clusters, listener) {
		if all := dials(t, network.Narrow(one, network.Allowed{})); len(all) > 0 {
			t.Errorf("%s dials %v", one.GetTypeUrl(), all)
		}
	}
}

func TestWhatCannotBeNarrowedIsNotUsed(t *testing.T) {
	listener, clusters := edge()
	broken := func(resource *anypb.Any, from, to string) *anypb.Any {
		value := bytes.Replace(resource.GetValue(), []byte(from), []byte(to), 1)
		if bytes.Equal(value, resource.GetValue()) {
			t.Fatalf("%s does not contain %q", resource.GetTypeUrl(), from)
		}
		return &anypb.Any{TypeUrl: resource.GetTypeUrl(), Value: value}
	}
	without := &clusterv3.Cluster{ClusterDiscoveryType: &clusterv3.Cluster_ClusterType{
		ClusterType: &clusterv3.Cluster_CustomClusterType{TypedConfig: typed.Pack(&dfpclusterv3.ClusterConfig{})},
	}}
	for name, one := range map[string]*anypb.Any{
		"a listener with a string that is not UTF-8":       broken(listener, "svc.test", "svc.\xffest"),
		"an Envoy cluster with a string that is not UTF-8": broken(clusters[0], "network_", "net\xffork_"),
		"an Envoy cluster without a DNS cache":             typed.Pack(without),
	} {
		t.Run(name, func(t *testing.T) {
			narrowed := network.Narrow(one, network.Allowed{})
			if m, err := narrowed.UnmarshalNew(); err == nil {
				t.Errorf("Envoy gets %v", m)
			}
		})
	}
}

func TestOtherResourcesAreNotNarrowed(t *testing.T) {
	one := typed.Pack(&clusterv3.Cluster{Name: "gateway-0_edge-a"})
	if network.Narrow(one, network.Allowed{}) != one {
		t.Error("it is another resource")
	}
}
