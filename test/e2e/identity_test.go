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

// file is a path in the lab's folder.
func (w *world) file(name string) string { return filepath.Join(w.Dir, name) }

// identityOf reads the identity that an agent keeps.
func identityOf(t *testing.T, stateDir string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	stolen, err := outsider.Steal(domain, stateDir)
	must(t, err)
	return stolen.Certificate, stolen.Roots
}

// subjectOf is what the leaf of an agent says.
func subjectOf(t *testing.T, stateDir string) model.Subject {
	t.Helper()
	stolen, err := outsider.Steal(domain, stateDir)
	must(t, err)
	return stolen.Subject
}

// foreignIdentity is a certificate with a subject's names, of a CA that nobody trusts.
func foreignIdentity(t *testing.T, subject model.Subject) tls.Certificate {
	t.Helper()
	ca, err := certs.NewCA("fairlead", time.Now(), time.Hour)
	must(t, err)
	identity, err := outsider.Forge(ca, domain, subject, time.Now().Add(-time.Minute), time.Now().Add(time.Hour))
	must(t, err)
	return identity.TLSCertificate()
}

// outsider is somebody in the workload network. Without a certificate none is shown.
func (w *world) outsider(roots *x509.CertPool, certificate *tls.Certificate) outsider.Outsider {
	return outsider.Outsider{From: w.Network.Workload, Domain: domain, Roots: roots, Certificate: certificate}
}

// dialPublic makes a TLS connection to the gateway's public port from the workload network.
func (w *world) dialPublic(ctx context.Context, roots *x509.CertPool, name string, certificate *tls.Certificate) (*tls.Conn, error) {
	return w.outsider(roots, certificate).TLS(ctx, name)
}
