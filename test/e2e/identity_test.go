package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/outsider"
)

// file returns a path in the lab's folder.
func (w *world) file(name string) string { return filepath.Join(w.Dir, name) }

// identityOf reads an agent's identity.
func identityOf(t *testing.T, stateDir string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	stolen, err := outsider.Steal(domain, stateDir)
	must(t, err)
	return stolen.Certificate, stolen.Roots
}

// subjectOf returns the subject of an agent's leaf.
func subjectOf(t *testing.T, stateDir string) model.Subject {
	t.Helper()
	stolen, err := outsider.Steal(domain, stateDir)
	must(t, err)
	return stolen.Subject
}

// foreignIdentity returns a certificate with a subject's names, of an untrusted CA.
func foreignIdentity(t *testing.T, subject model.Subject) tls.Certificate {
	t.Helper()
	ca, err := certs.NewCA("fairlead", time.Now(), time.Hour)
	must(t, err)
	identity, err := outsider.Forge(ca, domain, subject, time.Now().Add(-time.Minute), time.Now().Add(time.Hour))
	must(t, err)
	return identity.TLSCertificate()
}

// outsider returns an attacker in the workload network. Without a certificate it shows none.
func (w *world) outsider(roots *x509.CertPool, certificate *tls.Certificate) outsider.Outsider {
	return outsider.Outsider{From: w.Network.Workload, Domain: domain, Roots: roots, Certificate: certificate}
}

// dialPublic opens a TLS connection to the gateway's public port from the workload network.
func (w *world) dialPublic(
	ctx context.Context, roots *x509.CertPool, name string, certificate *tls.Certificate,
) (*tls.Conn, error) {
	return w.outsider(roots, certificate).TLS(ctx, name)
}
