package controller

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/enrol"
)

func TestTheManagerMakesTheInstallation(t *testing.T) {
	m := apiserver(t)
	ca, gateway, config := controllertest.Installed(t, m, controllertest.Config().Namespace)
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
	controllertest.Eventually(t, func() error {
		if got := controllertest.Read(t, m, config).Data[v1alpha1.TrustBundleKey]; got != bundle {
			return fmt.Errorf("the bundle has %d bytes", len(got))
		}
		return nil
	})
}

// TestTheBundleReachesTheBootstrapSecrets makes the shared manager introduce another CA, and reverts that.
func TestTheBundleReachesTheBootstrapSecrets(t *testing.T) {
	m := apiserver(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	controllertest.Create(t, m, cluster)
	source, _, _ := controllertest.Installed(t, m, controllertest.Config().Namespace)
	other, err := certs.NewCA("other", time.Now(), 24*365*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	otherKey, err := other.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	replace := func(data map[string][]byte) {
		t.Helper()
		controllertest.Edit(t, m, source.DeepCopy(), func(s *corev1.Secret) { s.Data = data })
		config := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: source.Namespace, Name: v1alpha1.InstallationConfigMapName},
		}
		// so that the controller reconciles now
		controllertest.Edit(t, m, config, func(c *corev1.ConfigMap) { c.Data[v1alpha1.TrustBundleKey] = "x" })
	}
	replace(map[string][]byte{corev1.TLSCertKey: other.CertPEM(), corev1.TLSPrivateKeyKey: otherKey})
	waitBundle(t, m, cluster, string(source.Data[corev1.TLSCertKey])+string(other.CertPEM()))
	replace(source.Data)
	waitBundle(t, m, cluster, string(source.Data[corev1.TLSCertKey]))
}

func waitBundle(t *testing.T, m client.WithWatch, cluster client.Object, want string) {
	t.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cluster.GetNamespace(), Name: cluster.GetName() + v1alpha1.BootstrapSecretSuffix,
		},
	}
	controllertest.Eventually(t, func() error {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
			return err
		}
		if got := string(secret.Data[v1alpha1.BootstrapCAKey]); got != want {
			return fmt.Errorf("the Secret has a bundle of %d bytes, want %d", len(got), len(want))
		}
		return nil
	})
}
