package edge

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/network"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestParseTargets(t *testing.T) {
	cidrs := func(all ...string) (parsed []netip.Prefix) {
		for _, cidr := range all {
			parsed = append(parsed, netip.MustParsePrefix(cidr))
		}
		return parsed
	}
	ports := func(all ...uint16) (ranges []model.PortRange) {
		for _, port := range all {
			ranges = append(ranges, model.PortRange{First: port, Last: port})
		}
		return ranges
	}
	for name, tc := range map[string]struct {
		in      []string
		want    network.Allowed
		wantErr string
	}{
		"nothing":               {},
		"an address":            {in: []string{"10.0.0.10:6443"}, want: network.Allowed{Targets: []model.Endpoint{target}}},
		"a CIDR with all ports": {in: []string{"10.1.0.0/16"}, want: network.Allowed{CIDRs: cidrs("10.1.0.0/16")}},
		"IPv6 with all ports":   {in: []string{"fd00:1::/64"}, want: network.Allowed{CIDRs: cidrs("fd00:1::/64")}},
		"a port that is all ports": {
			in: []string{"10.1.0.0/16", "10.1.0.0/16:22"}, want: network.Allowed{CIDRs: cidrs("10.1.0.0/16")},
		},
		"two ports of two CIDRs": {
			in:   []string{"10.1.0.0/16:443", "fd00:1::/64:10250", "10.1.0.0/16:10250", "fd00:1::/64:443"},
			want: network.Allowed{CIDRs: cidrs("10.1.0.0/16", "fd00:1::/64"), Ports: ports(443, 10250)},
		},
		"an address and a CIDR": {
			in: []string{"10.1.0.0/16:443", "10.0.0.10:6443"}, want: network.Allowed{
				CIDRs: cidrs("10.1.0.0/16"), Ports: ports(443), Targets: []model.Endpoint{target},
			},
		},
		"different ports":               {in: []string{"10.1.0.0/16:443", "10.2.0.0/16:22"}, wantErr: "the same ports"},
		"ports for one alone":           {in: []string{"10.1.0.0/16", "10.2.0.0/16:22"}, wantErr: "the same ports"},
		"a CIDR with bits":              {in: []string{"10.1.0.1/16"}, wantErr: "bits after its prefix"},
		"a port of no number":           {in: []string{"10.1.0.0/16:http"}, wantErr: "no port"},
		"port 0":                        {in: []string{"10.1.0.0/16:0"}, wantErr: "no port"},
		"an address without a port":     {in: []string{"10.0.0.1"}, wantErr: "host:port"},
		"a CIDR of IPv4 inside of IPv6": {in: []string{"::ffff:10.0.0.0/104"}, wantErr: "IPv4"},
	} {
		allowed, err := ParseTargets(tc.in)
		if (err == nil) != (tc.wantErr == "") || (err != nil && !strings.Contains(err.Error(), tc.wantErr)) {
			t.Errorf("%s: got %v, want an error with %q", name, err, tc.wantErr)
		}
		if err == nil && !reflect.DeepEqual(allowed, tc.want) {
			t.Errorf("%s: got %v, want %v", name, allowed, tc.want)
		}
	}
}

// TestAnAllowListIncludesApiservers: gateways are not among the destinations.
func TestAnAllowListIncludesApiservers(t *testing.T) {
	inside, err := ParseTargets([]string{"10.0.0.0/8:6443"})
	if err != nil {
		t.Fatal(err)
	}
	list := targets{restricted: true, allowed: inside}
	for name, tc := range map[string]struct {
		cluster string
		to      model.Endpoint
		want    bool
	}{
		"an apiserver in an allowed CIDR":         {"apiserver_edge-a", target, true},
		"an apiserver that is in no allowed CIDR": {"apiserver_edge-a", stray, false},
		"another port":                 {"apiserver_edge-a", model.Endpoint{Host: target.Host, Port: 22}, false},
		"a gateway in an allowed CIDR": {"gateway-0_edge-a", target, false},
	} {
		if err := list.check(pack(t, clusterOf(tc.cluster, tc.to))); (err == nil) != tc.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestANarrowingLimitsNetworks: an Envoy dials what its RemoteNetwork and its owner both allow. The form differs for
// each list, because Envoy gets a resource again only if its version with the form differs.
func TestANarrowingLimitsNetworks(t *testing.T) {
	installation := model.Installation{Domain: domain, Public: atFront, Gateways: []model.Gateway{{Name: name}}}
	wc := model.WorkloadCluster{ID: edgeSubject.ID, Network: &model.Network{
		Name: "oslo", EgressID: model.NewID(), CIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")},
	}}
	var resources []*anypb.Any
	for _, c := range envoy.EdgeClusters(installation, wc, edgeSubject.Node, envoy.EdgeDial{Version: envoy.Current}) {
		resources = append(resources, pack(t, c))
	}
	forms := map[string]bool{}
	for list, want := range map[string]string{
		"10.1.7.0/24": "[10.1.7.0/24]", "10.0.0.0/8": "[10.1.0.0/16]", "10.2.0.0/16": "[]", "10.0.0.10:6443": "[]",
	} {
		allowed, err := ParseTargets([]string{list})
		if err != nil {
			t.Fatal(err)
		}
		n := NarrowingOf([]Config{{}, {Allowed: allowed}})
		forms[n.Form("")] = true
		got := []netip.Prefix{}
		for _, resource := range resources {
			dialled, err := network.Dials(n.Apply("", n.Form(""), resource))
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, dialled...)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("with %s it dials %v, want %s", list, got, want)
		}
	}
	if len(forms) != 4 || forms[""] {
		t.Errorf("four lists have the forms %v", forms)
	}
	if NarrowingOf([]Config{{}}) != nil {
		t.Error("without a list there is a limit")
	}
}
