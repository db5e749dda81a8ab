package controller

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

func TestCopiesInAnotherNamespace(t *testing.T) {
	m := apiserver(t)
	cluster := copiedCluster(t, m, true)
	other := kubetest.NewNamespace(t, m)
	accept := func(who string) {
		edit(t, m, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}}, func(ns *corev1.Namespace) {
			ns.Annotations = map[string]string{v1alpha1.AcceptKubeconfigsAnnotation: who}
		})
	}
	askFor(t, m, cluster, certificateCopy("x", inNamespace(other)))
	waitCopies(t, m, cluster, v1alpha1.ReasonCopyRefused, other)
	secret := secretNamed(other, "x")
	there := func() {
		t.Helper()
		eventually(t, func() error { return m.Get(t.Context(), client.ObjectKeyFromObject(secret), &corev1.Secret{}) })
	}
	accept("elsewhere, " + cluster.Namespace)
	there()
	if refs := read(t, m, secret).OwnerReferences; len(refs) != 0 {
		t.Errorf("it is owned across namespaces: %v", refs)
	}
	accept("elsewhere")
	waitGone(t, m, secret)
	waitCopies(t, m, cluster, v1alpha1.ReasonCopyRefused, other)
	accept("*")
	there()
	// What the Tunnel's end leaves behind no garbage collector finds.
	edit(t, m, cluster, func(c *clusterv1.Cluster) { c.Labels[v1alpha1.TunnelLabel] = v1alpha1.TunnelDisabled })
	waitGone(t, m, secret)
}

// TestACopyIsRepairedAndFollows what it was made from.
func TestACopyIsRepairedAndFollows(t *testing.T) {
	m := apiserver(t)
	cluster := copiedCluster(t, m, true)
	askFor(t, m, cluster, certificateCopy("x"))
	waitCopies(t, m, cluster, v1alpha1.ReasonCopiesWritten, "1 copy")
	secret := secretNamed(cluster.Namespace, "x")
	cert := func() string {
		_, user := readCopy(t, read(t, m, secret))
		return string(user.ClientCertificateData)
	}
	was := cert()
	changed := func() error {
		if now := cert(); now == was {
			return fmt.Errorf("the certificate is the old one")
		}
		return nil
	}
	settledAt := read(t, m, secret).ResourceVersion
	if err := m.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		now := secretNamed(secret.Namespace, secret.Name)
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(secret), now); err != nil {
			return err
		}
		if now.ResourceVersion == settledAt {
			return fmt.Errorf("it is not made again yet")
		}
		return nil
	})
	for name, change := range map[string]func(){
		"another CA": func() {
			want := caSecret(t, cluster, newCA(t))
			edit(t, m, caSecret(t, cluster, newCA(t)), func(s *corev1.Secret) { s.Data = want.Data })
		},
		"another name": func() {
			askFor(t, m, cluster, certificateCopy("x", func(c *v1alpha1.KubeconfigCopy) { c.ClientCertificate.CommonName = "bob" }))
		},
		"other groups": func() {
			askFor(t, m, cluster, certificateCopy("x", func(c *v1alpha1.KubeconfigCopy) { c.ClientCertificate.Groups = nil }))
		},
		"another end": func() {
			askFor(t, m, cluster, certificateCopy("x", func(c *v1alpha1.KubeconfigCopy) { c.ClientCertificate.ExpirationSeconds = 3600 }))
		},
		"a broken value": func() {
			edit(t, m, secret, func(s *corev1.Secret) { s.Data = map[string][]byte{"value": []byte("{")} })
		},
	} {
		if name != "a broken value" {
			was = cert()
		}
		change()
		if name == "a broken value" {
			eventually(t, func() error { _, err := clientcmd.Load(read(t, m, secret).Data[kubeconfig.Key]); return err })
			continue
		}
		t.Log(name)
		eventually(t, changed)
	}
}
