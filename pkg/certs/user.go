package certs

import (
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"time"
)

// User is the content of a client certificate for a Kubernetes apiserver: the name and the groups of the user.
type User struct {
	Name                string
	Groups              []string
	NotBefore, NotAfter time.Time
}

// ParseUserCA parses the CA of an apiserver that Fairlead does not own. It need not be self-signed: an apiserver
// accepts any certificate in its --client-ca-file as a root. Errors about the key wrap ErrCAKey; no error contains any
// part of it.
func ParseUserCA(certPEM, keyPEM []byte) (*CA, error) {
	certs, err := parseCertificates(certPEM)
	if err != nil {
		return nil, fmt.Errorf("reading CA certificate: %w", err)
	}
	key, err := parseSigner(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCAKey, err)
	}
	ca := &CA{cert: certs[0], key: key}
	switch {
	case !samePublicKey(ca.cert.PublicKey, key.Public()):
		return nil, fmt.Errorf("%w: it does not belong to the certificate", ErrCAKey)
	case !ca.cert.IsCA:
		return nil, errors.New("reading CA certificate: it is not a CA certificate")
	}
	return ca, nil
}

// IssueUser signs a client certificate for a key, and returns it as PEM. The certificate expires with its CA at the
// latest.
func (ca *CA) IssueUser(pub crypto.PublicKey, user User) (certPEM []byte, err error) {
	if user.NotAfter.After(ca.cert.NotAfter) {
		user.NotAfter = ca.cert.NotAfter
	}
	switch {
	case ca.key == nil:
		return nil, ErrCAKey
	case user.Name == "" || len(user.Name) > maxCommonName:
		return nil, fmt.Errorf(
			"issuing certificate of a user: its name has %d bytes, not 1 to %d", len(user.Name), maxCommonName,
		)
	case !user.NotAfter.After(user.NotBefore):
		return nil, fmt.Errorf(
			"issuing certificate of %s: it would expire before it becomes valid, or its CA has expired", user.Name,
		)
	}
	return ca.sign(&x509.Certificate{
		Subject:   pkix.Name{CommonName: user.Name, Organization: user.Groups},
		NotBefore: user.NotBefore, NotAfter: user.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}, pub)
}

// Issued reports whether the CA signed a certificate, regardless of its key usage and expiry.
func (ca *CA) Issued(cert *x509.Certificate) bool { return cert.CheckSignatureFrom(ca.cert) == nil }
