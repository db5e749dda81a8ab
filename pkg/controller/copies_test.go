package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// copiedCluster creates a Cluster with a kubeconfig, and the Secret of its CA unless caKey is nil.
func copiedCluster(t *testing.T, m *management, withKey bool) *clusterv1.Cluster {
	t.Helper()
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	controllertest.Create(
		t, m, cluster, controllertest.KubeconfigSecret(t, cluster.Namespace, cluster.Name, controllertest.OriginalServer),
	)
	if withKey {
		controllertest.Create(t, m, caSecret(t, cluster, controllertest.NewCA(t)))
	}
	waitReady(t, m, cluster)
	return cluster
}

// caSecret is the Secret where Cluster API's control-plane provider stores its CA.
func caSecret(t *testing.T, cluster *clusterv1.Cluster, ca *certs.CA) *corev1.Secret {
	t.Helper()
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
		Data: map[string][]byte{corev1.TLSCertKey: ca.CertPEM(), corev1.TLSPrivateKeyKey: key},
	}
}

func askFor(t *testing.T, m *management, cluster *clusterv1.Cluster, all ...v1alpha1.KubeconfigCopy) {
	t.Helper()
	controllertest.Edit(
		t, m, controllertest.TunnelNamed(cluster), func(tunnel *v1alpha1.Tunnel) { tunnel.Spec.Kubeconfig.Copies = all },
	)
}

func certificateCopy(name string, changes ...func(*v1alpha1.KubeconfigCopy)) v1alpha1.KubeconfigCopy {
	c := v1alpha1.KubeconfigCopy{
		Name:              name,
		ClientCertificate: &v1alpha1.ClientCertificateAudience{CommonName: "alice", Groups: []string{"ops", "dev"}},
	}
	for _, change := range changes {
		change(&c)
	}
	return c
}

func inNamespace(namespace string) func(*v1alpha1.KubeconfigCopy) {
	return func(c *v1alpha1.KubeconfigCopy) { c.Namespace = namespace }
}

func inGroup(group string) func(*v1alpha1.KubeconfigCopy) {
	return func(c *v1alpha1.KubeconfigCopy) { c.ClientCertificate.Groups = []string{group} }
}

func called(name string) func(*v1alpha1.KubeconfigCopy) {
	return func(c *v1alpha1.KubeconfigCopy) { c.ClientCertificate.CommonName = name }
}

// waitCopies waits until the condition has a reason and its message contains a text.
func waitCopies(t *testing.T, m *management, cluster *clusterv1.Cluster, reason, text string) *v1alpha1.Tunnel {
	t.Helper()
	tunnel := controllertest.TunnelNamed(cluster)
	controllertest.Eventually(t, func() error {
		tunnel = controllertest.Read(t, m, tunnel)
		c := apimeta.FindStatusCondition(tunnel.Status.Conditions, v1alpha1.ConditionCopiesReady)
		if c == nil || c.Reason != reason || !strings.Contains(c.Message, text) || c.ObservedGeneration != tunnel.Generation {
			return fmt.Errorf("condition %+v, want %s with %q", c, reason, text)
		}
		return nil
	})
	return tunnel
}

// readCopy reads the kubeconfig of a copy.
func readCopy(t *testing.T, secret *corev1.Secret) (*clientcmdapi.Cluster, *clientcmdapi.AuthInfo) {
	t.Helper()
	config, err := clientcmd.Load(secret.Data[kubeconfig.Key])
	if err != nil {
		t.Fatal(err)
	}
	current := config.Contexts[config.CurrentContext]
	return config.Clusters[current.Cluster], config.AuthInfos[current.AuthInfo]
}

func TestACopyWithAClientCertificate(t *testing.T) {
	m := apiserver(t)
	cluster := copiedCluster(t, m, true)
	askFor(
		t, m, cluster, certificateCopy("for-alice"),
		certificateCopy("by-connect", func(c *v1alpha1.KubeconfigCopy) { c.Mode = v1alpha1.KubeconfigModeConnect }),
	)
	tunnel := waitCopies(t, m, cluster, v1alpha1.ReasonCopiesWritten, "2 copies")
	secret := controllertest.Read(t, m, controllertest.SecretNamed(cluster.Namespace, "for-alice"))
	entry, user := readCopy(t, secret)
	own := controllertest.EntryOf(
		t, controllertest.Read(t, m, controllertest.SecretNamed(cluster.Namespace, cluster.Name+kubeconfig.Suffix)),
	)
	if entry.Server != own.Server || entry.ProxyURL != own.ProxyURL ||
		string(entry.CertificateAuthorityData) != string(own.CertificateAuthorityData) {
		t.Errorf("it leads to %s, the Cluster's own to %s", entry.Server, own.Server)
	}
	if len(user.ClientKeyData) == 0 || user.Token != "" {
		t.Error("its user has no key")
	}
	if secret.Type != corev1.SecretTypeOpaque || secret.Labels[v1alpha1.CopyLabel] != tunnel.Spec.ID ||
		!metav1.IsControlledBy(secret, tunnel) || len(secret.Labels) != 1 {
		t.Errorf("type %s, labels %v, owners %v", secret.Type, secret.Labels, secret.OwnerReferences)
	}
	if entry, _ := readCopy(
		t, controllertest.Read(t, m, controllertest.SecretNamed(cluster.Namespace, "by-connect")),
	); entry.ProxyURL != "http://10.1.1.1:3128" || entry.TLSServerName == "" {
		t.Errorf("the copy by connect: %s by %s", entry.Server, entry.ProxyURL)
	}
	leaf, err := certs.ParseIdentity(user.ClientCertificateData, user.ClientKeyData)
	if err != nil {
		t.Fatal(err)
	}
	status := tunnel.Status.Kubeconfig.Copies
	if len(status) != 2 || status[0].Error != "" || !status[0].CertificateNotAfter.Time.Equal(leaf.NotAfter()) {
		t.Errorf("status %+v", status)
	}

	askFor(t, m, cluster)
	controllertest.WaitGone(t, m, secret)
	controllertest.Eventually(t, func() error {
		if c := apimeta.FindStatusCondition(
			controllertest.Read(t, m, tunnel).Status.Conditions, v1alpha1.ConditionCopiesReady,
		); c != nil {
			return fmt.Errorf("the condition stays: %+v", c)
		}
		return nil
	})
}

// TestTheAPIServerAuthenticatesTheUserOfACopy authenticates with a copy at a real kube-apiserver that trusts the CA.
func TestTheAPIServerAuthenticatesTheUserOfACopy(t *testing.T) {
	m := apiserver(t)
	ca := controllertest.NewCA(t)
	workload := server.TrustClientCA(t, ca.CertPEM())
	cluster := copiedCluster(t, m, false)
	controllertest.Create(t, m, caSecret(t, cluster, ca))
	askFor(t, m, cluster, certificateCopy("for-alice"))
	waitCopies(t, m, cluster, v1alpha1.ReasonCopiesWritten, "1 copy")
	_, user := readCopy(t, controllertest.Read(t, m, controllertest.SecretNamed(cluster.Namespace, "for-alice")))
	workload.CertData, workload.KeyData = user.ClientCertificateData, user.ClientKeyData
	workloadClient, err := kubetest.NewClient(workload)
	if err != nil {
		t.Fatal(err)
	}
	review := &authenticationv1.SelfSubjectReview{}
	controllertest.Eventually(t, func() error { return workloadClient.Create(t.Context(), review) })
	got := review.Status.UserInfo
	if got.Username != "alice" || !slices.Contains(got.Groups, "ops") || !slices.Contains(got.Groups, "dev") ||
		slices.Contains(got.Groups, "system:masters") {
		t.Errorf("the apiserver sees %s in %v", got.Username, got.Groups)
	}
}

func TestACopyForAPlugin(t *testing.T) {
	m := apiserver(t)
	cluster := copiedCluster(t, m, false) // EKS does not expose the key of its CA
	askFor(t, m, cluster, v1alpha1.KubeconfigCopy{Name: "by-plugin", Exec: &v1alpha1.ExecAudience{
		Command: "kubelogin", Args: []string{"get-token"}, Env: []v1alpha1.ExecEnv{{Name: "A", Value: "b"}},
		InstallHint: "install it",
	}})
	waitCopies(t, m, cluster, v1alpha1.ReasonCopiesWritten, "1 copy")
	_, user := readCopy(t, controllertest.Read(t, m, controllertest.SecretNamed(cluster.Namespace, "by-plugin")))
	if e := user.Exec; e == nil || e.APIVersion != "client.authentication.k8s.io/v1" ||
		e.InteractiveMode != clientcmdapi.IfAvailableExecInteractiveMode ||
		!e.ProvideClusterInfo || e.Command != "kubelogin" || e.Args[0] != "get-token" ||
		e.Env[0] != (clientcmdapi.ExecEnvVar{Name: "A", Value: "b"}) || e.InstallHint != "install it" {
		t.Errorf("%+v", e)
	}
}

func TestInvalidCopiesAreRejected(t *testing.T) {
	m := apiserver(t)
	cluster := copiedCluster(t, m, true)
	foreign := controllertest.SecretNamed(cluster.Namespace, "theirs")
	foreign.Data = map[string][]byte{"x": []byte("y")}
	controllertest.Create(t, m, foreign)
	bare := copiedCluster(t, m, false)
	external := copiedCluster(t, m, true)
	controllertest.Edit(
		t, m, caSecret(t, external, controllertest.NewCA(t)),
		func(s *corev1.Secret) { delete(s.Data, corev1.TLSPrivateKeyKey) },
	)
	tests := map[string]struct {
		cluster *clusterv1.Cluster
		ask     v1alpha1.KubeconfigCopy
		want    []string // part of the message
	}{
		"there is another Secret": {
			cluster, certificateCopy("theirs"), []string{"copies[0].name", "does not belong to this Tunnel", "another name"},
		},
		"it has a name that KCP needs": {
			cluster, certificateCopy("c2-kubeconfig"), []string{"copies[0].name", "-kubeconfig"},
		},
		"no namespace": {
			cluster, certificateCopy("x", inNamespace("nowhere")),
			[]string{"copies[0].namespace", v1alpha1.AcceptKubeconfigsAnnotation},
		},
		"a namespace that does not accept": {
			cluster, certificateCopy("x", inNamespace("default")),
			[]string{"copies[0].namespace", v1alpha1.AcceptKubeconfigsAnnotation},
		},
		"the installation's namespace": {
			cluster, certificateCopy("x", inNamespace("fairlead-system")), []string{"copies[0].namespace"},
		},
		"a group of Kubernetes' own": {
			cluster, certificateCopy("x", inGroup("system:masters")), []string{"clientCertificate", "system:masters", "bind it"},
		},
		"a group of kubeadm's": {
			cluster, certificateCopy("x", inGroup("kubeadm:cluster-admins")), []string{"clientCertificate", "kubeadm:"},
		},
		"a user of Kubernetes' own": {cluster, certificateCopy("x", called("system:admin")), []string{"clientCertificate"}},
		"there is no CA": {
			bare, certificateCopy("x"), []string{"copies[0].clientCertificate", "c1-ca", "use exec"},
		},
		"the CA has no key": {
			external, certificateCopy("x"), []string{"copies[0].clientCertificate", "without its key", "use exec"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			askFor(t, m, tc.cluster, tc.ask)
			tunnel := waitCopies(t, m, tc.cluster, v1alpha1.ReasonCopyRefused, tc.want[len(tc.want)-1])
			message := tunnel.Status.Kubeconfig.Copies[0].Error
			for _, want := range tc.want {
				if !strings.Contains(message, want) {
					t.Errorf("%q: it has no %q", message, want)
				}
			}
			if strings.Contains(message, "PRIVATE") {
				t.Error("there is a key in it")
			}
		})
	}
	if got := controllertest.Read(t, m, foreign); string(got.Data["x"]) != "y" || len(got.Data) != 1 {
		t.Errorf("the Secret of somebody else has %v", got.Data)
	}
}
