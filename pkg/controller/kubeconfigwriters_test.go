package controller

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capikubeconfig "sigs.k8s.io/cluster-api/util/kubeconfig"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// writers are what control-plane providers do to a kubeconfig Secret, by Cluster API's own code where that is what they use.
// Each gets the Secret as it is; nil: there is none yet.
func writers(t *testing.T, m *management, cluster *clusterv1.Cluster, authority *corev1.Secret) map[string]func(*corev1.Secret) error {
	t.Helper()
	owner := metav1.OwnerReference{APIVersion: "controlplane.cluster.x-k8s.io/v1beta2", Kind: "KubeadmControlPlane", Name: "cp", UID: "1", Controller: ptr.To(true)}
	key := client.ObjectKeyFromObject(cluster)
	rewrite := func(server string) func(*corev1.Secret) error {
		return func(now *corev1.Secret) error { // everything, as CreateOrUpdate does
			whole := kubeconfigSecret(t, cluster.Namespace, cluster.Name, server)
			now.Data, now.Labels, now.Type = whole.Data, whole.Labels, whole.Type
			return m.Update(t.Context(), now)
		}
	}
	return map[string]func(*corev1.Secret) error{
		"KCP creates": func(*corev1.Secret) error {
			return capikubeconfig.CreateSecretWithOwner(t.Context(), m, key, "192.0.2.10:6443", owner)
		},
		"KCP adopts": func(now *corev1.Secret) error {
			now.OwnerReferences = []metav1.OwnerReference{owner}
			return m.Update(t.Context(), now)
		},
		"KCP rotates": func(now *corev1.Secret) error { return capikubeconfig.RegenerateSecret(t.Context(), m, now) },
		"Kamaji or EKS writes everything again, at each reconcile": rewrite(originalServer),
		"and with another server":                                  rewrite("https://192.0.2.99:6443"),
		"RKE2 or Talos generates it anew from the endpoint": func(now *corev1.Secret) error { // by copies of this code
			ca, err := tls.X509KeyPair(authority.Data[corev1.TLSCertKey], authority.Data[corev1.TLSPrivateKeyKey])
			if err != nil {
				return err
			}
			config, err := capikubeconfig.New(cluster.Name, originalServer, ca.Leaf, ca.PrivateKey.(crypto.Signer))
			if err != nil {
				return err
			}
			if now.Data[kubeconfig.Key], err = clientcmd.Write(*config); err != nil {
				return err
			}
			return m.Update(t.Context(), now)
		},
	}
}

// TestAKubeconfigHoldsAgainstEveryWriter goes through what happens to a Secret in the order in which it does, in both modes.
func TestAKubeconfigHoldsAgainstEveryWriter(t *testing.T) {
	for _, mode := range []v1alpha1.KubeconfigMode{v1alpha1.KubeconfigModeSNI, v1alpha1.KubeconfigModeConnect, v1alpha1.KubeconfigModeHTTPProxy} {
		t.Run(string(mode), func(t *testing.T) {
			m := apiserver(t)
			ns := kubetest.NewNamespace(t, m)
			cluster := kubetest.Cluster(ns, "c1")
			tunnel := tunnelNamed(cluster)
			tunnel.Spec.Kubeconfig.Mode = mode
			if !mode.Tunnelled() {
				tunnel.Spec.Kubeconfig.Proxy = &v1alpha1.ProxySpec{Address: "proxy.example.org:3128"}
			}
			authority := clusterCA(t, cluster)
			create(t, m, authority, tunnel, cluster)
			all := writers(t, m, cluster, authority)
			for _, step := range []struct{ what, original string }{
				{"KCP creates", originalServer},
				{"KCP adopts", originalServer},
				{"KCP rotates", originalServer},
				{"Kamaji or EKS writes everything again, at each reconcile", originalServer},
				{"KCP rotates", originalServer},
				{"RKE2 or Talos generates it anew from the endpoint", originalServer},
				{"and with another server", "https://192.0.2.99:6443"},
				{"KCP rotates", "https://192.0.2.99:6443"},
			} {
				var wrote []byte
				eventually(t, func() error {
					now := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c1" + kubeconfig.Suffix}}
					if err := m.Get(t.Context(), client.ObjectKeyFromObject(now), now); client.IgnoreNotFound(err) != nil {
						return err
					}
					err := all[step.what](now) // again after a conflict
					wrote = now.Data[kubeconfig.Key]
					return err
				})
				checkHolds(t, m, cluster, mode, step.what, step.original, wrote)
			}
			edit(t, m, cluster, func(c *clusterv1.Cluster) { c.Labels[v1alpha1.TunnelLabel] = v1alpha1.TunnelDisabled })
			waitGone(t, m, tunnel)
			now := read(t, m, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c1" + kubeconfig.Suffix}})
			if kubeconfig.Noted(now) {
				t.Errorf("annotations %v are left", now.Annotations)
			}
			got, err := kubeconfig.Read(now, "c1")
			if want := (kubeconfig.Way{Server: "https://192.0.2.99:6443"}); err != nil || got != want {
				t.Errorf("after opting out it leads %v, want %v", got, want)
			}
		})
	}
}

// checkHolds waits until a kubeconfig leads where it has to after a provider's write, and checks that nothing else has changed.
func checkHolds(t *testing.T, m *management, cluster *clusterv1.Cluster, mode v1alpha1.KubeconfigMode, what, original string, wrote []byte) {
	t.Helper()
	hostname := cluster.Name + "." + cluster.Namespace + ".tunnels.example.com"
	want := map[v1alpha1.KubeconfigMode]kubeconfig.Way{
		v1alpha1.KubeconfigModeSNI:       {Server: byAddress, TLSServerName: hostname},
		v1alpha1.KubeconfigModeConnect:   {Server: connectServer(cluster), TLSServerName: "kubernetes", ProxyURL: proxy},
		v1alpha1.KubeconfigModeHTTPProxy: {Server: original, ProxyURL: "http://proxy.example.org:3128"},
	}[mode]
	now := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name + kubeconfig.Suffix}}
	start := time.Now()
	eventually(t, func() error {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(now), now); err != nil {
			return err
		}
		got, err := kubeconfig.Read(now, cluster.Name)
		if err != nil || got != want || now.Annotations[v1alpha1.OriginalServerAnnotation] != original {
			return fmt.Errorf("%s: it leads %v, %w, original %s; want %v, %s", what, got, err, now.Annotations[v1alpha1.OriginalServerAnnotation], want, original)
		}
		return nil
	})
	t.Logf("%s: right after %s", what, time.Since(start).Round(time.Millisecond))
	if now.Type != clusterv1.ClusterSecretType || now.Labels[clusterv1.ClusterNameLabel] != cluster.Name || (what == "KCP adopts" && len(now.OwnerReferences) != 1) {
		t.Errorf("%s: type %s, labels %v, owners %v", what, now.Type, now.Labels, now.OwnerReferences)
	}
	if len(wrote) == 0 {
		return
	}
	was, err := clientcmd.Load(wrote)
	if err != nil {
		t.Fatal(err)
	}
	is, err := clientcmd.Load(now.Data[kubeconfig.Key])
	if err != nil {
		t.Fatal(err)
	}
	entry := was.Clusters[cluster.Name]
	entry.Server, entry.TLSServerName, entry.ProxyURL = want.Server, want.TLSServerName, want.ProxyURL
	if diff := cmp.Diff(was, is); diff != "" {
		t.Errorf("%s: more than the way has changed: %s", what, diff)
	}
}

// clusterCA is the CA Secret of a workload cluster, as Cluster API keeps it.
func clusterCA(t *testing.T, cluster *clusterv1.Cluster) *corev1.Secret {
	t.Helper()
	ca, err := certs.NewCA("kubernetes", time.Now(), 24*365*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ca.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name + "-ca", Labels: map[string]string{clusterv1.ClusterNameLabel: cluster.Name}},
		Type:       clusterv1.ClusterSecretType,
		Data:       map[string][]byte{corev1.TLSCertKey: bytes.Clone(ca.CertPEM()), corev1.TLSPrivateKeyKey: key},
	}
}
