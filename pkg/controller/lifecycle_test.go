package controller

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

const capiFinalizer = "cluster.cluster.x-k8s.io"

func TestADeletingClusterKeepsEverythingUntilItIsGone(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	cluster, secret := kubetest.Cluster(ns, "c1"), kubeconfigSecret(t, ns, "c1", originalServer)
	cluster.Finalizers = []string{capiFinalizer}
	create(t, m, cluster, secret.DeepCopy())
	tunnel := waitReady(t, m, cluster)
	for _, o := range []client.Object{cluster, tunnel} { // the Tunnel as a foreground deletion does
		if err := m.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	edit(t, m, secret.DeepCopy(), func(s *corev1.Secret) { s.Data = secret.Data }) // a provider that writes in each round
	waitServer(t, m, secret, connectServer(cluster))
	edit(t, m, cluster, func(c *clusterv1.Cluster) { c.Labels[v1alpha1.TunnelLabel] = v1alpha1.TunnelDisabled })
	settled(t, m, ns)
	if now := read(t, m, tunnel); now.UID != tunnel.UID || !hasFinalizer(now) {
		t.Errorf("the Tunnel is another, or has lost its finalizer: %+v", now.ObjectMeta)
	}
	read(t, m, bootstrapOf(cluster))
	waitServer(t, m, secret, connectServer(cluster))

	edit(t, m, cluster, func(c *clusterv1.Cluster) { c.Finalizers = nil })
	waitGone(t, m, tunnel)
	waitGone(t, m, bootstrapOf(cluster))
}

func TestAClusterThatIsMadeAgainGetsAnotherTunnel(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	cluster := kubetest.Cluster(ns, "c1")
	create(t, m, cluster, kubeconfigSecret(t, ns, "c1", originalServer))
	first := waitReady(t, m, cluster)
	token := string(read(t, m, bootstrapOf(cluster)).Data[v1alpha1.BootstrapTokenKey])
	if err := m.Delete(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	again := kubetest.Cluster(ns, "c1")
	create(t, m, again)
	eventually(t, func() error {
		tunnel := tunnelNamed(again)
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); err != nil {
			return err
		}
		if tunnel.Spec.ID == first.Spec.ID || !metav1.IsControlledBy(tunnel, again) {
			return fmt.Errorf("the Tunnel has id %s and owners %v", tunnel.Spec.ID, tunnel.OwnerReferences)
		}
		return nil
	})
	waitReady(t, m, again)
	if string(read(t, m, bootstrapOf(again)).Data[v1alpha1.BootstrapTokenKey]) == token {
		t.Error("the new Cluster's edges enrol with the old Cluster's token")
	}
}

func TestTheTunnelOfAClusterThatIsGoneGoes(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	orphan := tunnelNamed(kubetest.Cluster(ns, "c1"))
	orphan.Finalizers = []string{v1alpha1.TunnelFinalizer}
	orphan.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "c1", UID: "gone", Controller: ptr.To(true)}}
	create(t, m, orphan)
	waitGone(t, m, orphan)
}

func TestNothingIsWrittenWhilePaused(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	bySpec, byAnnotation, byTunnel := kubetest.Cluster(ns, "spec"), kubetest.Cluster(ns, "annotation"), kubetest.Cluster(ns, "tunnel")
	bySpec.Spec.Paused = ptr.To(true)
	byAnnotation.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	pausedTunnel := tunnelNamed(byTunnel)
	pausedTunnel.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	create(t, m, pausedTunnel)
	all := []*clusterv1.Cluster{bySpec, byAnnotation, byTunnel}
	for _, c := range all {
		create(t, m, c, kubeconfigSecret(t, ns, c.Name, originalServer))
	}
	settled(t, m, ns)
	for _, c := range all {
		waitServer(t, m, kubeconfigSecret(t, ns, c.Name, ""), originalServer)
	}
	edit(t, m, bySpec, func(c *clusterv1.Cluster) { c.Spec.Paused = nil })
	edit(t, m, byAnnotation, func(c *clusterv1.Cluster) { c.Annotations = nil })
	edit(t, m, pausedTunnel, func(t *v1alpha1.Tunnel) { t.Annotations = nil })
	for _, c := range all {
		waitReady(t, m, c)
	}
	// Pausing keeps what was written, even when the Tunnel is deleted: so clusterctl moves it.
	edit(t, m, bySpec, func(c *clusterv1.Cluster) {
		c.Spec.Paused = ptr.To(true)
		c.Labels[v1alpha1.TunnelLabel] = v1alpha1.TunnelDisabled
	})
	settled(t, m, ns)
	waitServer(t, m, kubeconfigSecret(t, ns, bySpec.Name, ""), connectServer(bySpec))
	read(t, m, tunnelNamed(bySpec))
}

func TestAProvidersRewriteIsRewrittenAndKept(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	cluster, secret := kubetest.Cluster(ns, "c1"), kubeconfigSecret(t, ns, "c1", originalServer)
	create(t, m, cluster, secret.DeepCopy())
	waitReady(t, m, cluster)
	moved := kubeconfigSecret(t, ns, "c1", "https://192.0.2.99:6443")
	edit(t, m, secret.DeepCopy(), func(s *corev1.Secret) { s.Data = moved.Data })
	eventually(t, func() error {
		now := read(t, m, secret)
		if got := now.Annotations[v1alpha1.OriginalServerAnnotation]; got != "https://192.0.2.99:6443" || entryOf(t, now).ProxyURL == "" {
			return fmt.Errorf("original server %s, entry %+v", got, entryOf(t, now).Server)
		}
		return nil
	})
}

func TestCertificateRotationKeepsTheOriginal(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	cluster, secret := kubetest.Cluster(ns, "c1"), kubeconfigSecret(t, ns, "c1", originalServer)
	create(t, m, cluster, secret.DeepCopy())
	waitReady(t, m, cluster)
	rotated := kubeconfigSecret(t, ns, "c1", connectServer(cluster)) // other credentials, our server, no proxy-url
	edit(t, m, secret.DeepCopy(), func(s *corev1.Secret) { s.Data = rotated.Data })
	eventually(t, func() error {
		now := read(t, m, secret)
		if got := now.Annotations[v1alpha1.OriginalServerAnnotation]; got != originalServer || entryOf(t, now).ProxyURL == "" {
			return fmt.Errorf("original server %s, entry %+v", got, entryOf(t, now).Server)
		}
		return nil
	})
	config, err := clientcmd.Load(read(t, m, secret).Data[kubeconfig.Key])
	if err != nil {
		t.Fatal(err)
	}
	want, err := clientcmd.Load(rotated.Data[kubeconfig.Key])
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(config.AuthInfos["c1-admin"].ClientKeyData, want.AuthInfos["c1-admin"].ClientKeyData) {
		t.Error("the rotated credentials were lost")
	}
}

func TestTheBootstrapSecretComesBack(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	cluster := kubetest.Cluster(ns, "c1")
	create(t, m, cluster)
	waitCondition(t, m, cluster, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
	secret := bootstrapOf(cluster)
	eventually(t, func() error { return m.Get(t.Context(), client.ObjectKeyFromObject(secret), secret) })
	first := secret.DeepCopy()

	edit(t, m, secret, func(s *corev1.Secret) { s.Data[v1alpha1.BootstrapGatewayKey] = []byte("elsewhere:1") })
	eventually(t, func() error {
		if now := read(t, m, secret); string(now.Data[v1alpha1.BootstrapGatewayKey]) != "gw.example.com:443" {
			return fmt.Errorf("gateway %s", now.Data[v1alpha1.BootstrapGatewayKey])
		}
		return nil
	})
	if string(read(t, m, secret).Data[v1alpha1.BootstrapTokenKey]) != string(first.Data[v1alpha1.BootstrapTokenKey]) {
		t.Error("an edit of the Secret has cost a token")
	}
	if err := m.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	waitToken(t, m, cluster, string(first.Data[v1alpha1.BootstrapTokenKey]))
	// Whoever has stolen the token that was in it, and did not use it, is left with nothing.
	tunnel := read(t, m, tunnelNamed(cluster))
	stolen := edgeRequest(t, cluster.Namespace+"/c1")
	stolen.Annotations[v1alpha1.RequestTunnelIDAnnotation] = tunnel.Spec.ID
	stolen.Annotations[v1alpha1.RequestTokenAnnotation] = enrol.HashToken(string(first.Data[v1alpha1.BootstrapTokenKey]))
	if got := denialOf(answered(t, m, stolen)); got != reasonUnknownToken {
		t.Errorf("the token of the deleted Secret got %q", got)
	}
}

func TestATokenMakesRoomForAnotherWellBeforeItEnds(t *testing.T) {
	for name, wearOut := range map[string]func(*v1alpha1.TokenStatus){
		"after half of its life": func(s *v1alpha1.TokenStatus) { s.ExpiresAt = metav1.NewTime(time.Now().Add(11 * time.Hour)) },
		"after half of its uses": func(s *v1alpha1.TokenStatus) { s.Uses = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			m := apiserver(t)
			ns := kubetest.NewNamespace(t, m)
			cluster := kubetest.Cluster(ns, "c1")
			create(t, m, cluster)
			secret := bootstrapOf(cluster)
			eventually(t, func() error { return m.Get(t.Context(), client.ObjectKeyFromObject(secret), secret) })
			old := string(secret.Data[v1alpha1.BootstrapTokenKey])
			tunnel := tunnelNamed(cluster)
			eventually(t, func() error {
				if err := m.Get(t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); err != nil {
					return err
				}
				wearOut(&tunnel.Status.Tokens[indexToken(tunnel.Status.Tokens, enrol.HashToken(old))])
				return m.Status().Update(t.Context(), tunnel)
			})
			waitToken(t, m, cluster, old)
			if tokens := read(t, m, tunnel).Status.Tokens; indexToken(tokens, enrol.HashToken(old)) < 0 {
				t.Errorf("the old token, which machines may have, is not on record: %+v", tokens)
			}
		})
	}
}

// waitToken waits until a bootstrap Secret has another token than before, and checks that it is on record.
func waitToken(t *testing.T, m *management, cluster *clusterv1.Cluster, before string) {
	t.Helper()
	secret, tunnel := bootstrapOf(cluster), tunnelNamed(cluster)
	eventually(t, func() error {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
			return err
		}
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); err != nil {
			return err
		}
		token := string(secret.Data[v1alpha1.BootstrapTokenKey])
		if token == before || indexToken(tunnel.Status.Tokens, enrol.HashToken(token)) < 0 {
			return fmt.Errorf("the token is the old one, or not among the %d on record", len(tunnel.Status.Tokens))
		}
		return nil
	})
}
