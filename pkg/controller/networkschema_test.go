package controller

import (
	"fmt"
	"strings"
	"testing"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
)

// many returns as many different values as a list may have, and one more if over is true.
func many(limit int, over bool, value func(i int) string) (all []string) {
	if over {
		limit++
	}
	for i := range limit {
		all = append(all, value(i))
	}
	return all
}

// largest is a network with as many and as long values as the CRD permits.
func largest(cluster *clusterv1.Cluster) *v1alpha1.RemoteNetwork {
	n := networkNamed(cluster, strings.Repeat("n", 63))
	n.Spec.CIDRs = many(32, false, func(i int) string {
		return fmt.Sprintf("fd00:1111:2222:3333:4444:5555:6666:%x/128", i)
	})
	label := strings.Repeat("a", 61)
	n.Spec.DNSSuffixes = many(16, false, func(i int) string {
		return fmt.Sprintf("%02d%s.%s.%s.%s", i, label, label, label, label)
	})
	for i := range 16 {
		n.Spec.Ports = append(n.Spec.Ports, v1alpha1.NetworkPort{Port: int32(1000 + i), EndPort: 65535})
		n.Spec.Targets = append(n.Spec.Targets, v1alpha1.NetworkTarget{
			Name: fmt.Sprintf("%02d%s", i, label), Address: strings.Repeat(label+".", 4), Port: 65535,
		})
	}
	return n
}

// TestTheAPIServerRejectsInvalidNetworks with messages that name the field and the cure. The largest valid network is
// accepted, so the rules fit into the apiserver's budget for their cost.
func TestTheAPIServerRejectsInvalidNetworks(t *testing.T) {
	m := apiserver(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	controllertest.Create(t, m, largest(cluster))
	target := func(name, address string, port int32) func(*v1alpha1.RemoteNetwork) {
		return func(n *v1alpha1.RemoteNetwork) {
			n.Spec.Targets = []v1alpha1.NetworkTarget{{Name: name, Address: address, Port: port}}
		}
	}
	cidrs := func(all ...string) func(*v1alpha1.RemoteNetwork) {
		return func(n *v1alpha1.RemoteNetwork) { n.Spec.CIDRs = all }
	}
	suffix := func(all ...string) func(*v1alpha1.RemoteNetwork) {
		return func(n *v1alpha1.RemoteNetwork) { n.Spec.DNSSuffixes = all }
	}
	port := func(first, last int32) func(*v1alpha1.RemoteNetwork) {
		return func(n *v1alpha1.RemoteNetwork) { n.Spec.Ports = []v1alpha1.NetworkPort{{Port: first, EndPort: last}} }
	}
	for name, tc := range map[string]struct {
		change func(*v1alpha1.RemoteNetwork)
		want   string
	}{
		"a name with a dot": {
			func(n *v1alpha1.RemoteNetwork) { n.Name = "a.b" }, "metadata.name must be a DNS label",
		},
		"no Cluster":             {func(n *v1alpha1.RemoteNetwork) { n.Spec.ClusterName = "" }, "spec.clusterName"},
		"bits after the prefix":  {cidrs("10.1.0.1/16"), "without bits after its prefix, such as 10.1.0.0/16"},
		"an address for a CIDR":  {cidrs("10.1.0.1"), "such as 10.1.0.0/16"},
		"the same CIDR twice":    {cidrs("10.1.0.0/16", "10.1.0.0/16"), "Duplicate value"},
		"a wildcard":             {suffix("*.example.com"), "without a wildcard"},
		"a dot at the end":       {suffix("example.com."), "without a dot at either end"},
		"upper case":             {suffix("Example.com"), "lower-case DNS domain"},
		"an address for a name":  {suffix("10.1.0.1"), "such as site1.example.com"},
		"port 0":                 {port(0, 0), "must be between 1 and 65535"},
		"a port that is too big": {port(1, 65536), "must be between 1 and 65535"},
		"a reversed range":       {port(443, 80), "endPort must not be less than port"},
		"a target with a dot":    {target("a.b", "10.1.0.1", 0), "must be a DNS label, such as vcenter"},
		"a URL for an address":   {target("a", "https://vcenter", 0), "without https://"},
		"a port in an address":   {target("a", "vcenter:443", 0), "the port goes into the field port"},
		"a target port":          {target("a", "vcenter", 65536), "leave it out for 443"},
		"two targets of a name": {func(n *v1alpha1.RemoteNetwork) {
			n.Spec.Targets = []v1alpha1.NetworkTarget{{Name: "a", Address: "a"}, {Name: "a", Address: "b"}}
		}, "Duplicate value"},
		"too many CIDRs": {
			cidrs(many(32, true, func(i int) string { return fmt.Sprintf("10.%d.0.0/16", i) })...),
			"must have at most 32 items",
		},
		"too many suffixes": {
			suffix(many(16, true, func(i int) string { return fmt.Sprintf("s%d.test", i) })...), "must have at most 16 items",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := networkNamed(cluster, "site")
			tc.change(n)
			if err := m.Create(t.Context(), n); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestTheClusterOfANetworkCannotChange(t *testing.T) {
	m := apiserver(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	site := networkNamed(cluster, "site1", "10.2.0.0/16")
	controllertest.Create(t, m, cluster, site)
	change := site.DeepCopy()
	change.Spec.ClusterName = "c2"
	err := m.Patch(t.Context(), change, client.MergeFrom(site))
	if err == nil || !strings.Contains(err.Error(), "spec.clusterName is immutable") ||
		!strings.Contains(err.Error(), "create another RemoteNetwork") {
		t.Errorf("the Cluster: %v", err)
	}
	tunnel := waitServed(t, m, tunnelNamed(cluster, "site1.network"), "10.2.0.0/16")
	other := tunnel.DeepCopy()
	other.Spec.Network = "site2"
	err = m.Patch(t.Context(), other, client.MergeFrom(tunnel))
	if err == nil || !strings.Contains(err.Error(), "spec.network and spec.egressOf are immutable") {
		t.Errorf("the network of a Tunnel: %v", err)
	}
}

// TestAClusterWithTheNameOfANetworkIsTold why it gets no tunnel, and gets one as soon as the name is free.
func TestAClusterWithTheNameOfANetworkIsTold(t *testing.T) {
	m := apiserver(t)
	owner := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	site := networkNamed(owner, "site1", "10.2.0.0/16")
	controllertest.Create(t, m, owner, site)
	waitServed(t, m, tunnelNamed(owner, "site1.network"), "10.2.0.0/16")
	named := kubetest.Cluster(owner.Namespace, "site1.network")
	controllertest.Create(t, m, named)
	wait := func(what string, is func(c *metav1.Condition) bool) {
		t.Helper()
		controllertest.Eventually(t, func() error {
			if err := m.Get(t.Context(), client.ObjectKeyFromObject(named), named); err != nil {
				return err
			}
			c := apimeta.FindStatusCondition(named.Status.Conditions, v1alpha1.ClusterConditionTunnelReady)
			if !is(c) {
				return fmt.Errorf("%s: the condition is %+v", what, c)
			}
			return nil
		})
	}
	taken := func(c *metav1.Condition) bool {
		return c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonNameTaken &&
			strings.Contains(c.Message, "the RemoteNetwork site1") && strings.Contains(c.Message, "rename that RemoteNetwork")
	}
	wait("the name is taken", taken)
	label := named.Labels
	controllertest.Edit(t, m, named, func(c *clusterv1.Cluster) { c.Labels = nil })
	wait("it opts out", func(c *metav1.Condition) bool { return c == nil })
	controllertest.Edit(t, m, named, func(c *clusterv1.Cluster) { c.Labels = label })
	wait("it opts in again", taken)
	if err := m.Delete(t.Context(), site); err != nil {
		t.Fatal(err)
	}
	wait("the name is free", func(c *metav1.Condition) bool {
		return c != nil && c.Reason != v1alpha1.ReasonNameTaken
	})
	controllertest.Eventually(t, func() error {
		tunnel := controllertest.Read(t, m, tunnelNamed(named, named.Name))
		if !tunnel.OfCluster() || tunnel.HeldID() == "" {
			return fmt.Errorf("spec %+v", tunnel.Spec)
		}
		return nil
	})
}
