package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/model"
)

func networkNamed(cluster *clusterv1.Cluster, name string, cidrs ...string) *v1alpha1.RemoteNetwork {
	return &v1alpha1.RemoteNetwork{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: name},
		Spec:       v1alpha1.RemoteNetworkSpec{ClusterName: cluster.Name, CIDRs: cidrs},
	}
}

func tunnelNamed(cluster *clusterv1.Cluster, name string) *v1alpha1.Tunnel {
	return &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: name}}
}

// waitServed waits until a Tunnel holds its id and its network has these CIDRs, and returns it.
func waitServed(t *testing.T, m client.Client, tunnel *v1alpha1.Tunnel, cidrs ...string) *v1alpha1.Tunnel {
	t.Helper()
	controllertest.Eventually(t, func() error {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); err != nil {
			return err
		}
		served := tunnel.Status.Served
		if tunnel.HeldID() == "" || served == nil {
			return fmt.Errorf("status %+v", tunnel.Status)
		}
		if tunnel.Spec.Network != "" && (served.Network == nil || !slices.Equal(served.Network.CIDRs, cidrs)) {
			return fmt.Errorf("served %+v, want %v", served.Network, cidrs)
		}
		return nil
	})
	return tunnel
}

func waitNetwork(t *testing.T, m client.Client, n *v1alpha1.RemoteNetwork, kind, reason, message string) {
	t.Helper()
	controllertest.Eventually(t, func() error {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(n), n); err != nil {
			return err
		}
		c := apimeta.FindStatusCondition(n.Status.Conditions, kind)
		if c == nil || c.Reason != reason || !strings.Contains(c.Message, message) ||
			c.ObservedGeneration != n.Generation {
			return fmt.Errorf("%s is %+v, want %s with %q", kind, c, reason, message)
		}
		return nil
	})
}

// TestANetworkFromItsSpecToItsEnd with the real manager and exactly its permissions.
func TestANetworkFromItsSpecToItsEnd(t *testing.T) {
	m := apiserver(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	cluster.Labels = nil // a network needs no tunnel to the apiserver
	cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "10.9.0.1", Port: 6443}
	// 10.1.0.0/16 contains the gateways of controllertest.Config.
	site := networkNamed(cluster, "site1", "10.2.0.0/16", "10.1.0.0/16")
	site.Spec.Targets = []v1alpha1.NetworkTarget{{Name: "vcenter", Address: "10.1.0.5"}}
	controllertest.Create(t, m, site)
	waitNetwork(t, m, site, v1alpha1.ConditionAccepted, v1alpha1.ReasonNoCluster, "create it")
	controllertest.Create(t, m, cluster)

	own := waitServed(t, m, tunnelNamed(cluster, "site1.network"), "10.2.0.0/16")
	waitNetwork(t, m, site, v1alpha1.ConditionAccepted, v1alpha1.ReasonNetworkHasGateway, "10.1.1.1")
	egress := waitServed(t, m, tunnelNamed(cluster, "c1.egress"))
	waitServed(t, m, own, "10.2.0.0/16")
	controllertest.Eventually(t, func() error {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(own), own); err != nil {
			return err
		}
		served := own.Status.Served
		if served.Network.EgressID != egress.HeldID() || served.ClusterUID != cluster.UID {
			return fmt.Errorf("served %+v", served)
		}
		return nil
	})
	if !metav1.IsControlledBy(own, site) || !metav1.IsControlledBy(egress, cluster) ||
		!metav1.IsControlledBy(controllertest.Read(t, m, site), cluster) {
		t.Error("the objects do not move and end with their Cluster")
	}
	checkBootstrap(t, m, own, "")
	checkBootstrap(t, m, egress, "egress")
	controllertest.Edit(t, m, site, func(n *v1alpha1.RemoteNetwork) { n.Spec.CIDRs = n.Spec.CIDRs[:1] })
	waitNetwork(t, m, site, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, "--apiserver-cidrs")
	if want := "vcenter.site1.c1." + cluster.Namespace + ".tunnels.example.com"; !slices.Equal(
		site.Status.Targets, []string{want},
	) || site.Status.Tunnel != own.Name {
		t.Errorf("status %+v", site.Status)
	}

	second := networkNamed(cluster, "site2", "10.2.0.0/16", "10.3.0.0/16")
	controllertest.Create(t, m, second)
	other := waitServed(t, m, tunnelNamed(cluster, "site2.network"), "10.3.0.0/16")
	waitNetwork(t, m, second, v1alpha1.ConditionAccepted, v1alpha1.ReasonAmbiguousNetwork, "site1")
	if err := m.Delete(t.Context(), site); err != nil {
		t.Fatal(err)
	}
	controllertest.WaitGone(t, m, own)
	waitEnded(t, m, own)
	waitServed(t, m, other, "10.2.0.0/16", "10.3.0.0/16")
	waitNetwork(t, m, second, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, "")

	if err := m.Delete(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	controllertest.WaitGone(t, m, other)
	settled(t, m, cluster.Namespace)
	if now := controllertest.Read(t, m, egress); now.UID != egress.UID || !now.DeletionTimestamp.IsZero() {
		t.Errorf("apiservers have another identity without a network: %+v", now.ObjectMeta)
	}
	checkBootstrap(t, m, egress, "egress")
	if err := m.Delete(t.Context(), egress); err != nil {
		t.Fatal(err)
	}
	controllertest.WaitGone(t, m, egress)
	waitEnded(t, m, egress)
}

// checkBootstrap waits for the bootstrap Secret of a Tunnel, and compares its file with the Tunnel.
func checkBootstrap(t *testing.T, m client.Client, tunnel *v1alpha1.Tunnel, role string) {
	t.Helper()
	secret := controllertest.SecretNamed(tunnel.Namespace, tunnel.Name+v1alpha1.BootstrapSecretSuffix)
	var file struct{ ID, Role, Token string }
	controllertest.Eventually(t, func() error {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
			return err
		}
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); err != nil {
			return err
		}
		return yaml.Unmarshal(secret.Data[v1alpha1.BootstrapFileKey], &file)
	})
	recorded := slices.ContainsFunc(tunnel.Status.Tokens, func(token v1alpha1.TokenStatus) bool {
		return token.SHA256 == enrol.HashToken(file.Token)
	})
	if file.ID != tunnel.HeldID() || file.Role != role || !recorded || !metav1.IsControlledBy(secret, tunnel) {
		t.Errorf("id %q, role %q, token on record: %t", file.ID, file.Role, recorded)
	}
	if len(tunnel.Status.BootReportTokens) != 0 {
		t.Error("machines would report to a Tunnel that is not their Cluster's")
	}
}

// waitEnded waits until the id of a Tunnel is on the record of ended tunnels, by which its nodes are denied.
func waitEnded(t *testing.T, m client.Client, tunnel *v1alpha1.Tunnel) {
	t.Helper()
	record := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: controllertest.Config().Namespace, Name: v1alpha1.EndedTunnelsConfigMapName,
	}}
	controllertest.Eventually(t, func() error {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(record), record); err != nil {
			return err
		}
		if _, ok := record.Data[tunnel.Spec.ID]; !ok {
			return fmt.Errorf("%s is not on record", tunnel.Spec.ID)
		}
		return nil
	})
}

// TestTheTunnelsOfNetworksArePreparedForTheirCluster does what clusterctl does to the management cluster that it moves
// a Cluster to, in the order that is worst for the Tunnel of the apiservers: it arrives before the RemoteNetwork.
func TestTheTunnelsOfNetworksArePreparedForTheirCluster(t *testing.T) {
	m := apiserver(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	cluster.Spec.Paused = ptr.To(true)
	site := networkNamed(cluster, "site1", "10.2.0.0/16")
	own, egress := tunnelNamed(cluster, "site1.network"), tunnelNamed(cluster, "c1.egress")
	own.Spec = v1alpha1.TunnelSpec{ID: model.NewID(), Network: "site1"}
	egress.Spec = v1alpha1.TunnelSpec{ID: model.NewID(), EgressOf: "c1"}
	tokens := map[string]string{}
	for _, tunnel := range []*v1alpha1.Tunnel{own, egress} {
		tunnel.Annotations = map[string]string{
			v1alpha1.PreparedAnnotation: time.Now().Add(time.Hour).Format(time.RFC3339),
		}
		controllertest.Create(t, m, tunnel)
		tokens[tunnel.Name] = tokenOf(t, m, tunnel)
		if now := controllertest.Read(t, m, tunnel); now.Status.Served == nil || !now.Status.Served.EnrolmentOnly ||
			now.HeldID() == "" {
			t.Errorf("%s has the status %+v", tunnel.Name, now.Status)
		}
	}
	checkBootstrap(t, m, egress, "egress")

	moveTunnel := func(tunnel *v1alpha1.Tunnel, owner metav1.OwnerReference) {
		have := controllertest.Read(t, m, tunnel)
		moved := tunnelNamed(cluster, tunnel.Name)
		moved.Spec, moved.OwnerReferences = have.Spec, []metav1.OwnerReference{owner}
		moved.Finalizers = []string{v1alpha1.TunnelFinalizer}
		moved.UID, moved.ResourceVersion = have.UID, have.ResourceVersion
		if err := m.Update(t.Context(), moved); err != nil {
			t.Fatal(err)
		}
	}
	controllertest.Create(t, m, cluster)
	moveTunnel(egress, *metav1.NewControllerRef(cluster, clusterv1.GroupVersion.WithKind("Cluster")))
	waitAccepted(t, m, egress)
	controllertest.Create(t, m, site)
	moveTunnel(own, *metav1.NewControllerRef(site, v1alpha1.GroupVersion.WithKind("RemoteNetwork")))
	waitServed(t, m, own, "10.2.0.0/16")
	if id := own.Status.Served.Network.EgressID; id != egress.Spec.ID {
		t.Errorf("apiservers with the id %q reach the network of the paused Cluster, want %q", id, egress.Spec.ID)
	}
	controllertest.Edit(t, m, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = nil })
	waitNetwork(t, m, site, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, "")
	for _, tunnel := range []*v1alpha1.Tunnel{own, egress} {
		if now := controllertest.Read(t, m, tunnel); now.UID != tunnel.UID || tokenOf(t, m, now) != tokens[tunnel.Name] {
			t.Errorf("%s is another one, or has another token", tunnel.Name)
		}
	}
}

// waitAccepted waits until the decision about a Tunnel is on record as granted.
func waitAccepted(t *testing.T, m client.Client, tunnel *v1alpha1.Tunnel) {
	t.Helper()
	controllertest.Eventually(t, func() error {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); err != nil {
			return err
		}
		if served := tunnel.Status.Served; served == nil || served.EnrolmentOnly {
			return fmt.Errorf("status %+v", tunnel.Status)
		}
		return nil
	})
}

// TestATunnelOfANetworkThatWaitsTooLongEnds: the edges of a Cluster that does not arrive are denied.
func TestATunnelOfANetworkThatWaitsTooLongEnds(t *testing.T) {
	m := apiserver(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	own := tunnelNamed(cluster, "site1.network")
	own.Spec = v1alpha1.TunnelSpec{ID: model.NewID(), Network: "site1"}
	own.Annotations = map[string]string{v1alpha1.PreparedAnnotation: time.Now().Add(time.Hour).Format(time.RFC3339)}
	controllertest.Create(t, m, own)
	tokenOf(t, m, own)
	controllertest.Edit(t, m, own, func(t *v1alpha1.Tunnel) {
		t.Annotations[v1alpha1.PreparedAnnotation] = time.Now().Format(time.RFC3339)
	})
	controllertest.WaitGone(t, m, own)
	waitEnded(t, m, own)
}

// TestAPausedNetworkIsRecordedAndNotCreated: clusterctl moves paused objects, and restores the Tunnels itself.
func TestAPausedNetworkIsRecordedAndNotCreated(t *testing.T) {
	m := apiserver(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	cluster.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	controllertest.Create(t, m, cluster)
	moved, fresh := networkNamed(cluster, "moved", "10.2.0.0/16"), networkNamed(cluster, "fresh", "10.3.0.0/16")
	controllertest.Create(t, m, moved, fresh)
	tunnel := tunnelNamed(cluster, "moved.network")
	tunnel.Spec = v1alpha1.TunnelSpec{ID: "moved000000000000000", Network: "moved"}
	tunnel.OwnerReferences = []metav1.OwnerReference{
		*metav1.NewControllerRef(moved, v1alpha1.GroupVersion.WithKind("RemoteNetwork")),
	}
	controllertest.Create(t, m, tunnel)
	waitServed(t, m, tunnel, "10.2.0.0/16")
	waitNetwork(t, m, fresh, v1alpha1.ConditionAccepted, v1alpha1.ReasonUnknown, "does not exist yet")
	controllertest.Eventually(t, func() error {
		now := controllertest.Read(t, m, tunnel)
		if !apimeta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionPaused) {
			return fmt.Errorf("conditions %+v", now.Status.Conditions)
		}
		return nil
	})
	for _, absent := range []*v1alpha1.Tunnel{tunnelNamed(cluster, "fresh.network"), tunnelNamed(cluster, "c1.egress")} {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(absent), absent); client.IgnoreNotFound(err) != nil ||
			err == nil {
			t.Errorf("%s was created while the Cluster is paused: %v", absent.Name, err)
		}
	}
	// A Tunnel that ends while it is paused was moved: its edges are served elsewhere, and not denied here.
	if err := m.Delete(t.Context(), moved); err != nil {
		t.Fatal(err)
	}
	controllertest.WaitGone(t, m, tunnel)
	record := &corev1.ConfigMap{}
	key := client.ObjectKey{Namespace: controllertest.Config().Namespace, Name: v1alpha1.EndedTunnelsConfigMapName}
	if err := m.Get(t.Context(), key, record); client.IgnoreNotFound(err) != nil || record.Data[tunnel.Spec.ID] != "" {
		t.Errorf("the moved tunnel is denied: %v", err)
	}
	controllertest.Edit(t, m, cluster, func(c *clusterv1.Cluster) { c.Annotations = nil })
	waitServed(t, m, tunnelNamed(cluster, "fresh.network"), "10.3.0.0/16")
	waitServed(t, m, tunnelNamed(cluster, "c1.egress"))
}

// TestTheTunnelOfACreatedAgainClusterHasAnotherID: edges of the earlier Cluster must not serve the new one.
func TestTheTunnelOfACreatedAgainClusterHasAnotherID(t *testing.T) {
	m := apiserver(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	site := networkNamed(cluster, "site1", "10.2.0.0/16")
	site.Finalizers = []string{"example.com/keep"} // it outlives the Cluster
	controllertest.Create(t, m, cluster, site)
	tunnel := waitServed(t, m, tunnelNamed(cluster, "site1.network"), "10.2.0.0/16")
	first := tunnel.Spec.ID
	if err := m.Delete(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	waitEnded(t, m, &v1alpha1.Tunnel{Spec: v1alpha1.TunnelSpec{ID: first}})
	again := kubetest.Cluster(cluster.Namespace, "c1")
	controllertest.Create(t, m, again)
	controllertest.Eventually(t, func() error {
		waitServed(t, m, tunnel, "10.2.0.0/16")
		if tunnel.Spec.ID == first || tunnel.Status.Served.ClusterUID != again.UID {
			return fmt.Errorf("id %s, served %+v", tunnel.Spec.ID, tunnel.Status.Served)
		}
		return nil
	})
	if !metav1.IsControlledBy(controllertest.Read(t, m, site), again) {
		t.Error("the network does not belong to the new Cluster")
	}
}
