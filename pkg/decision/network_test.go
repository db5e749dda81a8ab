package decision_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

// network returns the candidate of a network of the Cluster prod/c1, with the letter of its id.
func network(name, letter string, created time.Time, cidrs ...string) decision.Candidate {
	return decision.Candidate{
		Key: model.Key{Namespace: "prod", Name: decision.NetworkTunnel(name)}, Created: created,
		ID: strings.Repeat(letter, 20), Network: &decision.NetworkFacts{
			Name: name, Cluster: model.Key{Namespace: "prod", Name: "c1"}, CIDRs: cidrs,
		},
	}
}

func granted(t *testing.T, r decision.Resolution) *model.Network {
	t.Helper()
	if r.Fatal != nil || r.Cluster.Network == nil || r.Cluster.Withheld {
		t.Fatalf("the network is not served: %v", r.Fatal)
	}
	return r.Cluster.Network
}

func texts(cidrs []netip.Prefix) (all []string) {
	for _, cidr := range cidrs {
		all = append(all, cidr.String())
	}
	return all
}

func TestEachPartOfANetworkIsGrantedOrRefusedByItself(t *testing.T) {
	tests := map[string]struct {
		change  func(f *decision.NetworkFacts)
		want    []string // CIDRs and suffixes
		refused map[string]string
		kind    model.FieldErrorKind
	}{
		"valid parts": {
			change: func(f *decision.NetworkFacts) { f.Suffixes = []string{"site1.example.com", "local"} },
			want:   []string{"10.1.0.0/16", "site1.example.com", "local"},
		},
		"an invalid CIDR": {
			change: func(f *decision.NetworkFacts) { f.CIDRs = append(f.CIDRs, "10.2.0.1/16", "x", "10.1.0.0/16") },
			want:   []string{"10.1.0.0/16"},
			refused: map[string]string{
				"spec.cidrs[1]": "bits after its prefix", "spec.cidrs[2]": "not a CIDR", "spec.cidrs[3]": "twice",
			},
		},
		"addresses that no edge dials": {
			change: func(f *decision.NetworkFacts) {
				f.CIDRs = append(f.CIDRs, "127.0.0.0/8", "169.254.169.254/32", "fe80::/64")
			},
			want: []string{"10.1.0.0/16"},
			refused: map[string]string{
				"spec.cidrs[1]": "never dial", "spec.cidrs[2]": "never dial", "spec.cidrs[3]": "never dial",
			},
			kind: model.NeverDial,
		},
		"the tunnel domain": {
			change:  func(f *decision.NetworkFacts) { f.Suffixes = []string{"example.com", "x.tunnels.example.com"} },
			want:    []string{"10.1.0.0/16"},
			refused: map[string]string{"spec.dnsSuffixes[0]": "tunnel domain", "spec.dnsSuffixes[1]": "tunnel domain"},
		},
		"a gateway": {
			change:  func(f *decision.NetworkFacts) { f.Gateways = []netip.Addr{netip.MustParseAddr("10.1.2.3")} },
			refused: map[string]string{"spec.cidrs[0]": "contains the gateway 10.1.2.3"}, kind: model.HasGateway,
		},
		"a gateway elsewhere": {
			change: func(f *decision.NetworkFacts) { f.Gateways = []netip.Addr{netip.MustParseAddr("10.2.2.3")} },
			want:   []string{"10.1.0.0/16"},
		},
		"a part of the Pods": {
			change:  func(f *decision.NetworkFacts) { f.Pods = []string{"10.0.0.0/12"} },
			refused: map[string]string{"spec.cidrs[0]": "give 10.0.0.0/12"}, kind: model.Overlap,
		},
		"all Pods": {
			change: func(f *decision.NetworkFacts) { f.Pods = []string{"10.1.0.0/16"} },
			want:   []string{"10.1.0.0/16"},
		},
		"more than all Services": {
			change:  func(f *decision.NetworkFacts) { f.Services = []string{"10.1.96.0/20"} },
			refused: map[string]string{"spec.cidrs[0]": "list 10.1.96.0/20"}, kind: model.Overlap,
		},
		"more than all Services, which it lists": {
			change: func(f *decision.NetworkFacts) {
				f.Services, f.CIDRs = []string{"10.1.96.0/20"}, append(f.CIDRs, "10.1.96.0/20")
			},
			want: []string{"10.1.0.0/16", "10.1.96.0/20"},
		},
		"more than all Pods, which another network lists": {
			change: func(f *decision.NetworkFacts) {
				f.Pods, f.Siblings = []string{"10.1.96.0/20"}, []string{"10.1.96.0/20"}
			},
			want: []string{"10.1.0.0/16"},
		},
		"names without an address": {
			change:  func(f *decision.NetworkFacts) { f.CIDRs, f.Suffixes = nil, []string{"local"} },
			refused: map[string]string{"spec.dnsSuffixes[0]": "no address of it can be dialled: add spec.cidrs"},
		},
		"no valid port grants no address": {
			change: func(f *decision.NetworkFacts) {
				f.Suffixes, f.Ports = []string{"local"}, []v1alpha1.NetworkPort{{Port: 10, EndPort: 9}}
			},
			refused: map[string]string{"spec.ports[0]": "no range"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := network("site1", "a", older, "10.1.0.0/16")
			tc.change(c.Network)
			var names decision.Names
			r := names.Decide(domain, c)
			n := granted(t, r)
			if diff := cmp.Diff(tc.want, append(texts(n.CIDRs), n.Suffixes...)); diff != "" {
				t.Error(diff)
			}
			for _, e := range r.Refused {
				if text := tc.refused[e.Field]; text == "" || !strings.Contains(e.Error(), text) || e.Kind != tc.kind {
					t.Errorf("unexpected: %v (kind %d)", e, e.Kind)
				}
			}
			if len(r.Refused) != len(tc.refused) {
				t.Errorf("%d parts are refused, want %d", len(r.Refused), len(tc.refused))
			}
		})
	}
}

func TestTargetsOfANetwork(t *testing.T) {
	c := network("site1", "a", older)
	c.Network.Targets = []v1alpha1.NetworkTarget{
		{Name: "vcenter", Address: "VCenter.Example.com."},
		{Name: "apid", Address: "10.1.0.5", Port: 50000},
		{Name: "self", Address: "127.0.0.1"},
		{Name: "meta", Address: "169.254.169.254"},
		{Name: "host", Address: "localhost"},
		{Name: "mapped", Address: "::ffff:127.0.0.1"},
		{Name: "vcenter", Address: "10.1.0.6"},
		{Name: strings.Repeat("x", 64), Address: "10.1.0.7"},
		{Name: "bad", Address: "a b"},
		{Name: "gateway", Address: "192.0.2.1"},
		{Name: "gateway-6", Address: "2001:db8:0:0::1"},
	}
	c.Network.Gateways = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	var names decision.Names
	r := names.Decide(domain, c)
	want := []model.Target{
		{Name: "vcenter.site1.c1.prod.tunnels.example.com", Address: model.Endpoint{Host: "vcenter.example.com", Port: 443}},
		{Name: "apid.site1.c1.prod.tunnels.example.com", Address: model.Endpoint{Host: "10.1.0.5", Port: 50000}},
	}
	if diff := cmp.Diff(want, granted(t, r).Targets); diff != "" {
		t.Error(diff)
	}
	var kinds []model.FieldErrorKind
	for _, e := range r.Refused {
		kinds = append(kinds, e.Kind)
	}
	never, invalid := model.NeverDial, model.Invalid
	gateway := model.HasGateway
	refused := []model.FieldErrorKind{never, never, never, never, invalid, invalid, invalid, gateway, gateway}
	if !slices.Equal(kinds, refused) {
		t.Errorf("refused: %v", r.Refused)
	}
	if holder, held := names.Holder(want[0].Name); !held || holder != c.Key {
		t.Errorf("the name belongs to %v, %v", holder, held)
	}
}

// TestACIDROfTwoNetworksStaysWithOne: among networks of one Cluster a record is kept, and otherwise the oldest has it.
func TestACIDROfTwoNetworksStaysWithOne(t *testing.T) {
	first := network("site1", "a", older, "10.1.0.0/16")
	second := network("site2", "b", younger, "10.1.0.0/16", "10.2.0.0/16")
	first.Network.Suffixes, second.Network.Suffixes = []string{"corp.example"}, []string{"corp.example"}
	for _, order := range [][]decision.Candidate{{first, second}, {second, first}} {
		var names decision.Names
		all := decision.Build(domain, &names, order)
		byKey := map[string]decision.Resolution{}
		for i, r := range all {
			byKey[order[i].Network.Name] = r
		}
		if n := granted(t, byKey["site1"]); len(n.CIDRs) != 1 || len(n.Suffixes) != 1 || len(byKey["site1"].Refused) != 0 {
			t.Errorf("the older has %v, %v", n.CIDRs, byKey["site1"].Refused)
		}
		n, refused := granted(t, byKey["site2"]), byKey["site2"].Refused
		if !slices.Equal(texts(n.CIDRs), []string{"10.2.0.0/16"}) || len(n.Suffixes) != 0 || len(refused) != 2 {
			t.Fatalf("the younger has %v, %v", n, refused)
		}
		for _, e := range refused {
			if e.Kind != model.Taken || !strings.Contains(e.Error(), "site1") || !strings.Contains(e.Error(), "site2") {
				t.Errorf("the error does not name both: %v", e)
			}
		}
	}
	// An edit of the older network takes nothing from the younger one, which another operator may own.
	var names decision.Names
	status := v1alpha1.TunnelStatus{}
	decision.Record(&status, names.Decide(domain, second))
	if got := status.Served.Network.CIDRs; !slices.Equal(got, []string{"10.1.0.0/16", "10.2.0.0/16"}) {
		t.Fatalf("recorded: %v", got)
	}
	if n := granted(t, names.Decide(domain, first)); len(n.CIDRs) != 0 {
		t.Errorf("an older network takes %v from another one", n.CIDRs)
	}
	if affected := names.Release(second.Key); !slices.Equal(affected, []model.Key{first.Key}) {
		t.Errorf("the end of a network affects %v", affected)
	}
	if n := granted(t, names.Decide(domain, first)); len(n.CIDRs) != 1 {
		t.Error("a free CIDR is granted to none")
	}
}

// TestASuffixWithoutAddressesIsFree: a network that cannot serve it keeps it from no other one. It is not granted
// either if another network has all CIDRs.
func TestASuffixWithoutAddressesIsFree(t *testing.T) {
	var names decision.Names
	first, second := network("site1", "a", older), network("site2", "b", younger, "10.1.0.0/16")
	third := network("site3", "c", younger.Add(time.Hour), "10.1.0.0/16")
	first.Network.Suffixes, second.Network.Suffixes = []string{"corp.example"}, []string{"corp.example"}
	third.Network.Suffixes = []string{"lab.example"}
	all := decision.Build(domain, &names, []decision.Candidate{first, second, third})
	for i, want := range []struct{ suffixes, refused int }{{0, 1}, {1, 0}, {0, 2}} {
		if n := granted(t, all[i]); len(n.Suffixes) != want.suffixes || len(all[i].Refused) != want.refused {
			t.Errorf("network %d has %v, refused: %v", i, n.Suffixes, all[i].Refused)
		}
	}
}

func TestTheSameCIDRInTwoClustersIsNoAmbiguity(t *testing.T) {
	first, second := network("site1", "a", older, "10.1.0.0/16"), network("site2", "b", younger, "10.1.0.0/16")
	second.Network.Cluster.Name = "c2"
	var names decision.Names
	for _, c := range []decision.Candidate{first, second} {
		if r := names.Decide(domain, c); len(granted(t, r).CIDRs) != 1 || len(r.Refused) != 0 {
			t.Errorf("%s: %v", c.Key, r.Refused)
		}
	}
}

// TestARecordedNetworkKeepsItsCIDRsAfterAStart: the record alone decides, whatever is observed first.
func TestARecordedNetworkKeepsItsCIDRsAfterAStart(t *testing.T) {
	cluster, remote, tunnel := networkObjects()
	remote.CreationTimestamp = metav1.NewTime(younger)
	var before, after decision.Names
	c, ok := decision.NetworkCandidate(tunnel, decision.NetworkOwners{Network: remote, Cluster: cluster},
		decision.NetworkSettings{})
	if !ok {
		t.Fatal("no candidate")
	}
	decision.Record(&tunnel.Status, before.Decide(domain, c))
	after.Reserve(domain, decision.RecordedCandidate(tunnel))
	if n := granted(t, after.Decide(domain, network("other", "b", older, "10.1.0.0/16"))); len(n.CIDRs) != 0 {
		t.Errorf("an older network takes %v, which is on record for another one", n.CIDRs)
	}
	c, _ = decision.NetworkCandidate(tunnel, decision.NetworkOwners{Network: remote, Cluster: cluster},
		decision.NetworkSettings{})
	if n := granted(t, after.Decide(domain, c)); len(n.CIDRs) != 1 {
		t.Error("a network has lost what is on record for it")
	}
}

// TestTheRecordCountsWhatANetworkLoses changes a network step by step.
func TestTheRecordCountsWhatANetworkLoses(t *testing.T) {
	port := func(first, last int32) v1alpha1.NetworkPort { return v1alpha1.NetworkPort{Port: first, EndPort: last} }
	var names decision.Names
	var status v1alpha1.TunnelStatus
	for i, step := range []struct {
		cidrs []string
		ports []v1alpha1.NetworkPort
		want  int64
	}{
		{[]string{"10.1.0.0/16"}, nil, 0},
		{[]string{"10.1.0.0/16"}, nil, 0},
		{[]string{"10.1.0.0/16", "10.2.0.0/16"}, nil, 0},
		{[]string{"10.0.0.0/8"}, nil, 0},
		{[]string{"10.0.0.0/9", "10.128.0.0/9"}, nil, 0},
		{[]string{"10.0.0.0/9"}, nil, 1},
		{[]string{"10.0.0.0/9"}, []v1alpha1.NetworkPort{port(443, 0), port(1000, 2000)}, 2},
		{[]string{"10.0.0.0/9"}, []v1alpha1.NetworkPort{port(400, 500), port(1000, 2000)}, 2},
		{[]string{"10.0.0.0/9"}, []v1alpha1.NetworkPort{port(400, 500), port(1001, 2000)}, 3},
		{[]string{"10.1.0.0/16"}, nil, 4},
		{nil, nil, 5},
		{[]string{"10.1.0.0/16"}, nil, 5},
	} {
		c := network("site1", "a", older, step.cidrs...)
		c.Network.Ports = step.ports
		decision.Record(&status, names.Decide(domain, c))
		if got := status.Served.Network.Narrowed; got != step.want {
			t.Errorf("step %d: narrowed %d times, want %d", i, got, step.want)
		}
	}
}

func TestAnotherTunnelWithTheSameIDIsWithheld(t *testing.T) {
	var names decision.Names
	names.Decide(domain, candidate("c1", "a", older))
	c := network("site1", "a", older, "10.1.0.0/16")
	c.ID, c.Revoked = candidate("", "a", older).ID, []string{"edge-a"}
	if r := names.Decide(domain, c); r.Fatal == nil || r.HoldsID || !r.Cluster.Withheld || len(r.Cluster.Revoked) != 1 {
		t.Errorf("%+v", r)
	}
}

// networkObjects returns a Cluster, its network site1 and the Tunnel of that.
func networkObjects() (*clusterv1.Cluster, *v1alpha1.RemoteNetwork, *v1alpha1.Tunnel) {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "c1", UID: "cluster"}}
	cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "10.9.0.1", Port: 6443}
	remote := &v1alpha1.RemoteNetwork{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "site1", UID: "network"}}
	remote.Spec = v1alpha1.RemoteNetworkSpec{ClusterName: "c1", CIDRs: []string{"10.1.0.0/16"}}
	tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "site1.network"}}
	tunnel.Spec = v1alpha1.TunnelSpec{ID: strings.Repeat("n", 20), Network: "site1"}
	tunnel.OwnerReferences = []metav1.OwnerReference{
		*metav1.NewControllerRef(remote, v1alpha1.GroupVersion.WithKind("RemoteNetwork")),
	}
	return cluster, remote, tunnel
}

func TestANetworkIsServedForItsOwnersOnly(t *testing.T) {
	tests := map[string]func(o *decision.NetworkOwners, tunnel *v1alpha1.Tunnel){
		"no network":        func(o *decision.NetworkOwners, _ *v1alpha1.Tunnel) { o.Network = nil },
		"no Cluster":        func(o *decision.NetworkOwners, _ *v1alpha1.Tunnel) { o.Cluster = nil },
		"another Cluster":   func(o *decision.NetworkOwners, _ *v1alpha1.Tunnel) { o.Cluster.Name = "c2" },
		"a new network":     func(o *decision.NetworkOwners, _ *v1alpha1.Tunnel) { o.Network.UID = "new" },
		"no id":             func(_ *decision.NetworkOwners, tunnel *v1alpha1.Tunnel) { tunnel.Spec.ID = "" },
		"a Cluster's":       func(_ *decision.NetworkOwners, tunnel *v1alpha1.Tunnel) { tunnel.Spec.Network = "" },
		"another network's": func(_ *decision.NetworkOwners, tunnel *v1alpha1.Tunnel) { tunnel.Spec.Network = "x" },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			cluster, remote, tunnel := networkObjects()
			o := decision.NetworkOwners{Network: remote, Cluster: cluster}
			if _, ok := decision.NetworkCandidate(tunnel, o, decision.NetworkSettings{}); !ok {
				t.Fatal("the unchanged objects are not served")
			}
			change(&o, tunnel)
			if c, ok := decision.NetworkCandidate(tunnel, o, decision.NetworkSettings{}); ok {
				t.Errorf("served: %+v", c)
			}
		})
	}
}

// TestOnlyTheOldestNetworksOfAClusterAreServed: the work for one network grows with the others, and all Clusters share
// the programs that do it.
func TestOnlyTheOldestNetworksOfAClusterAreServed(t *testing.T) {
	for others, served := range map[int]bool{decision.MaxNetworks - 1: true, decision.MaxNetworks: false} {
		for own, age := range map[string]struct {
			created time.Time
			served  bool
		}{
			"younger than the others":          {younger.Add(time.Hour), served},
			"as old, and the last by its name": {older, served},
			"older than the others":            {older.Add(-time.Hour), true},
		} {
			cluster, remote, tunnel := networkObjects()
			remote.CreationTimestamp = metav1.NewTime(age.created)
			o := decision.NetworkOwners{Network: remote, Cluster: cluster}
			for i := range others {
				n := v1alpha1.RemoteNetwork{Spec: v1alpha1.RemoteNetworkSpec{ClusterName: "c1", CIDRs: []string{"10.2.0.0/16"}}}
				n.Name, n.CreationTimestamp = fmt.Sprintf("other%d", i), metav1.NewTime(older)
				o.Others = append(o.Others, n)
			}
			c, ok := decision.NetworkCandidate(tunnel, o, decision.NetworkSettings{})
			if !ok || len(c.Network.Siblings) >= decision.MaxNetworks && age.served {
				t.Fatalf("%s: %d siblings", own, len(c.Network.Siblings))
			}
			var names decision.Names
			r := names.Decide(domain, c)
			if age.served {
				granted(t, r)
				continue
			}
			if r.Fatal == nil || r.Fatal.Kind != model.TooMany || !strings.Contains(r.Fatal.Error(), "256 older") ||
				!r.HoldsID || !r.Cluster.Withheld || r.Cluster.Network != nil {
				t.Errorf("%s, with %d others: %+v", own, others, r)
			}
		}
	}
}

func TestTheTunnelsOfACluster(t *testing.T) {
	cluster, remote, tunnel := networkObjects()
	controlled := func(name string, spec v1alpha1.TunnelSpec) *v1alpha1.Tunnel {
		o := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: name}, Spec: spec}
		o.OwnerReferences = []metav1.OwnerReference{
			*metav1.NewControllerRef(cluster, clusterv1.GroupVersion.WithKind("Cluster")),
		}
		return o
	}
	egress := controlled("c1.egress", v1alpha1.TunnelSpec{ID: strings.Repeat("e", 20), EgressOf: "c1"})
	own := controlled("c1", v1alpha1.TunnelSpec{ID: strings.Repeat("o", 20)})
	if _, ok := decision.CandidateOf(cluster, egress); ok {
		t.Error("the Tunnel of apiservers is served as that of a Cluster")
	}
	if _, ok := decision.EgressCandidate(cluster, own); ok {
		t.Error("the Tunnel of a Cluster is served as that of apiservers")
	}
	served := func() model.Network {
		c, _ := decision.NetworkCandidate(tunnel, decision.NetworkOwners{
			Network: remote, Cluster: cluster, Egress: egress, Tunnel: own,
		}, decision.NetworkSettings{APIServers: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24")}})
		f := c.Network
		return model.Network{EgressID: f.EgressID, APIServerID: f.APIServerID, APIServers: f.APIServers}
	}
	if diff := cmp.Diff(model.Network{}, served()); diff != "" {
		t.Errorf("nothing is on record yet: %s", diff)
	}
	var names decision.Names
	c, ok := decision.EgressCandidate(cluster, egress)
	if !ok {
		t.Fatal("no candidate")
	}
	r := names.Decide(domain, c)
	decision.Record(&egress.Status, r)
	if !r.Cluster.Egress || len(egress.Status.Names) != 0 || egress.Status.Served.ClusterUID != "cluster" {
		t.Errorf("%+v, %+v", r, egress.Status)
	}
	c, _ = decision.CandidateOf(cluster, own)
	decision.Record(&own.Status, names.Decide(domain, c))
	want := model.Network{EgressID: egress.Spec.ID, APIServerID: own.Spec.ID}
	if diff := cmp.Diff(want, served()); diff != "" {
		t.Error(diff)
	}
	own.Spec.Kubeconfig.Mode = v1alpha1.KubeconfigModeAddress
	want = model.Network{EgressID: egress.Spec.ID, APIServers: []model.Endpoint{{Host: "10.9.0.1", Port: 6443}}}
	if diff := cmp.Diff(want, served()); diff != "" {
		t.Error(diff)
	}
	cluster.UID = "new"
	if diff := cmp.Diff(want.APIServers, served().APIServers); diff == "" && served().EgressID != "" {
		t.Error("the record of an earlier Cluster of the same name counts")
	}
}

// TestGatewaysDialNoEndpointThatTheInstallationDoesNotAllow: a user of a namespace writes the endpoint of a Cluster.
func TestGatewaysDialNoEndpointThatTheInstallationDoesNotAllow(t *testing.T) {
	everything := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	tests := map[string]struct {
		host    string
		allowed []netip.Prefix
		want    string
	}{
		"allowed":              {"10.9.0.1", everything, "10.9.0.1:6443"},
		"allowed, IPv6":        {"fd00::1", everything, "[fd00::1]:6443"},
		"no setting":           {"10.9.0.1", nil, ""},
		"in another network":   {"10.9.0.1", []netip.Prefix{netip.MustParsePrefix("10.8.0.0/16")}, ""},
		"loopback":             {"127.0.0.1", everything, ""},
		"loopback, as IPv6":    {"::ffff:127.0.0.1", everything, ""},
		"a metadata service":   {"169.254.169.254", everything, ""},
		"a link-local address": {"fe80::1%eth0", everything, ""},
		"a name":               {"api.example.com", everything, ""},
		"a gateway":            {"192.0.2.1", everything, ""},
		"a gateway, as IPv6":   {"::ffff:192.0.2.1", everything, ""},
		"a gateway, IPv6":      {"fd00::9", everything, ""},
		"no endpoint":          {"", everything, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			cluster, _, _ := networkObjects()
			cluster.Spec.ControlPlaneEndpoint.Host = tc.host
			to, got := decision.ForwardTo(cluster, nil, decision.NetworkSettings{
				Gateways:   []netip.Addr{netip.MustParseAddr("::ffff:192.0.2.1"), netip.MustParseAddr("fd00::9")},
				APIServers: tc.allowed,
			}), ""
			if len(to.Addresses) > 0 {
				got = to.Addresses[0].String()
			}
			if got != tc.want || to.TunnelID != "" || (to.Problem == "") != (tc.want != "") {
				t.Errorf("got %+v, want %q", to, tc.want)
			}
		})
	}
}
