package source_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/source"
)

const networkObjects = `apiVersion: fairlead.dev/v1alpha1
kind: RemoteNetwork
metadata: {name: site1, namespace: prod}
spec:
  clusterName: shop
  cidrs:
  - 10.1.0.0/16
  targets:
  - name: vcenter
    address: 10.9.0.1
---
apiVersion: fairlead.dev/v1alpha1
kind: Tunnel
metadata: {name: site1.network, namespace: prod}
spec:
  id: aaaaaaaaaaaaaaaaaaaa
  network: site1
  revokedEdges:
  - edge-stolen
---
apiVersion: fairlead.dev/v1alpha1
kind: Tunnel
metadata: {name: shop.egress, namespace: prod}
spec: {id: eeeeeeeeeeeeeeeeeeee, egressOf: shop}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: shop, namespace: prod}
spec:
  controlPlaneEndpoint: {host: 192.0.2.30, port: 6443}
`

// shopTunnel gives the apiservers of the Cluster a tunnel.
const shopTunnel = `apiVersion: fairlead.dev/v1alpha1
kind: Tunnel
metadata: {name: shop, namespace: prod}
spec: {id: cccccccccccccccccccc}
`

func loadForward(t *testing.T, files ...string) (source.Loaded, error) {
	t.Helper()
	var inputs []source.Input
	for i, data := range files {
		inputs = append(inputs, source.Input{Name: string(rune('a'+i)) + ".yaml", Data: []byte(data)})
	}
	return source.Load(inputs, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")})
}

func TestLoadNetworks(t *testing.T) {
	egress := model.WorkloadCluster{
		Key: model.Key{Namespace: "prod", Name: "shop.egress"}, ID: "eeeeeeeeeeeeeeeeeeee", Egress: true,
	}
	site := model.WorkloadCluster{
		Key: model.Key{Namespace: "prod", Name: "site1.network"}, ID: "aaaaaaaaaaaaaaaaaaaa",
		Revoked: []string{"edge-stolen"}, Network: &model.Network{
			Name: "site1", Cluster: model.Key{Namespace: "prod", Name: "shop"}, EgressID: egress.ID,
			CIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, Targets: []model.Target{{
				Name: "vcenter.site1.shop.prod.tunnels.example.com", Address: model.Endpoint{Host: "10.9.0.1", Port: 443},
			}},
			APIServers: []model.Endpoint{{Host: "192.0.2.30", Port: 6443}},
		},
	}
	got, err := loadForward(t, settings, networkObjects)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]model.WorkloadCluster{egress, site}, got.Fleet.Clusters, cmp.Comparer(samePrefix)); diff != "" {
		t.Error(diff)
	}
	if len(got.Assumed) != 0 {
		t.Errorf("assumed %v", got.Assumed)
	}
	// Through the tunnel of the Cluster, whose edges then keep more reverse tunnels.
	got, err = loadForward(t, settings, networkObjects, shopTunnel)
	if err != nil {
		t.Fatal(err)
	}
	tunnel := got.Fleet.Clusters[0]
	if tunnel.Key.Name != "shop" || tunnel.Forwards != 1 {
		t.Errorf("the tunnel of the Cluster is %+v", tunnel)
	}
	n := got.Fleet.Clusters[2].Network
	if n.APIServerID != "cccccccccccccccccccc" || len(n.APIServers) != 0 {
		t.Errorf("machines reach the apiserver by %+v", n)
	}
}

func samePrefix(a, b netip.Prefix) bool { return a == b }

// TestWhatNetworksLackIsAssumed has a RemoteNetwork alone.
func TestWhatNetworksLackIsAssumed(t *testing.T) {
	alone, _, _ := strings.Cut(networkObjects, "---")
	got, err := load(t, alone)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Fleet.Clusters) != 2 || got.Fleet.Clusters[1].Network.EgressID != got.Fleet.Clusters[0].ID {
		t.Errorf("got %+v", got.Fleet.Clusters)
	}
	for _, want := range []string{
		"no endpoint for prod/shop", "the id " + got.Fleet.Clusters[0].ID + " for prod/shop.egress",
		"for prod/site1.network: the controller chooses another", "the Cluster has no endpoint yet",
	} {
		if !slices.ContainsFunc(got.Assumed, func(s string) bool { return strings.Contains(s, want) }) {
			t.Errorf("%q is not among %q", want, got.Assumed)
		}
	}
	// A Tunnel without its network is not served.
	_, rest, _ := strings.Cut(networkObjects, "---")
	got, err = load(t, rest, shopTunnel)
	if err != nil {
		t.Fatal(err)
	}
	assumed := strings.Join(got.Assumed, "\n")
	if len(got.Fleet.Clusters) != 1 || !strings.Contains(assumed, "nothing for prod/site1.network") ||
		!strings.Contains(assumed, "nothing for prod/shop.egress") {
		t.Errorf("got %+v, assumed %q", got.Fleet.Clusters, got.Assumed)
	}
}

func TestErrorsOfNetworksNameFileLineAndField(t *testing.T) {
	replace := func(old, with string) []string {
		if !strings.Contains(networkObjects, old) {
			t.Fatalf("%q is not there", old)
		}
		return []string{strings.Replace(networkObjects, old, with, 1)}
	}
	second := strings.Replace(strings.Split(networkObjects, "---")[0], "site1", "site2", 1)
	for name, tc := range map[string]struct {
		in   []string
		want string
	}{
		"a bad CIDR": {
			replace("- 10.1.0.0/16", "- 10.1.0.1/16"), `a.yaml:7:5: spec.cidrs[0]: "10.1.0.1/16": `,
		},
		"a link-local CIDR": {
			replace("- 10.1.0.0/16", "- 169.254.0.0/16"), "a.yaml:7:5: spec.cidrs[0]: ",
		},
		"a CIDR of another": {
			[]string{networkObjects, second}, "b.yaml:7:5: spec.cidrs[0]: \"10.1.0.0/16\": the network site1",
		},
		"a field that is none": {
			replace("clusterName: shop", "clusterName: shop\n  cidr: []"), "a.yaml:6:3: spec.cidr: unknown field",
		},
		"no Cluster": {
			replace("clusterName: shop", "clusterName: ''"), "a.yaml:5:3: spec.clusterName: is empty",
		},
		"a name with a dot": {
			replace("{name: site1, namespace", "{name: site.1, namespace"),
			"a.yaml:3:12: metadata.name: \"site.1\" contains a dot",
		},
		"a bad target": {
			replace("address: 10.9.0.1", "address: 127.0.0.1"), "a.yaml:10:5: spec.targets[0].address: ",
		},
		"the address of the gateways": {
			[]string{strings.Replace(settings, "gw.example.com:443", "10.1.2.3:443", 1), networkObjects},
			"b.yaml:7:5: spec.cidrs[0]: \"10.1.0.0/16\": it contains the gateway 10.1.2.3",
		},
		"a bad revoked edge": {
			replace("- edge-stolen", "- edge_stolen"), "a.yaml:19:5: spec.revokedEdges[0]: ",
		},
		"the id of another Tunnel": {
			replace("eeeeeeeeeeeeeeeeeeee", "aaaaaaaaaaaaaaaaaaaa"), "spec.id: \"aaaaaaaaaaaaaaaaaaaa\": ",
		},
		"a Tunnel with another use": {
			replace("  network: site1\n", ""),
			"a.yaml:3:12: metadata.name: the Tunnel prod/site1.network that the RemoteNetwork needs",
		},
		"a network twice": {
			[]string{networkObjects, strings.Split(networkObjects, "---")[0]},
			"b.yaml:3:12: metadata.name: the RemoteNetwork prod/site1 is also in a.yaml:1:1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := loadForward(t, tc.in...); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q (%d)", err, tc.want, len(got.Fleet.Clusters))
			}
		})
	}
}
