package certs

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// Cross is a cross-certificate: the name and the key of a CA, signed by the CA before it (RFC 5280, section 3.2). A
// server that presents it after its leaf is accepted by clients that trust the CA before only. It is immutable.
type Cross struct{ cert *x509.Certificate }

// CrossSign signs the public key of the next CA. The cross-certificate is for server leaves only, so no client gains
// anything by presenting it, and it ends with the first of both CAs. CrossSign returns an error if a constraint of this
// CA forbids it, or if this CA has expired.
func (ca *CA) CrossSign(next *CA, now time.Time) (*Cross, error) {
	if ca.key == nil {
		return nil, fmt.Errorf("cross-signing CA %s: %w", next.Serial(), ErrCAKey)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	end := next.cert.NotAfter
	if ca.cert.NotAfter.Before(end) {
		end = ca.cert.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial,
		RawSubject:   next.cert.RawSubject,
		NotBefore:    next.cert.NotBefore,
		NotAfter:     end,
		KeyUsage:     x509.KeyUsageCertSign,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		SubjectKeyId: next.cert.SubjectKeyId,
		// crypto/x509 adds it by itself only if the two names differ. Without it, a certificate whose subject is its issuer
		// looks like a root.
		AuthorityKeyId:        ca.cert.SubjectKeyId,
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
	}, ca.cert, next.cert.PublicKey, ca.key)
	if err != nil {
		return nil, fmt.Errorf("cross-signing CA %s: %w", next.Serial(), err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading new cross-certificate: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now}); err != nil {
		return nil, fmt.Errorf("verifying new cross-certificate of CA %s: %w", next.Serial(), err)
	}
	if noIntermediates(ca.cert) && (!selfIssued(cert) || constrained(ca.cert)) {
		return nil, fmt.Errorf("cross-signing CA %s: the CA %s may sign only leaves, and the two have different names, or "+
			"constraints on names", next.Serial(), ca.Serial())
	}
	return &Cross{cert}, nil
}

// ParseCross parses a cross-certificate for a CA.
func ParseCross(certPEM []byte, ca *CA) (*Cross, error) {
	parsed, err := parseCertificates(certPEM)
	if err != nil {
		return nil, fmt.Errorf("reading cross-certificate: %w", err)
	}
	if len(parsed) != 1 || !bytes.Equal(parsed[0].RawSubject, ca.cert.RawSubject) ||
		!samePublicKey(parsed[0].PublicKey, ca.cert.PublicKey) {
		return nil, fmt.Errorf("reading cross-certificate: it is not for the CA %s", ca.Serial())
	}
	return &Cross{parsed[0]}, nil
}

// CertPEM returns the cross-certificate, to follow a leaf.
func (c *Cross) CertPEM() []byte { return encodeCertificates([][]byte{c.cert.Raw}) }

// NotAfter returns when the cross-certificate expires.
func (c *Cross) NotAfter() time.Time { return c.cert.NotAfter }

// selfIssued reports whether a certificate has the name of its issuer. RFC 5280 does not count such a certificate in
// the length of a path, so that a CA that signs only leaves can still vouch for its successor.
func selfIssued(cert *x509.Certificate) bool { return bytes.Equal(cert.RawSubject, cert.RawIssuer) }

// noIntermediates reports whether a CA signs only leaves and self-issued certificates.
func noIntermediates(cert *x509.Certificate) bool {
	return cert.BasicConstraintsValid && cert.MaxPathLen == 0 && cert.MaxPathLenZero
}

// ClientTLS returns the TLS configuration of a client of the server with a name. It verifies the server as crypto/tls
// does with these roots, and also accepts a self-issued cross-certificate. crypto/x509 counts that in the length of a
// path, against RFC 5280 (section 6.1.4 (l)), and so rejects it below a CA that signs only leaves, such as NewCA's.
func ClientTLS(name string, roots *x509.CertPool) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: name,
		// VerifyConnection verifies all that crypto/tls would.
		InsecureSkipVerify: true, //nolint:gosec // see above
		VerifyConnection: func(state tls.ConnectionState) error {
			err := verifyServer(state.PeerCertificates, name, roots, time.Now())
			if err != nil {
				return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
			}
			return nil
		},
	}
}

func verifyServer(chain []*x509.Certificate, name string, roots *x509.CertPool, now time.Time) error {
	if len(chain) == 0 || name == "" || roots == nil { // crypto/x509 would skip the name, or use the machine's roots
		return errors.New("verifying server: it has no certificate, no name or no roots")
	}
	options := x509.VerifyOptions{
		DNSName: name, Roots: roots, Intermediates: x509.NewCertPool(), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, cert := range chain[1:] {
		options.Intermediates.AddCert(cert)
	}
	_, err := chain[0].Verify(options)
	if err == nil {
		return nil
	}
	for _, cert := range chain[1:] {
		if !vouched(cert, roots, now) {
			continue
		}
		options.Roots, options.Intermediates = x509.NewCertPool(), nil
		options.Roots.AddCert(cert)
		if _, again := chain[0].Verify(options); again == nil {
			return nil
		}
	}
	return err
}

// vouched reports whether a root has signed a self-issued CA certificate. The constraints on names of the root would
// not apply to what that CA signs, so such a root vouches for none.
func vouched(cert *x509.Certificate, roots *x509.CertPool, now time.Time) bool {
	if !cert.IsCA || !selfIssued(cert) {
		return false
	}
	paths, err := cert.Verify(x509.VerifyOptions{
		Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return false
	}
	for _, path := range paths {
		if len(path) == 2 && noIntermediates(path[1]) && !constrained(path[1]) && !constrained(cert) {
			return true
		}
	}
	return false
}

func constrained(cert *x509.Certificate) bool {
	const nameConstraints = "2.5.29.30"
	for _, extension := range cert.Extensions {
		if extension.Id.String() == nameConstraints {
			return true
		}
	}
	return false
}
