package ca

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
)

func TestAnInstallationUsesItsExistingCA(t *testing.T) {
	m := controllertest.APIServer(t)
	config := controllertest.Config()
	config.Namespace = kubetest.NewNamespace(t, m)
	r := newInstallation(m, config, time.Now)
	mine, err := certs.NewCA("Mine", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key, err := mine.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	controllertest.Create(t, m, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: config.Namespace, Name: v1alpha1.CASecretName}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: mine.CertPEM(), corev1.TLSPrivateKeyKey: key},
	})
	var versions []string
	for range 3 { // the second and third reconciliation have nothing to write
		result, err := r.Reconcile(t.Context(), reconcile.Request{})
		if err != nil || result.RequeueAfter != installationInterval {
			t.Fatalf("%+v, %v", result, err)
		}
		ca, gateway, published := controllertest.Installed(t, m, config.Namespace)
		if string(ca.Data[corev1.TLSCertKey]) != string(mine.CertPEM()) ||
			published.Data[v1alpha1.TrustBundleKey] != string(mine.CertPEM()) {
			t.Fatal("another CA is used")
		}
		versions = append(versions, ca.ResourceVersion+gateway.ResourceVersion+published.ResourceVersion)
	}
	if versions[0] != versions[1] || versions[1] != versions[2] {
		t.Errorf("versions %v", versions)
	}
}
