package controller

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

func TestCopiesInAnotherNamespace(t *testing.T) {
	m := apiserver(t)
	cluster := copiedCluster(t, m, true)
	other := kubetest.NewNamespace(t, m)
	accept := func(who string) {
		controllertest.Edit(t, m, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}}, func(ns *corev1.Namespace) {
			ns.Annotations = map[string]string{v1alpha1.AcceptKubeconfigsAnnotation: who}
		})
	}
	askFor(t, m, cluster, certificateCopy("x", inNamespace(other)))
	waitCopies(t, m, cluster, v1alpha1.ReasonCopyRefused, other)
	secret := controllertest.SecretNamed(other, "x")
	there := func() {
		t.Helper()
		controllertest.Eventually(
			t, func() error { return m.Get(t.Context(), client.ObjectKeyFromObject(secret), &corev1.Secret{}) },
		)
	}
	accept("elsewhere, " + cluster.Namespace)
	there()
	if refs := controllertest.Read(t, m, secret).OwnerReferences; len(refs) != 0 {
		t.Errorf("it is owned across namespaces: %v", refs)
	}
	accept("elsewhere")
	controllertest.WaitGone(t, m, secret)
	waitCopies(t, m, cluster, v1alpha1.ReasonCopyRefused, other)
	accept("*")
	there()
	// No garbage collector removes what the Tunnel leaves behind.
	controllertest.Edit(
		t, m, cluster, func(c *clusterv1.Cluster) { c.Labels[v1alpha1.TunnelLabel] = v1alpha1.TunnelDisabled },
	)
	controllertest.WaitGone(t, m, secret)
}

// TestACopyIsRepairedAndFollows checks that a copy follows the kubeconfig that it was made from.
func TestACopyIsRepairedAndFollows(t *testing.T) {
	m := apiserver(t)
	cluster := copiedCluster(t, m, true)
	askFor(t, m, cluster, certificateCopy("x"))
	waitCopies(t, m, cluster, v1alpha1.ReasonCopiesWritten, "1 copy")
	secret := controllertest.SecretNamed(cluster.Namespace, "x")
	cert := func() string {
		_, user := readCopy(t, controllertest.Read(t, m, secret))
		return string(user.ClientCertificateData)
	}
	was := cert()
	changed := func() error {
		if now := cert(); now == was {
			return fmt.Errorf("the certificate is the old one")
		}
		return nil
	}
	settledAt := controllertest.Read(t, m, secret).ResourceVersion
	if err := m.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, func() error {
		now := controllertest.SecretNamed(secret.Namespace, secret.Name)
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
			want := caSecret(t, cluster, controllertest.NewCA(t))
			controllertest.Edit(
				t, m, caSecret(t, cluster, controllertest.NewCA(t)), func(s *corev1.Secret) { s.Data = want.Data },
			)
		},
		"another name": func() {
			askFor(
				t, m, cluster, certificateCopy("x", func(c *v1alpha1.KubeconfigCopy) { c.ClientCertificate.CommonName = "bob" }),
			)
		},
		"other groups": func() {
			askFor(t, m, cluster, certificateCopy("x", func(c *v1alpha1.KubeconfigCopy) { c.ClientCertificate.Groups = nil }))
		},
		"another end": func() {
			askFor(
				t, m, cluster,
				certificateCopy("x", func(c *v1alpha1.KubeconfigCopy) { c.ClientCertificate.ExpirationSeconds = 3600 }),
			)
		},
		"a broken value": func() {
			controllertest.Edit(t, m, secret, func(s *corev1.Secret) { s.Data = map[string][]byte{"value": []byte("{")} })
		},
	} {
		if name != "a broken value" {
			was = cert()
		}
		change()
		if name == "a broken value" {
			controllertest.Eventually(t, func() error {
				_, err := clientcmd.Load(controllertest.Read(t, m, secret).Data[kubeconfig.Key])
				return err
			})
			continue
		}
		t.Log(name)
		controllertest.Eventually(t, changed)
	}
}

// TestCopiesOwnTheirPartOfTheStatus checks on a real apiserver that copies write their entries and condition, and no
// field that other reconcilers decide or count.
func TestCopiesOwnTheirPartOfTheStatus(t *testing.T) {
	m := apiserver(t)
	cluster := copiedCluster(t, m, true)
	askFor(t, m, cluster, certificateCopy("x"))
	tunnel := waitCopies(t, m, cluster, v1alpha1.ReasonCopiesWritten, "1 copy")
	i := slices.IndexFunc(
		tunnel.ManagedFields, func(e metav1.ManagedFieldsEntry) bool { return e.Manager == "fairlead-copies" },
	)
	if i < 0 {
		t.Fatalf("no field is owned by the copies: %+v", tunnel.ManagedFields)
	}
	var owned struct {
		Status map[string]map[string]any `json:"f:status"`
	}
	if err := json.Unmarshal(tunnel.ManagedFields[i].FieldsV1.GetRawBytes(), &owned); err != nil {
		t.Fatal(err)
	}
	if len(owned.Status) != 2 || len(owned.Status["f:kubeconfig"]) != 1 ||
		owned.Status["f:kubeconfig"]["f:copies"] == nil ||
		len(owned.Status["f:conditions"]) != 1 || owned.Status["f:conditions"][`k:{"type":"CopiesReady"}`] == nil {
		t.Errorf("owned is %s", tunnel.ManagedFields[i].FieldsV1.GetRawString())
	}
}
