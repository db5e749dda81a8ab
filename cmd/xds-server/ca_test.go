package main

import (
	"crypto/tls"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/certs"
)

// installation returns the trust bundle that the controller publishes.
func (m *management) installation(t *testing.T) certs.Bundle {
	t.Helper()
	var published corev1.ConfigMap
	key := client.ObjectKey{Namespace: "fairlead-system", Name: v1alpha1.InstallationConfigMapName}
	kubetest.Eventually(t, "the trust bundle", func() error { return m.Get(t.Context(), key, &published) })
	return certs.Bundle(published.Data[v1alpha1.TrustBundleKey])
}

// The test uses a real kube-apiserver, the deployed permissions, and the real controller, which makes a new CA after
// every copy of the old one has been deleted.
func TestANewCAIssuesANewLeaf(t *testing.T) {
	m := newManagement(t)
	at, _ := start(t, m)
	old := m.installation(t)
	m.stopController() // a running controller would restore each copy from the others
	in := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "fairlead-system", Name: name}
	}
	for _, object := range []client.Object{
		&corev1.Secret{ObjectMeta: in(v1alpha1.CASecretName)}, &corev1.Secret{ObjectMeta: in(v1alpha1.CAStateSecretName)},
		&corev1.ConfigMap{ObjectMeta: in(v1alpha1.InstallationConfigMapName)},
	} {
		if err := m.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	m.startController(t)
	kubetest.Eventually(t, "a leaf of the new CA", func() error {
		bundle := m.installation(t)
		if bundle.Overlaps(old) {
			return errors.New("the old CA is still trusted")
		}
		roots, err := bundle.Roots()
		if err != nil {
			return err
		}
		conn, err := tls.Dial(
			"tcp", at.String(),
			&tls.Config{RootCAs: roots, ServerName: domain.Control(), MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}},
		)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}
