package controller

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

const originalServer = "https://192.0.2.10:6443"

// kubeconfigSecret is what a control-plane provider writes: with a CA, a user's certificate and Cluster API's label.
func kubeconfigSecret(t *testing.T, namespace, cluster, server string, changes ...func(*clientcmdapi.Config)) *corev1.Secret {
	t.Helper()
	ca, err := certs.NewCA("kubernetes", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(key.Public(), certs.Leaf{CommonName: "kubernetes-admin", DNSNames: []string{"admin"}, Client: true, NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	identity, err := certs.NewIdentity(leaf, key)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := identity.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters[cluster] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca.CertPEM()}
	config.AuthInfos[cluster+"-admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: leaf, ClientKeyData: keyPEM}
	config.Contexts["admin@"+cluster] = &clientcmdapi.Context{Cluster: cluster, AuthInfo: cluster + "-admin"}
	config.CurrentContext = "admin@" + cluster
	for _, change := range changes {
		change(config)
	}
	data, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: cluster + kubeconfig.Suffix, Labels: map[string]string{clusterv1.ClusterNameLabel: cluster}},
		Type:       clusterv1.ClusterSecretType,
		Data:       map[string][]byte{kubeconfig.Key: data},
	}
}

// entryOf reads the entry of the current context.
func entryOf(t *testing.T, secret *corev1.Secret) clientcmdapi.Cluster {
	t.Helper()
	config, err := clientcmd.Load(secret.Data[kubeconfig.Key])
	if err != nil {
		t.Fatal(err)
	}
	return *config.Clusters[config.Contexts[config.CurrentContext].Cluster]
}

// edit changes an object as its owner would, however often others change it meanwhile.
func edit[T client.Object](t *testing.T, m *management, o T, change func(T)) {
	t.Helper()
	eventually(t, func() error {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		change(o)
		return m.Update(t.Context(), o)
	})
}

func create(t *testing.T, m *management, all ...client.Object) {
	t.Helper()
	for _, o := range all {
		if err := m.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

// read returns the object of o's type and name as it is now.
func read[T client.Object](t *testing.T, m *management, o T) T {
	t.Helper()
	now := o.DeepCopyObject().(T)
	if err := m.Get(t.Context(), client.ObjectKeyFromObject(o), now); err != nil {
		t.Fatal(err)
	}
	return now
}

// connectServer is the server of a kubeconfig in mode connect.
func connectServer(cluster *clusterv1.Cluster) string {
	return "https://" + cluster.Name + "." + cluster.Namespace + ".tunnels.example.com:6443"
}

// tunnelNamed is an empty Tunnel with the names of a Cluster.
func tunnelNamed(cluster *clusterv1.Cluster) *v1alpha1.Tunnel {
	return &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}}
}

func bootstrapOf(cluster *clusterv1.Cluster) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name + v1alpha1.BootstrapSecretSuffix}}
}

// waitCondition waits until a Tunnel has a condition with this reason, and returns the Tunnel.
func waitCondition(t *testing.T, m *management, cluster *clusterv1.Cluster, kind, reason string) *v1alpha1.Tunnel {
	t.Helper()
	tunnel := tunnelNamed(cluster)
	eventually(t, func() error {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(cluster), tunnel); err != nil {
			return err
		}
		c := apimeta.FindStatusCondition(tunnel.Status.Conditions, kind)
		if c == nil || c.Reason != reason || c.ObservedGeneration != tunnel.Generation {
			return fmt.Errorf("condition %s of %s is %+v, want reason %s", kind, tunnel.Name, c, reason)
		}
		return nil
	})
	return tunnel
}

// waitReady waits until the kubeconfig leads through the tunnel and edges can enrol.
func waitReady(t *testing.T, m *management, cluster *clusterv1.Cluster) *v1alpha1.Tunnel {
	t.Helper()
	eventually(t, func() error {
		return m.Get(t.Context(), client.ObjectKeyFromObject(bootstrapOf(cluster)), &corev1.Secret{})
	})
	return waitCondition(t, m, cluster, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonRewritten)
}

func waitServer(t *testing.T, m *management, secret *corev1.Secret, want string) *corev1.Secret {
	t.Helper()
	now := secret.DeepCopy()
	eventually(t, func() error {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(secret), now); err != nil {
			return err
		}
		if got := entryOf(t, now).Server; got != want {
			return fmt.Errorf("the kubeconfig's server is %s, want %s", got, want)
		}
		return nil
	})
	return now
}

func waitGone(t *testing.T, m *management, o client.Object) {
	t.Helper()
	eventually(t, func() error {
		switch err := m.Get(t.Context(), client.ObjectKeyFromObject(o), o.DeepCopyObject().(client.Object)); {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("%T %s is still there", o, o.GetName())
	})
}

// settled waits until a Cluster that was made later is served: whatever was to happen to earlier ones has happened, as all
// of them pass through one queue.
func settled(t *testing.T, m *management, namespace string) {
	t.Helper()
	marker := kubetest.Cluster(namespace, fmt.Sprintf("marker-%d", time.Now().UnixNano()))
	create(t, m, marker, kubeconfigSecret(t, namespace, marker.Name, originalServer))
	waitReady(t, m, marker)
}

func hasFinalizer(o client.Object) bool {
	return slices.Contains(o.GetFinalizers(), v1alpha1.TunnelFinalizer)
}
