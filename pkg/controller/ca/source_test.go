package ca

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
)

func TestAChangedExternalCAStartsARotation(t *testing.T) {
	w := newWorld(t, controllertest.APIServer(t))
	w.reconcile()
	mine := w.bringNew("Mine")
	w.reconcile()
	if s := w.state(); s.phase != v1alpha1.CAPhaseIntroduce || !s.next.Equal(mine) || s.next.made {
		t.Fatalf("phase %s", s.phase)
	}
	// Its issuer renews it at once: the first CA has signed nothing.
	second := w.bringNew("Mine again")
	w.clock = w.clock.Add(time.Hour)
	w.reconcile()
	w.checkOut()
	if s := w.state(); !s.next.Equal(second) || !s.since.Equal(w.clock) {
		t.Fatalf("the second CA is not the next, or since %s", s.since)
	}
	for range 15 {
		w.clock = w.clock.Add(24 * time.Hour)
		w.reconcile()
		w.checkOut()
	}
	s := w.state()
	if s.phase != v1alpha1.CAPhaseSteady || !s.signing.Equal(second) {
		t.Fatalf("phase %s", s.phase)
	}
	if out := w.rotation(); out.Next != nil || !out.CAs[0].Brought || out.Problem != "" {
		t.Errorf("the ConfigMap has %+v", out)
	}
	w.ask()
	w.reconcile()
	if s := w.state(); s.phase != v1alpha1.CAPhaseSteady || !s.signing.Equal(second) ||
		w.r.problem == "" && len(w.published().Annotations) != 0 {
		t.Error("a CA that was brought is rotated by the controller")
	}
}

func TestAnUnusableSourceDoesNotChangeTheCA(t *testing.T) {
	at := time.Now()
	root := newIssuer(t, "root", at, config.DefaultCALifetime).CA
	rootKey := keyOf(t, root)
	leafCert, leafKey := signedBy(t, root, func(c *x509.Certificate) {})
	interCert, interKey := signedBy(t, root, func(c *x509.Certificate) {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
	})
	limitedCert, limitedKey := signedBy(t, nil, func(c *x509.Certificate) {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage, c.PermittedDNSDomains = true, true, x509.KeyUsageCertSign, []string{
			"example.org",
		}
	})
	ended := newIssuer(t, "ended", at.Add(-2*time.Hour), time.Hour).CA
	short := newIssuer(t, "short", at, time.Hour).CA
	tests := map[string]struct {
		cert, key []byte
		want      []string
	}{
		"garbage":                           {[]byte("garbage"), rootKey, []string{"tls.crt", "not PEM"}},
		"nothing":                           {nil, nil, []string{"tls.crt", "no certificate"}},
		"a certificate where a key belongs": {root.CertPEM(), root.CertPEM(), []string{"tls.key", "not a private key"}},
		"the key of another": {
			root.CertPEM(),
			leafKey,
			[]string{"tls.key", "does not belong to the certificate"},
		},
		"a leaf": {leafCert, leafKey, []string{"tls.crt", "not a CA"}},
		"an intermediate CA": {
			slices.Concat(interCert, root.CertPEM()), interKey, []string{"tls.crt", "not self-signed", "SelfSigned issuer"},
		},
		"a CA that ends before it could sign":  {short.CertPEM(), keyOf(t, short), []string{"tls.crt", "valid for longer"}},
		"a CA that has ended":                  {ended.CertPEM(), keyOf(t, ended), []string{"tls.crt", "expired"}},
		"a CA that may not sign for our names": {limitedCert, limitedKey, []string{"tls.crt", "not permitted"}},
	}
	m := controllertest.APIServer(t)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, m)
			w.reconcile()
			before := w.state()
			w.bring(tc.cert, tc.key)
			w.reconcile()
			w.checkOut()
			if after := w.state(); after.phase != v1alpha1.CAPhaseSteady || !after.signing.Equal(before.signing.CA) {
				t.Fatalf("phase %s", after.phase)
			}
			for _, part := range append(tc.want, "fairlead-ca", "stays") {
				if got := w.rotation().Problem; !strings.Contains(got, part) {
					t.Errorf("problem %q does not have %q", got, part)
				}
			}
			if got := w.rotation().Problem; strings.Contains(got, "BEGIN") {
				t.Error("the problem has PEM in it")
			}
			w.bringNew("good")
			w.reconcile()
			if after := w.state(); after.phase != v1alpha1.CAPhaseIntroduce || w.rotation().Problem != "" {
				t.Errorf("phase %s, problem %q", after.phase, w.rotation().Problem)
			}
		})
	}
}

func keyOf(t *testing.T, ca *certs.CA) []byte {
	t.Helper()
	key, err := ca.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// signedBy returns a certificate that a CA signed, or a self-signed one.
func signedBy(t *testing.T, ca *certs.CA, change func(*x509.Certificate)) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "x"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(config.DefaultCALifetime),
	}
	change(template)
	parent, signer := template, any(key)
	if ca != nil {
		block, _ := pem.Decode(ca.CertPEM())
		if parent, err = x509.ParseCertificate(block.Bytes); err != nil {
			t.Fatal(err)
		}
		block, _ = pem.Decode(keyOf(t, ca))
		if signer, err = x509.ParsePKCS8PrivateKey(block.Bytes); err != nil {
			t.Fatal(err)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(
		&pem.Block{Type: "CERTIFICATE", Bytes: der},
	), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

func TestADeletedSourceIsRecreated(t *testing.T) {
	w := newWorld(t, controllertest.APIServer(t))
	w.reconcile()
	made := w.state().signing
	if err := w.m.Delete(t.Context(), w.secret(v1alpha1.CASecretName)); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	w.checkOut()
	if s := w.state(); s.phase != v1alpha1.CAPhaseSteady || !s.signing.Equal(made.CA) {
		t.Errorf("deleting the Secret of a CA that was made has begun a rotation: %s", s.phase)
	}
	if got := string(w.secret(v1alpha1.CASecretName).Data[corev1.TLSCertKey]); got != string(made.CertPEM()) {
		t.Error("the source was not made again")
	}
	w.bringNew("Mine")
	for range 15 {
		w.clock = w.clock.Add(24 * time.Hour)
		w.reconcile()
	}
	if err := w.m.Delete(t.Context(), w.secret(v1alpha1.CASecretName)); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	w.checkOut()
	if s := w.state(); s.phase != v1alpha1.CAPhaseSteady || !strings.Contains(w.rotation().Problem, "is deleted") {
		t.Errorf("phase %s, problem %q", s.phase, w.rotation().Problem)
	}
}

// TestSourcesThatCannotBeChanged: neither a Secret's type nor an immutable Secret can change.
func TestSourcesThatCannotBeChanged(t *testing.T) {
	tests := map[string]struct {
		change  func(*corev1.Secret)
		problem bool
	}{
		"of a wrong type": {func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }, true},
		"immutable":       {func(s *corev1.Secret) { s.Immutable = ptr.To(true) }, false},
	}
	m := controllertest.APIServer(t)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, m)
			w.reconcile()
			old, made := w.secret(v1alpha1.CASecretName), w.state().signing
			if err := m.Delete(t.Context(), old); err != nil {
				t.Fatal(err)
			}
			other := &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: old.Namespace, Name: old.Name, Annotations: old.Annotations},
				Type:       old.Type, Data: old.Data,
			}
			tc.change(other)
			controllertest.Create(t, m, other)
			w.reconcile()
			if got := w.rotation().Problem; (got != "") != tc.problem || w.secret(v1alpha1.CASecretName).UID != other.UID {
				t.Errorf("problem %q, or the Secret is another one although there is time for a cure", got)
			}
			w.clock = w.state().rotateAt(w.config.Timing()).Add(time.Minute)
			w.fail.count = 0
			w.reconcile()
			if s := w.state(); s.phase != v1alpha1.CAPhaseIntroduce || !s.signing.Equal(made.CA) ||
				w.secret(v1alpha1.CASecretName).Type != corev1.SecretTypeTLS {
				t.Errorf("phase %s", s.phase)
			}
			if w.fail.count > 6 {
				t.Errorf("%d writes", w.fail.count)
			}
			w.checkOut()
		})
	}
}

func TestAnUnreadableStateStopsSigningAndIsReported(t *testing.T) {
	w := newWorld(t, controllertest.APIServer(t))
	w.reconcile()
	controllertest.Edit(
		t, w.m, w.secret(v1alpha1.CAStateSecretName), func(s *corev1.Secret) { s.Data["signing.key"] = []byte("garbage") },
	)
	_, err := w.r.ensure(t.Context())
	if err == nil || !strings.Contains(err.Error(), "fairlead-ca-state") ||
		!strings.Contains(err.Error(), "signing.key") || strings.Contains(err.Error(), "BEGIN") {
		t.Errorf("got %v", err)
	}
}
