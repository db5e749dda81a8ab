package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"path/filepath"
	"testing"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

// file is a path in the lab's folder.
func (w *world) file(name string) string { return filepath.Join(w.Dir, name) }

// identityOf reads the identity that an agent keeps, as somebody could who stole its machine.
func identityOf(t *testing.T, stateDir string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	store, err := certs.OpenStore(stateDir)
	must(t, err)
	identity, err := store.Identity()
	must(t, err)
	roots, err := store.Roots()
	must(t, err)
	return identity.TLSCertificate(), roots
}

// subjectOf is what the leaf of an agent says.
func subjectOf(t *testing.T, stateDir string) model.Subject {
	t.Helper()
	certificate, _ := identityOf(t, stateDir)
	leaf, err := x509.ParseCertificate(certificate.Certificate[0])
	must(t, err)
	subject, err := domain.ParseSubject(leaf.Subject.CommonName, leaf.DNSNames)
	must(t, err)
	return subject
}
