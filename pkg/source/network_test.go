package source_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/model"
)

// site is a Cluster with its Tunnel, the Tunnel of its apiservers, and one network with its Tunnel, all as recorded by
// the controller.
type site struct {
	cluster             *clusterv1.Cluster
	own, egress, tunnel *v1alpha1.Tunnel
	network             *v1alpha1.RemoteNetwork
}

// create creates a Tunnel with a controlling owner, and a token on record.
func (b *bed) create(
	t *testing.T, name string, spec v1alpha1.TunnelSpec, owner *metav1.OwnerReference,
) *v1alpha1.Tunnel {
	t.Helper()
	tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{
		Namespace: b.namespace, Name: name, OwnerReferences: []metav1.OwnerReference{*owner},
	}, Spec: spec}
	if err := b.Create(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	tunnel.Status.Tokens = []v1alpha1.TokenStatus{{
		SHA256: enrol.HashToken(name), MaxUses: 2, ExpiresAt: metav1.NewTime(time.Now().Add(time.Hour)),
	}}
	return tunnel
}

func (b *bed) remote(t *testing.T, cluster *clusterv1.Cluster, name, begin string) (
	*v1alpha1.RemoteNetwork, *v1alpha1.Tunnel,
) {
	t.Helper()
	network := &v1alpha1.RemoteNetwork{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: name}}
	network.Spec = v1alpha1.RemoteNetworkSpec{
		ClusterName: cluster.Name, CIDRs: []string{"10.1.0.0/16", "10.2.0.0/16"}, DNSSuffixes: []string{"corp.example"},
		Ports:   []v1alpha1.NetworkPort{{Port: 443}, {Port: 10000, EndPort: 10300}},
		Targets: []v1alpha1.NetworkTarget{{Name: "vcenter", Address: "10.1.0.5"}, {Name: "apid", Address: "10.1.0.6"}},
	}
	if err := b.Create(t.Context(), network); err != nil {
		t.Fatal(err)
	}
	return network, b.create(
		t, name+".network", v1alpha1.TunnelSpec{ID: id(begin), Network: name},
		metav1.NewControllerRef(network, v1alpha1.GroupVersion.WithKind("RemoteNetwork")),
	)
}

// apiservers creates the Tunnel of the apiservers of a Cluster, as recorded by the controller.
func (b *bed) apiservers(t *testing.T, cluster *clusterv1.Cluster) *v1alpha1.Tunnel {
	t.Helper()
	egress := b.create(t, cluster.Name+".egress", v1alpha1.TunnelSpec{ID: id("e"), EgressOf: cluster.Name},
		metav1.NewControllerRef(cluster, clusterv1.GroupVersion.WithKind("Cluster")))
	c, ok := decision.EgressCandidate(cluster, egress)
	if !ok {
		t.Fatal("the Tunnel of the apiservers claims nothing")
	}
	decision.Record(&egress.Status, b.names.Decide(domain, c))
	b.writeStatus(t, egress)
	return egress
}

func (b *bed) site(t *testing.T) (s site) {
	t.Helper()
	s.cluster, s.own = b.pair(t, "c1", "a")
	s.egress = b.apiservers(t, s.cluster)
	s.network, s.tunnel = b.remote(t, s.cluster, "site1", "n")
	s.record(t, b)
	return s
}

// record decides about the network and records the decision, as the controller does.
func (s site) record(t *testing.T, b *bed) {
	t.Helper()
	c, ok := decision.NetworkCandidate(s.tunnel, decision.NetworkOwners{
		Network: s.network, Cluster: s.cluster, Tunnel: s.own, Egress: s.egress,
	}, decision.NetworkSettings{})
	if !ok {
		t.Fatal("the Tunnel of the network claims nothing")
	}
	decision.Record(&s.tunnel.Status, b.names.Decide(domain, c))
	b.writeStatus(t, s.tunnel)
}

// awaitNetwork takes updates until a Tunnel of a network or of apiservers is published as check requires. It is empty
// if it is not served.
func (b *bed) awaitNetwork(t *testing.T, name string, check func(w model.WorkloadCluster) error) {
	t.Helper()
	timeout := time.After(kubetest.Patience)
	for {
		err := check(b.networks[name])
		if err == nil {
			return
		}
		select {
		case u := <-b.updates:
			b.take(t, u)
		case <-timeout:
			t.Fatalf("not published: %v", err)
		}
	}
}

// has returns a check of the parts of a network, as one text.
func has(want string) func(model.WorkloadCluster) error {
	return func(w model.WorkloadCluster) error {
		got := "withheld"
		if w.Egress {
			got = "egress"
		}
		if n := w.Network; n != nil {
			got = fmt.Sprint(n.CIDRs, n.Suffixes, n.Ports)
			for _, target := range n.Targets {
				got += " " + target.Address.String()
			}
			for _, name := range []string{n.EgressID, n.APIServerID} {
				got += fmt.Sprintf(" %.1s", name)
			}
		}
		if got != want {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		return nil
	}
}

// noFinalizers removes the finalizers of an object.
var noFinalizers = client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))

// everything is the whole network of site.
const everything = "[10.1.0.0/16 10.2.0.0/16] [corp.example] [{443 443} {10000 10300}] 10.1.0.5:443 10.1.0.6:443 e a"

func TestANetworkIsServedAsRecorded(t *testing.T) {
	b := newBed(t)
	s := b.site(t)
	b.run(t)
	b.first(t, map[string][]string{"c1": none})
	b.awaitNetwork(t, "site1.network", has(everything))
	b.awaitNetwork(t, "c1.egress", has("egress"))
	w := b.networks["site1.network"]
	cluster := model.Key{Namespace: b.namespace, Name: "c1"}
	if w.ID != s.tunnel.Spec.ID || w.Network.Cluster != cluster || w.Hostname != "" {
		t.Errorf("%+v", w)
	}
	for name, want := range map[string]enrol.Grant{
		"c1.egress":     {ID: id("e"), Egress: true},
		"site1.network": {ID: id("n")},
	} {
		want.Tunnel = model.Key{Namespace: b.namespace, Name: name}
		if got, err := b.EdgeToken(enrol.HashToken(name), ""); err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	b.update(t, s.network, func() { s.network.Spec.CIDRs = append(s.network.Spec.CIDRs, "10.3.0.0/16") })
	b.update(t, s.tunnel, func() { s.tunnel.Spec.RevokedEdges = []string{"edge-a"} })
	b.awaitNetwork(t, "site1.network", func(w model.WorkloadCluster) error {
		if !slices.Equal(w.Revoked, []string{"edge-a"}) {
			return fmt.Errorf("revoked: %v", w.Revoked)
		}
		return has(everything)(w) // the new CIDR waits for the controller
	})
	s.record(t, b)
	recorded := func(cidr bool, narrowed int64) func(model.WorkloadCluster) error {
		return func(w model.WorkloadCluster) error {
			if w.Network == nil || w.Network.Narrowed != narrowed ||
				slices.Contains(w.Network.CIDRs, netip.MustParsePrefix("10.3.0.0/16")) != cidr {
				return fmt.Errorf("%+v", w.Network)
			}
			return nil
		}
	}
	b.awaitNetwork(t, "site1.network", recorded(true, 0))
	b.update(t, s.network, func() { s.network.Spec.CIDRs = s.network.Spec.CIDRs[:2] })
	b.awaitNetwork(t, "site1.network", recorded(false, 0))
	s.record(t, b)
	b.awaitNetwork(t, "site1.network", recorded(false, 1))
}

// TestWithdrawalsOfNetworksDoNotWaitForTheController: nothing writes a status after the start.
func TestWithdrawalsOfNetworksDoNotWaitForTheController(t *testing.T) {
	tests := map[string]struct {
		change func(t *testing.T, b *bed, s site)
		want   string
		token  bool // the bootstrap token of the network stays valid
	}{
		"parts of the network": {
			change: func(t *testing.T, b *bed, s site) {
				b.update(t, s.network, func() {
					s.network.Spec.CIDRs, s.network.Spec.DNSSuffixes = []string{"10.2.0.0/16"}, nil
					s.network.Spec.Ports = []v1alpha1.NetworkPort{{Port: 10250}, {Port: 22}}
					s.network.Spec.Targets = s.network.Spec.Targets[:1]
				})
			},
			want: "[10.2.0.0/16] [] [{10250 10250}] 10.1.0.5:443 e a", token: true,
		},
		"a suffix, while the CIDRs become parts of a wider one": {
			change: func(t *testing.T, b *bed, s site) {
				b.update(t, s.network, func() {
					s.network.Spec.CIDRs, s.network.Spec.DNSSuffixes = []string{"10.0.0.0/8"}, nil
				})
			},
			want:  "[10.1.0.0/16 10.2.0.0/16] [] [{443 443} {10000 10300}] 10.1.0.5:443 10.1.0.6:443 e a",
			token: true,
		},
		"all ports, and the address of a target": {
			change: func(t *testing.T, b *bed, s site) {
				b.update(t, s.network, func() {
					s.network.Spec.Ports = []v1alpha1.NetworkPort{{Port: 22}}
					s.network.Spec.Targets[0].Address = "10.1.0.7"
				})
			},
			want: "[] [] [] 10.1.0.6:443 e a", token: true,
		},
		"the Tunnel of the apiservers": {
			change: func(t *testing.T, b *bed, s site) { b.delete(t, s.egress) },
			want:   "[10.1.0.0/16 10.2.0.0/16] [corp.example] [{443 443} {10000 10300}] 10.1.0.5:443 10.1.0.6:443  a",
			token:  true,
		},
		"the Tunnel of the Cluster": {
			change: func(t *testing.T, b *bed, s site) { b.delete(t, s.own) },
			want:   "[10.1.0.0/16 10.2.0.0/16] [corp.example] [{443 443} {10000 10300}] 10.1.0.5:443 10.1.0.6:443 e ",
			token:  true,
		},
		"the network": {
			change: func(t *testing.T, b *bed, s site) { b.delete(t, s.network) }, want: "withheld",
		},
		"the network, which a finalizer keeps": {
			change: func(t *testing.T, b *bed, s site) {
				b.update(t, s.network, func() { s.network.Finalizers = []string{"example.com/keep"} })
				t.Cleanup(func() {
					if err := b.Patch(context.Background(), s.network, noFinalizers); err != nil {
						t.Error(err)
					}
				})
				b.delete(t, s.network)
			},
			want: "withheld",
		},
		"the network, and another of its name exists": {
			change: func(t *testing.T, b *bed, s site) {
				b.delete(t, s.network)
				again := &v1alpha1.RemoteNetwork{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "site1"}}
				again.Spec = s.network.Spec
				if err := b.Create(t.Context(), again); err != nil {
					t.Fatal(err)
				}
			},
			want: "withheld",
		},
		"the Cluster": {
			change: func(t *testing.T, b *bed, s site) { b.delete(t, s.cluster) }, want: "withheld",
		},
		"the Cluster, and another of its name exists": {
			change: func(t *testing.T, b *bed, s site) {
				b.delete(t, s.cluster)
				b.cluster(t, "c1")
			},
			want: "withheld",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			s := b.site(t)
			b.run(t)
			b.first(t, map[string][]string{"c1": none})
			b.awaitNetwork(t, "site1.network", has(everything))
			tc.change(t, b, s)
			b.awaitNetwork(t, "site1.network", has(tc.want))
			if _, err := b.EdgeToken(enrol.HashToken("site1.network"), ""); (err == nil) != tc.token {
				t.Errorf("the token of the network: %v", err)
			}
			if err := b.Get(t.Context(), client.ObjectKeyFromObject(s.cluster), s.cluster); err != nil {
				b.awaitNetwork(t, "c1.egress", has("withheld"))
			}
		})
	}
}

// TestTheTunnelOfApiserversWithoutANetworkEndsWithItsCluster: nothing writes a status after the start.
func TestTheTunnelOfApiserversWithoutANetworkEndsWithItsCluster(t *testing.T) {
	for name, again := range map[string]bool{"the Cluster is deleted": false, "the Cluster is created again": true} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			cluster, _ := b.pair(t, "c1", "a")
			b.apiservers(t, cluster)
			b.run(t)
			b.first(t, map[string][]string{"c1": none})
			b.awaitNetwork(t, "c1.egress", has("egress"))
			b.delete(t, cluster)
			if again {
				b.cluster(t, "c1")
			}
			b.awaitNetwork(t, "c1.egress", has("withheld"))
			if _, err := b.EdgeToken(enrol.HashToken("c1.egress"), ""); err == nil {
				t.Error("the token of the apiservers is accepted")
			}
		})
	}
}

// TestAPartOfTwoNetworksIsServedByNeither, as after a restore of their status.
func TestAPartOfTwoNetworksIsServedByNeither(t *testing.T) {
	b := newBed(t)
	s := b.site(t)
	other, tunnel := b.remote(t, s.cluster, "site2", "m")
	second := site{cluster: s.cluster, own: s.own, egress: s.egress, network: other, tunnel: tunnel}
	b.names = decision.Names{} // which does not contain the first
	other.Spec.CIDRs = other.Spec.CIDRs[:1]
	b.update(t, other, func() { other.Spec.CIDRs = []string{"10.1.0.0/16", "10.9.0.0/16"} })
	second.record(t, b)
	b.run(t)
	b.first(t, map[string][]string{"c1": none})
	b.awaitNetwork(t, "site1.network",
		has("[10.2.0.0/16] [] [{443 443} {10000 10300}] 10.1.0.5:443 10.1.0.6:443 e a"))
	b.awaitNetwork(t, "site2.network",
		has("[10.9.0.0/16] [] [{443 443} {10000 10300}] 10.1.0.5:443 10.1.0.6:443 e a"))
	b.delete(t, s.network)
	b.awaitNetwork(t, "site2.network",
		has("[10.1.0.0/16 10.9.0.0/16] [corp.example] [{443 443} {10000 10300}] 10.1.0.5:443 10.1.0.6:443 e a"))
}
