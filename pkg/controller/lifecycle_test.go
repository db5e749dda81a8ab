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
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/controller/signer"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

const capiFinalizer = "cluster.cluster.x-k8s.io"

func TestADeletingClusterKeepsItsTunnelUntilItIsRemoved(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	cluster, secret := kubetest.Cluster(ns, "c1"), controllertest.KubeconfigSecret(
		t, ns, "c1", controllertest.OriginalServer,
	)
	cluster.Finalizers = []string{capiFinalizer}
	controllertest.Create(t, m, cluster, secret.DeepCopy())
	tunnel := waitReady(t, m, cluster)
	for _, o := range []client.Object{cluster, tunnel} { // the Tunnel as a foreground deletion does
		if err := m.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	// a provider that writes in each round
	controllertest.Edit(t, m, secret.DeepCopy(), func(s *corev1.Secret) { s.Data = secret.Data })
	waitServer(t, m, secret, controllertest.ConnectServer(cluster))
	controllertest.Edit(
		t, m, cluster, func(c *clusterv1.Cluster) { c.Labels[v1alpha1.TunnelLabel] = v1alpha1.TunnelDisabled },
	)
	settled(t, m, ns)
	if now := controllertest.Read(t, m, tunnel); now.UID != tunnel.UID || !controllertest.HasFinalizer(now) {
		t.Errorf("the Tunnel is another, or has lost its finalizer: %+v", now.ObjectMeta)
	}
	controllertest.Read(t, m, controllertest.BootstrapOf(cluster))
	waitServer(t, m, secret, controllertest.ConnectServer(cluster))

	controllertest.Edit(t, m, cluster, func(c *clusterv1.Cluster) { c.Finalizers = nil })
	controllertest.WaitGone(t, m, tunnel)
	controllertest.WaitGone(t, m, controllertest.BootstrapOf(cluster))
}

func TestARecreatedClusterGetsAnotherTunnel(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	cluster := kubetest.Cluster(ns, "c1")
	controllertest.Create(t, m, cluster, controllertest.KubeconfigSecret(t, ns, "c1", controllertest.OriginalServer))
	first := waitReady(t, m, cluster)
	token := string(controllertest.Read(t, m, controllertest.BootstrapOf(cluster)).Data[v1alpha1.BootstrapTokenKey])
	if err := m.Delete(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	again := kubetest.Cluster(ns, "c1")
	controllertest.Create(t, m, again)
	controllertest.Eventually(t, func() error {
		tunnel := controllertest.TunnelNamed(again)
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); err != nil {
			return err
		}
		if tunnel.Spec.ID == first.Spec.ID || !metav1.IsControlledBy(tunnel, again) {
			return fmt.Errorf("the Tunnel has id %s and owners %v", tunnel.Spec.ID, tunnel.OwnerReferences)
		}
		return nil
	})
	waitReady(t, m, again)
	if string(controllertest.Read(t, m, controllertest.BootstrapOf(again)).Data[v1alpha1.BootstrapTokenKey]) == token {
		t.Error("the new Cluster's edges enrol with the old Cluster's token")
	}
}

func TestTheTunnelOfARemovedClusterIsRemoved(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	orphan := controllertest.TunnelNamed(kubetest.Cluster(ns, "c1"))
	orphan.Finalizers = []string{v1alpha1.TunnelFinalizer}
	orphan.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "c1", UID: "gone", Controller: ptr.To(true),
	}}
	controllertest.Create(t, m, orphan)
	controllertest.WaitGone(t, m, orphan)
}

func TestNothingIsWrittenWhilePaused(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	bySpec, byAnnotation, byTunnel := kubetest.Cluster(ns, "spec"), kubetest.Cluster(
		ns, "annotation",
	), kubetest.Cluster(ns, "tunnel")
	bySpec.Spec.Paused = ptr.To(true)
	byAnnotation.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	pausedTunnel := controllertest.TunnelNamed(byTunnel)
	pausedTunnel.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	controllertest.Create(t, m, pausedTunnel)
	all := []*clusterv1.Cluster{bySpec, byAnnotation, byTunnel}
	for _, c := range all {
		controllertest.Create(t, m, c, controllertest.KubeconfigSecret(t, ns, c.Name, controllertest.OriginalServer))
	}
	settled(t, m, ns)
	for _, c := range all {
		waitServer(t, m, controllertest.KubeconfigSecret(t, ns, c.Name, ""), controllertest.OriginalServer)
	}
	controllertest.Edit(t, m, bySpec, func(c *clusterv1.Cluster) { c.Spec.Paused = nil })
	controllertest.Edit(t, m, byAnnotation, func(c *clusterv1.Cluster) { c.Annotations = nil })
	controllertest.Edit(t, m, pausedTunnel, func(t *v1alpha1.Tunnel) { t.Annotations = nil })
	for _, c := range all {
		waitReady(t, m, c)
	}
	// Pausing keeps what was written, even when the Tunnel is deleted: this is how clusterctl moves it.
	controllertest.Edit(t, m, bySpec, func(c *clusterv1.Cluster) {
		c.Spec.Paused = ptr.To(true)
		c.Labels[v1alpha1.TunnelLabel] = v1alpha1.TunnelDisabled
	})
	settled(t, m, ns)
	waitServer(t, m, controllertest.KubeconfigSecret(t, ns, bySpec.Name, ""), controllertest.ConnectServer(bySpec))
	controllertest.Read(t, m, controllertest.TunnelNamed(bySpec))
}

func TestAProvidersRewriteIsRewrittenAndKept(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	cluster, secret := kubetest.Cluster(ns, "c1"), controllertest.KubeconfigSecret(
		t, ns, "c1", controllertest.OriginalServer,
	)
	controllertest.Create(t, m, cluster, secret.DeepCopy())
	waitReady(t, m, cluster)
	moved := controllertest.KubeconfigSecret(t, ns, "c1", "https://192.0.2.99:6443")
	controllertest.Edit(t, m, secret.DeepCopy(), func(s *corev1.Secret) { s.Data = moved.Data })
	controllertest.Eventually(t, func() error {
		now := controllertest.Read(t, m, secret)
		if got := now.Annotations[v1alpha1.OriginalServerAnnotation]; got != "https://192.0.2.99:6443" ||
			controllertest.EntryOf(t, now).ProxyURL == "" {
			return fmt.Errorf("original server %s, entry %+v", got, controllertest.EntryOf(t, now).Server)
		}
		return nil
	})
}

func TestCertificateRotationKeepsTheOriginal(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	cluster, secret := kubetest.Cluster(ns, "c1"), controllertest.KubeconfigSecret(
		t, ns, "c1", controllertest.OriginalServer,
	)
	controllertest.Create(t, m, cluster, secret.DeepCopy())
	waitReady(t, m, cluster)
	// other credentials, our server, no proxy-url
	rotated := controllertest.KubeconfigSecret(t, ns, "c1", controllertest.ConnectServer(cluster))
	controllertest.Edit(t, m, secret.DeepCopy(), func(s *corev1.Secret) { s.Data = rotated.Data })
	controllertest.Eventually(t, func() error {
		now := controllertest.Read(t, m, secret)
		if got := now.Annotations[v1alpha1.OriginalServerAnnotation]; got != controllertest.OriginalServer ||
			controllertest.EntryOf(t, now).ProxyURL == "" {
			return fmt.Errorf("original server %s, entry %+v", got, controllertest.EntryOf(t, now).Server)
		}
		return nil
	})
	config, err := clientcmd.Load(controllertest.Read(t, m, secret).Data[kubeconfig.Key])
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

func TestADeletedBootstrapSecretIsRecreated(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	cluster := kubetest.Cluster(ns, "c1")
	controllertest.Create(t, m, cluster)
	waitCondition(t, m, cluster, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
	secret := controllertest.BootstrapOf(cluster)
	controllertest.Eventually(t, func() error { return m.Get(t.Context(), client.ObjectKeyFromObject(secret), secret) })
	first := secret.DeepCopy()

	controllertest.Edit(
		t, m, secret, func(s *corev1.Secret) { s.Data[v1alpha1.BootstrapGatewayKey] = []byte("elsewhere:1") },
	)
	controllertest.Eventually(t, func() error {
		if now := controllertest.Read(t, m, secret); string(now.Data[v1alpha1.BootstrapGatewayKey]) != "gw.example.com:443" {
			return fmt.Errorf("gateway %s", now.Data[v1alpha1.BootstrapGatewayKey])
		}
		return nil
	})
	if string(
		controllertest.Read(t, m, secret).Data[v1alpha1.BootstrapTokenKey],
	) != string(first.Data[v1alpha1.BootstrapTokenKey]) {
		t.Error("an edit of the Secret has cost a token")
	}
	if err := m.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	waitToken(t, m, cluster, string(first.Data[v1alpha1.BootstrapTokenKey]))
	// A stolen token from the Secret that was not used yet is then worthless.
	tunnel := controllertest.Read(t, m, controllertest.TunnelNamed(cluster))
	stolen := controllertest.EdgeRequest(t, cluster.Namespace+"/c1")
	stolen.Annotations[v1alpha1.RequestTunnelIDAnnotation] = tunnel.Spec.ID
	stolen.Annotations[v1alpha1.RequestTokenAnnotation] = enrol.HashToken(string(first.Data[v1alpha1.BootstrapTokenKey]))
	if got := denialOf(answered(t, m, stolen)); got != signer.ReasonUnknownToken {
		t.Errorf("the token of the deleted Secret got %q", got)
	}
}

func TestATokenIsReplacedWellBeforeItExpires(t *testing.T) {
	for name, wearOut := range map[string]func(*v1alpha1.TokenStatus){
		"after half of its life": func(
			s *v1alpha1.TokenStatus,
		) {
			s.ExpiresAt = metav1.NewTime(time.Now().Add(11 * time.Hour))
		},
		"after half of its uses": func(s *v1alpha1.TokenStatus) { s.Uses = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			m := apiserver(t)
			ns := kubetest.NewNamespace(t, m)
			cluster := kubetest.Cluster(ns, "c1")
			controllertest.Create(t, m, cluster)
			secret := controllertest.BootstrapOf(cluster)
			controllertest.Eventually(t, func() error { return m.Get(t.Context(), client.ObjectKeyFromObject(secret), secret) })
			old := string(secret.Data[v1alpha1.BootstrapTokenKey])
			tunnel := controllertest.TunnelNamed(cluster)
			controllertest.Eventually(t, func() error {
				if err := m.Get(t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); err != nil {
					return err
				}
				wearOut(&tunnel.Status.Tokens[records.TokenIndex(tunnel.Status.Tokens, enrol.HashToken(old))])
				return m.Status().Update(t.Context(), tunnel)
			})
			waitToken(t, m, cluster, old)
			if tokens := controllertest.Read(t, m, tunnel).Status.Tokens; records.TokenIndex(tokens, enrol.HashToken(old)) < 0 {
				t.Errorf("the old token, which machines may have, is not on record: %+v", tokens)
			}
		})
	}
}

// waitToken waits until a bootstrap Secret has a new token, and checks that it is recorded.
func waitToken(t *testing.T, m *management, cluster *clusterv1.Cluster, before string) {
	t.Helper()
	secret, tunnel := controllertest.BootstrapOf(cluster), controllertest.TunnelNamed(cluster)
	controllertest.Eventually(t, func() error {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
			return err
		}
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); err != nil {
			return err
		}
		token := string(secret.Data[v1alpha1.BootstrapTokenKey])
		if token == before || records.TokenIndex(tunnel.Status.Tokens, enrol.HashToken(token)) < 0 {
			return fmt.Errorf("the token is the old one, or not among the %d on record", len(tunnel.Status.Tokens))
		}
		return nil
	})
}
