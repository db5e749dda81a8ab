package controller

import (
	"fmt"
	"log/slog"
	"strings"
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

func TestAnotherCAReachesTheBootstrapSecrets(t *testing.T) {
	m := apiserver(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	create(t, m, cluster)
	_, _, config := installed(t, m, testConfig().Namespace)
	bundle := config.Data[v1alpha1.TrustBundleKey]
	other, err := certs.NewCA("other", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{bundle, string(other.CertPEM()) + bundle, bundle} {
		edit(t, m, config, func(c *corev1.ConfigMap) { c.Data[v1alpha1.TrustBundleKey] = want })
		eventually(t, func() error {
			secret := bootstrapOf(cluster)
			if err := m.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
				return err
			}
			if got := string(secret.Data[v1alpha1.BootstrapCAKey]); got != want {
				return fmt.Errorf("the Secret has a bundle of %d bytes, want %d", len(got), len(want))
			}
			return nil
		})
	}
}

func TestAnInstallationUsesTheCAThatIsThere(t *testing.T) {
	m := apiserver(t)
	config := testConfig()
	config.Namespace = kubetest.NewNamespace(t, m)
	r := &installation{config: config, client: m, live: m, log: slog.New(slog.DiscardHandler), now: time.Now}
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

func TestAddToBundle(t *testing.T) {
	newCA := func(name string) string {
		ca, err := certs.NewCA(name, time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return string(ca.CertPEM())
	}
	old, current := newCA("old"), newCA("current")
	tests := map[string]struct{ in, want string }{
		"an empty bundle":               {in: "", want: current},
		"the CA is there":               {in: current, want: current},
		"another CA stays":              {in: old, want: old + current},
		"both are there":                {in: old + current, want: old + current},
		"both are there the other way":  {in: current + old, want: old + current},
		"what is no certificate goes":   {in: "x" + strings.ReplaceAll(old, "CERTIFICATE", "PRIVATE KEY"), want: current},
		"words between certificates go": {in: "# old\n" + old + "# end\n", want: old + current},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := addToBundle(tc.in, []byte(current))
			if got != tc.want {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
			if again := addToBundle(got, []byte(current)); again != got {
				t.Error("a second time it changes")
			}
		})
	}
}
