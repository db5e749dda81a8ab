package controller

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/enrol"
)

// installed reads the three objects of the installation.
func installed(t *testing.T, m *management, namespace string) (ca, gateway *corev1.Secret, config *corev1.ConfigMap) {
	t.Helper()
	config = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.InstallationConfigMapName}}
	eventually(t, func() error { return m.Get(t.Context(), client.ObjectKeyFromObject(config), config) })
	ca = read(t, m, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.CASecretName}})
	gateway = read(t, m, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.GatewaySecretName}})
	return ca, gateway, config
}

func TestTheManagerMakesTheInstallation(t *testing.T) {
	m := apiserver(t)
	ca, gateway, config := installed(t, m, testConfig().Namespace)
	if ca.Type != corev1.SecretTypeTLS {
		t.Errorf("the CA's Secret has type %s", ca.Type)
	}
	if _, err := certs.ParseCA(ca.Data[corev1.TLSCertKey], ca.Data[corev1.TLSPrivateKeyKey]); err != nil {
		t.Error(err)
	}
	bundle := config.Data[v1alpha1.TrustBundleKey]
	if bundle != string(ca.Data[corev1.TLSCertKey]) || bundle != string(gateway.Data[v1alpha1.BootstrapCAKey]) {
		t.Error("the trust bundle is not the CA everywhere")
	}
	if config.Data[v1alpha1.GatewayTokenHashKey] != enrol.HashToken(string(gateway.Data[v1alpha1.BootstrapTokenKey])) {
		t.Error("the published hash is not that of the gateway token")
	}
	delete(config.Data, v1alpha1.TrustBundleKey)
	if err := m.Update(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if got := read(t, m, config).Data[v1alpha1.TrustBundleKey]; got != bundle {
			return fmt.Errorf("the bundle has %d bytes", len(got))
		}
		return nil
	})
}

func TestAnInstallationUsesTheCAThatIsThere(t *testing.T) {
	m := apiserver(t)
	config := testConfig()
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
	create(t, m, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: config.Namespace, Name: v1alpha1.CASecretName}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: mine.CertPEM(), corev1.TLSPrivateKeyKey: key},
	})
	var versions []string
	for range 3 { // the second and third time nothing is left to write
		result, err := r.Reconcile(t.Context(), reconcile.Request{})
		if err != nil || result.RequeueAfter != installationInterval {
			t.Fatalf("%+v, %v", result, err)
		}
		ca, gateway, published := installed(t, m, config.Namespace)
		if string(ca.Data[corev1.TLSCertKey]) != string(mine.CertPEM()) || published.Data[v1alpha1.TrustBundleKey] != string(mine.CertPEM()) {
			t.Fatal("another CA is used")
		}
		versions = append(versions, ca.ResourceVersion+gateway.ResourceVersion+published.ResourceVersion)
	}
	if versions[0] != versions[1] || versions[1] != versions[2] {
		t.Errorf("versions %v", versions)
	}
}
