package summary_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/diagnose/summary"
)

// site is a healthy network of the Cluster shop, with its Tunnel.
func site(name string) (v1alpha1.RemoteNetwork, v1alpha1.Tunnel) {
	n := v1alpha1.RemoteNetwork{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "prod", Name: name, CreationTimestamp: at(-48 * time.Hour), Generation: 1,
		},
		Spec: v1alpha1.RemoteNetworkSpec{ClusterName: "shop", CIDRs: []string{"10.1.0.0/16"}},
	}
	n.Status.Conditions = []metav1.Condition{
		condition(v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, "True"),
		condition(v1alpha1.ConditionTunnelReady, v1alpha1.ReasonConnected, "True"),
		condition(v1alpha1.ConditionEgressReady, v1alpha1.ReasonConnected, "True"),
	}
	_, t := pair(name+".network", nil)
	t.Spec.Network, t.Status.Names, t.Status.Hostname = name, nil, ""
	t.Status.Edges = t.Status.Edges[:1]
	t.Status.Edges[0].APIServer = nil
	return n, t
}

// apiservers is the Tunnel of the apiservers of shop, with two nodes that are connected.
func apiservers() v1alpha1.Tunnel {
	_, t := pair("shop.egress", nil)
	t.Spec.EgressOf = "shop"
	for i := range t.Status.Edges {
		t.Status.Edges[i].Gateways, t.Status.Edges[i].APIServer, t.Status.Edges[i].Connected = nil, nil, true
	}
	return t
}

// world is the Cluster shop with a network and apiservers, which a test changes.
type world struct {
	cluster         clusterv1.Cluster
	network         v1alpha1.RemoteNetwork
	tunnel, egress  v1alpha1.Tunnel
	without, orphan bool // without the Tunnels; without the Cluster
}

func (w *world) set(kind, reason string, status metav1.ConditionStatus) {
	for i := range w.network.Status.Conditions {
		if c := &w.network.Status.Conditions[i]; c.Type == kind {
			*c = condition(kind, reason, status)
		}
	}
}

func TestHealthOfNetworks(t *testing.T) {
	for name, tc := range map[string]struct {
		change                   func(w *world)
		cluster, network, egress summary.Health
		says                     string // in a warning of the Cluster
	}{
		"everything is healthy": {func(*world) {}, summary.OK, summary.OK, summary.OK, ""},
		"no edge of the network has a tunnel": {func(w *world) {
			w.set(v1alpha1.ConditionTunnelReady, v1alpha1.ReasonNoTunnel, "False")
			w.tunnel.Status.Edges[0].Gateways = nil
		}, summary.Warning, summary.Broken, summary.OK, "network site1: says NoTunnel: see the logs of the edges"},
		"no edge has ever enrolled": {func(w *world) {
			w.set(v1alpha1.ConditionTunnelReady, v1alpha1.ReasonNoTunnel, "False")
			w.tunnel.Status.Edges = nil
		}, summary.Warning, summary.Broken, summary.OK, "fairlead network join -n prod site1"},
		"no edge has enrolled in a new network": {func(w *world) {
			w.set(v1alpha1.ConditionTunnelReady, v1alpha1.ReasonNoTunnel, "False")
			w.tunnel.Status.Edges, w.network.CreationTimestamp = nil, at(-10*time.Minute)
		}, summary.Waiting, summary.Waiting, summary.OK, "fairlead network join"},
		"a CIDR belongs to another network": {func(w *world) {
			w.set(v1alpha1.ConditionAccepted, v1alpha1.ReasonAmbiguousNetwork, "False")
		}, summary.Warning, summary.Warning, summary.OK, "says AmbiguousNetwork"},
		"the name of the Tunnel is in use": {func(w *world) {
			w.set(v1alpha1.ConditionAccepted, v1alpha1.ReasonControlledByOther, "False")
			w.set(v1alpha1.ConditionTunnelReady, v1alpha1.ReasonNoTunnel, "False")
		}, summary.Warning, summary.Broken, summary.OK, "says ControlledByOther"},
		"the state of the tunnels is unknown": {func(w *world) {
			w.set(v1alpha1.ConditionTunnelReady, v1alpha1.ReasonUnknown, "Unknown")
		}, summary.Unknown, summary.Unknown, summary.OK, "TunnelReady: says Unknown"},
		"no apiserver uses networks": {func(w *world) {
			set(&w.egress, v1alpha1.ConditionTunnelReady, v1alpha1.ReasonNoEgress, "False")
			w.egress.Status.Edges = nil
		}, summary.Waiting, summary.OK, summary.Waiting, "its apiservers: says NoEgress: `fairlead network egress -n prod"},
		"the apiservers are not connected": {func(w *world) {
			set(&w.egress, v1alpha1.ConditionTunnelReady, v1alpha1.ReasonNoEgress, "False")
			for i := range w.egress.Status.Edges {
				w.egress.Status.Edges[i].Connected = false
			}
		}, summary.Warning, summary.OK, summary.Broken, "see the logs of the containers beside the apiservers"},
		"one of two apiservers is not connected": {func(w *world) {
			w.egress.Status.Edges[0].Connected = false
		}, summary.Warning, summary.OK, summary.Warning, "edge-a (host-edge-a) beside an apiserver is not connected"},
		"there are no Tunnels yet": {func(w *world) {
			w.without, w.network.CreationTimestamp = true, at(-time.Second)
			w.set(v1alpha1.ConditionAccepted, v1alpha1.ReasonUnknown, "Unknown")
			w.network.Status.Conditions = w.network.Status.Conditions[:1]
		}, summary.Waiting, summary.Waiting, summary.Waiting, "says Unknown"},
		"the Cluster does not exist": {func(w *world) {
			w.orphan, w.without = true, true
			w.set(v1alpha1.ConditionAccepted, v1alpha1.ReasonNoCluster, "False")
		}, summary.Warning, summary.Broken, summary.Waiting, "network site1: says NoCluster"},
		"the controller does not run": {func(w *world) {
			w.network.Status.Conditions = nil
		}, summary.Unknown, summary.Unknown, summary.OK, "the controller has not reconciled the RemoteNetwork"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{egress: apiservers()}
			w.cluster, _ = pair("shop", nil)
			w.cluster.Labels = nil
			w.network, w.tunnel = site("site1")
			tc.change(w)
			in := summary.Input{Networks: []v1alpha1.RemoteNetwork{w.network}}
			if !w.without {
				in.Tunnels = []v1alpha1.Tunnel{w.tunnel, w.egress}
			}
			if !w.orphan {
				in.Clusters = []clusterv1.Cluster{w.cluster}
			}
			view := summary.Build(in, now)
			if len(view.Rows) != 1 || len(view.Rows[0].Networks) != 1 || view.Rows[0].Egress == nil {
				t.Fatalf("got %+v", view.Rows)
			}
			r := view.Rows[0]
			if r.Health != tc.cluster || r.Networks[0].Health != tc.network || r.Egress.Health != tc.egress {
				t.Errorf("the Cluster is %s, the network %s, its apiservers %s: %+v", r.Health, r.Networks[0].Health,
					r.Egress.Health, r.Warnings)
			}
			if said := len(r.Warnings) > 0 && strings.Contains(r.Warnings[0].Text, tc.says); said != (tc.says != "") {
				t.Errorf("warnings %+v, want %q", r.Warnings, tc.says)
			}
		})
	}
}

// TestNetworksAreBelowTheirClusters and nowhere else: a fleet of two Clusters, one of which has a tunnel of its own.
func TestNetworksAreBelowTheirClusters(t *testing.T) {
	shop, _ := pair("shop", nil)
	shop.Labels = nil
	bank, own := pair("bank", nil)
	site1, t1 := site("site1")
	site2, t2 := site("site2")
	vault, t3 := site("vault")
	vault.Spec.ClusterName = "bank"
	_, stray := pair("stray.network", nil) // its RemoteNetwork is gone
	stray.Spec.Network = "stray"
	live := &summary.Live{Tunnels: map[string][]collect.Tunnel{
		"site2.network": {{ID: "site2.network", Node: "edge-a", Gateway: "gateway-2", RTT: 3 * time.Millisecond}},
	}}
	view := summary.Build(summary.Input{
		Clusters: []clusterv1.Cluster{shop, bank}, Tunnels: []v1alpha1.Tunnel{t2, own, t1, stray, apiservers(), t3},
		Networks: []v1alpha1.RemoteNetwork{site2, vault, site1}, Live: live,
	}, now)
	var got []string
	for i := range view.Rows {
		got = append(got, view.Rows[i].Cluster)
		for _, below := range view.Rows[i].Below() {
			got = append(got, below.Mode+" "+below.Network)
		}
	}
	want := "bank,network vault,egress ,shop,network site1,network site2,egress "
	if all := strings.Join(got, ","); all != want {
		t.Errorf("got %s, want %s", all, want)
	}
	if s := view.Summary; s.Clusters != 2 || s.NotOptedIn != 0 || s.Networks != 3 || s.NetworksOK != 3 || s.Edges != 5 ||
		s.EdgesConnected != 5 {
		t.Errorf("summary %+v", s)
	}
	if rtt := view.Rows[1].Networks[1].RTT; rtt != 3 {
		t.Errorf("the round trip of site2 is %v", rtt)
	}
}
