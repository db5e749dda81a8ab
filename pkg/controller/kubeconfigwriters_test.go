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
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capikubeconfig "sigs.k8s.io/cluster-api/util/kubeconfig"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// A provider lists the writes of a control-plane provider to a kubeconfig Secret in their order, with Cluster API's own
// code where the provider uses that.
type provider []struct {
	what   string
	server string // the provider's server from then on
	write  func(now *corev1.Secret) error
}

const movedServer = "https://192.0.2.99:6443"

// providers are the providers with distinct behaviour.
func (w *writersWorld) providers() map[string]provider {
	owner := metav1.OwnerReference{
		APIVersion: "controlplane.cluster.x-k8s.io/v1beta2", Kind: "KubeadmControlPlane", Name: "cp", UID: "1",
		Controller: ptr.To(true),
	}
	key := client.ObjectKeyFromObject(w.cluster)
	return map[string]provider{
		"KCP": {
			{"creates", controllertest.OriginalServer, func(*corev1.Secret) error {
				return capikubeconfig.CreateSecretWithOwner(w.t.Context(), w.m, key, "192.0.2.10:6443", owner)
			}},
			{"adopts", controllertest.OriginalServer, func(now *corev1.Secret) error {
				now.OwnerReferences = []metav1.OwnerReference{owner}
				return w.m.Update(w.t.Context(), now)
			}},
			{
				"rotates", controllertest.OriginalServer,
				func(now *corev1.Secret) error { return capikubeconfig.RegenerateSecret(w.t.Context(), w.m, now) },
			},
			{
				"rotates", controllertest.OriginalServer,
				func(now *corev1.Secret) error { return capikubeconfig.RegenerateSecret(w.t.Context(), w.m, now) },
			},
		},
		"Kamaji and EKS": { // writes everything at each reconcile, as CreateOrUpdate does
			{"creates", controllertest.OriginalServer, w.writeAll(controllertest.OriginalServer)},
			{"rewrites", controllertest.OriginalServer, w.writeAll(controllertest.OriginalServer)},
			{"rewrites", controllertest.OriginalServer, w.writeAll(controllertest.OriginalServer)},
			{"rewrites for another endpoint", movedServer, w.writeAll(movedServer)},
		},
		"RKE2 and Talos": { // with copies of this code
			{"creates", controllertest.OriginalServer, w.generate(controllertest.OriginalServer)},
			{"rotates", controllertest.OriginalServer, w.generate(controllertest.OriginalServer)},
			{"rewrites", controllertest.OriginalServer, w.generate(controllertest.OriginalServer)},
			{"rewrites for another endpoint", movedServer, w.generate(movedServer)},
		},
	}
}

// store creates or updates.
func (w *writersWorld) store(now *corev1.Secret) error {
	if now.ResourceVersion == "" {
		return w.m.Create(w.t.Context(), now)
	}
	return w.m.Update(w.t.Context(), now)
}

func (w *writersWorld) writeAll(server string) func(*corev1.Secret) error {
	return func(now *corev1.Secret) error {
		whole := controllertest.KubeconfigSecret(w.t, w.cluster.Namespace, w.cluster.Name, server, func(
			c *clientcmdapi.Config,
		) {
			c.Clusters[w.cluster.Name].CertificateAuthorityData = w.authority.Data[corev1.TLSCertKey]
		})
		now.Data, now.Labels, now.Type = whole.Data, whole.Labels, whole.Type
		return w.store(now)
	}
}

func (w *writersWorld) generate(server string) func(*corev1.Secret) error {
	return func(now *corev1.Secret) error {
		ca, err := tls.X509KeyPair(w.authority.Data[corev1.TLSCertKey], w.authority.Data[corev1.TLSPrivateKeyKey])
		if err != nil {
			return err
		}
		config, err := capikubeconfig.New(w.cluster.Name, server, ca.Leaf, ca.PrivateKey.(crypto.Signer))
		if err != nil {
			return err
		}
		data, err := clientcmd.Write(*config)
		if err != nil {
			return err
		}
		if now.ResourceVersion == "" {
			now.Labels, now.Type = map[string]string{clusterv1.ClusterNameLabel: w.cluster.Name}, clusterv1.ClusterSecretType
		}
		now.Data = map[string][]byte{kubeconfig.Key: data}
		return w.store(now)
	}
}

// writersWorld is one Cluster whose kubeconfig a provider writes.
type writersWorld struct {
	t         *testing.T
	m         *management
	mode      v1alpha1.KubeconfigMode
	cluster   *clusterv1.Cluster
	tunnel    *v1alpha1.Tunnel
	authority *corev1.Secret
	proxy     string // host:port of an https proxy that has a certificate of the workload cluster's CA
}

func newWritersWorld(t *testing.T, m *management, namespace string, mode v1alpha1.KubeconfigMode) *writersWorld {
	t.Helper()
	w := &writersWorld{t: t, m: m, mode: mode, cluster: kubetest.Cluster(namespace, "c1"), proxy: "proxy.example.org:3128"}
	w.authority = clusterCA(t, w.cluster)
	if mode == v1alpha1.KubeconfigModeHTTPSProxy {
		ca, err := certs.ParseUserCA(w.authority.Data[corev1.TLSCertKey], w.authority.Data[corev1.TLSPrivateKeyKey])
		if err != nil {
			t.Fatal(err)
		}
		w.proxy = controllertest.ListenTLS(t, ca, "127.0.0.1:0", nil, "kubernetes").Addr().String()
	}
	w.tunnel = controllertest.TunnelNamed(w.cluster)
	w.tunnel.Spec.Kubeconfig = controllertest.SpecOf(mode, w.proxy)
	controllertest.Create(t, m, w.authority, w.tunnel, w.cluster)
	return w
}

// want returns the expected endpoint after the provider wrote a server.
func (w *writersWorld) want(original string) kubeconfig.Endpoint {
	switch w.mode {
	case v1alpha1.KubeconfigModeSNI:
		return kubeconfig.Endpoint{
			Server:        controllertest.AddressURL,
			TLSServerName: w.cluster.Name + "." + w.cluster.Namespace + ".tunnels.example.com",
		}
	case v1alpha1.KubeconfigModeConnect:
		return kubeconfig.Endpoint{
			Server: controllertest.ConnectServer(w.cluster), TLSServerName: "kubernetes", ProxyURL: controllertest.ProxyURL,
		}
	case v1alpha1.KubeconfigModeAddress:
		return kubeconfig.Endpoint{Server: "https://lb.example.org:6443", TLSServerName: "kubernetes"}
	}
	scheme := map[v1alpha1.KubeconfigMode]string{
		v1alpha1.KubeconfigModeHTTPProxy: "http", v1alpha1.KubeconfigModeHTTPSProxy: "https",
		v1alpha1.KubeconfigModeSOCKS5: "socks5",
	}[w.mode]
	return kubeconfig.Endpoint{Server: original, TLSServerName: "kubernetes", ProxyURL: scheme + "://" + w.proxy}
}

func (w *writersWorld) secret() *corev1.Secret {
	return controllertest.SecretNamed(w.cluster.Namespace, w.cluster.Name+kubeconfig.Suffix)
}

// TestAKubeconfigKeepsItsTunnelDespiteEveryWriter runs each provider's writes to a Secret in each mode, and opts the
// Cluster out at the end. It runs without the webhook: the controller alone restores the endpoint.
func TestAKubeconfigKeepsItsTunnelDespiteEveryWriter(t *testing.T) {
	m := apiserver(t)
	for _, name := range []string{"KCP", "Kamaji and EKS", "RKE2 and Talos"} {
		for _, mode := range controllertest.EveryMode {
			t.Run(name+"/"+string(mode), func(t *testing.T) {
				t.Parallel()
				w := newWritersWorld(t, m, kubetest.NewNamespace(t, m), mode)
				last := ""
				for _, step := range w.providers()[name] {
					var wrote []byte
					controllertest.Eventually(t, func() error {
						now := w.secret()
						if err := m.Get(t.Context(), client.ObjectKeyFromObject(now), now); client.IgnoreNotFound(err) != nil {
							return err
						}
						err := step.write(now) // again after a conflict
						wrote = now.Data[kubeconfig.Key]
						return err
					})
					w.checkHolds(step.what, step.server, wrote)
					last = step.server
				}
				w.checkOptsOut(last)
			})
		}
	}
}

// checkOptsOut opts the Cluster out and checks that its kubeconfig is the provider's again.
func (w *writersWorld) checkOptsOut(server string) {
	w.t.Helper()
	controllertest.Edit(
		w.t, w.m, w.cluster, func(c *clusterv1.Cluster) { c.Labels[v1alpha1.TunnelLabel] = v1alpha1.TunnelDisabled },
	)
	controllertest.WaitGone(w.t, w.m, w.tunnel)
	now := controllertest.Read(w.t, w.m, w.secret())
	if kubeconfig.Annotated(now) {
		w.t.Errorf("annotations %v are left", now.Annotations)
	}
	got, err := kubeconfig.Read(now, w.cluster.Name)
	if want := (kubeconfig.Endpoint{Server: server}); err != nil || got != want {
		w.t.Errorf("after opting out it leads %v, want %v", got, want)
	}
}

// checkHolds waits until a kubeconfig has its endpoint after a provider's write, and checks that nothing else has
// changed.
func (w *writersWorld) checkHolds(what, original string, wrote []byte) {
	t := w.t
	t.Helper()
	want, now, start := w.want(original), w.secret(), time.Now()
	controllertest.Eventually(t, func() error {
		if err := w.m.Get(t.Context(), client.ObjectKeyFromObject(now), now); err != nil {
			return err
		}
		got, err := kubeconfig.Read(now, w.cluster.Name)
		if err != nil || got != want || now.Annotations[v1alpha1.OriginalServerAnnotation] != original {
			return fmt.Errorf(
				"%s: it leads %v, %w, original %s; want %v, %s", what, got, err,
				now.Annotations[v1alpha1.OriginalServerAnnotation], want, original,
			)
		}
		return nil
	})
	t.Logf("%s: right after %s", what, time.Since(start).Round(time.Millisecond))
	if now.Type != clusterv1.ClusterSecretType || now.Labels[clusterv1.ClusterNameLabel] != w.cluster.Name ||
		(what == "adopts" && len(now.OwnerReferences) != 1) {
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
	entry := was.Clusters[w.cluster.Name]
	entry.Server, entry.TLSServerName, entry.ProxyURL = want.Server, want.TLSServerName, want.ProxyURL
	if diff := cmp.Diff(was, is); diff != "" {
		t.Errorf("%s: more than the way has changed: %s", what, diff)
	}
}

// clusterCA is the CA Secret of a workload cluster, as Cluster API stores it.
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
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cluster.Namespace, Name: cluster.Name + "-ca",
			Labels: map[string]string{clusterv1.ClusterNameLabel: cluster.Name},
		},
		Type: clusterv1.ClusterSecretType,
		Data: map[string][]byte{corev1.TLSCertKey: bytes.Clone(ca.CertPEM()), corev1.TLSPrivateKeyKey: key},
	}
}
