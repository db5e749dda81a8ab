// Package certs creates keys, signing requests, certificates and CAs, stores an identity on disk, and renews it in
// time. The input is keys and the content of certificates, the output is certificates. The package does not know
// Fairlead's names: pkg/model and the signer decide what a certificate may contain.
package certs

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

const (
	pemCertificate = "CERTIFICATE"
	pemKey         = "PRIVATE KEY"
	// maxCommonName is the limit of X.509 (RFC 5280, ub-common-name).
	maxCommonName = 64
)

// ErrCAKey is wrapped by errors of ParseCA about the key, as opposed to the certificate.
var ErrCAKey = errors.New("reading CA key")

// CA is a CA certificate and its key. It is immutable and safe for concurrent use.
type CA struct {
	cert *x509.Certificate
	key  crypto.Signer // nil: it cannot sign
}

// NewCA returns a new self-signed CA with a new key. Its certificate becomes valid ClockSkew before now, for
// slow clocks.
func NewCA(commonName string, now time.Time, lifetime time.Duration) (*CA, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: commonName},
		NotBefore:             now.Add(-ClockSkew),
		NotAfter:              now.Add(lifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true, // it signs only leaves
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing CA %s: %w", commonName, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading new CA %s: %w", commonName, err)
	}
	return &CA{cert: cert, key: key}, nil
}

// ParseCA parses a CA from the first certificate of certPEM and its key (PKCS #8, SEC 1 or PKCS #1). It rejects a
// certificate that is not self-signed, because Envoy ends a chain only at a root, and one that must not sign
// certificates.
func ParseCA(certPEM, keyPEM []byte) (*CA, error) {
	certs, err := parseCertificates(certPEM)
	if err != nil {
		return nil, fmt.Errorf("reading CA certificate: %w", err)
	}
	key, err := parseSigner(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCAKey, err)
	}
	ca := &CA{cert: certs[0], key: key}
	if err := ca.validate(); err != nil {
		return nil, fmt.Errorf("reading CA %s: %w", ca.cert.Subject.CommonName, err)
	}
	return ca, nil
}

// ParseCAs parses the certificates of a trust bundle. The returned CAs have no keys: they can be trusted, but cannot
// sign.
func ParseCAs(certsPEM []byte) ([]*CA, error) {
	certs, err := parseCertificates(certsPEM)
	if err != nil {
		return nil, fmt.Errorf("reading CA certificates: %w", err)
	}
	cas := make([]*CA, len(certs))
	for i, cert := range certs {
		cas[i] = &CA{cert: cert}
	}
	return cas, nil
}

func (ca *CA) validate() error {
	switch {
	case !samePublicKey(ca.cert.PublicKey, ca.key.Public()):
		return fmt.Errorf("%w: it does not belong to the certificate", ErrCAKey)
	case !ca.cert.IsCA:
		return errors.New("the certificate is not a CA certificate")
	case ca.cert.KeyUsage&x509.KeyUsageCertSign == 0:
		return errors.New("the certificate may not sign certificates")
	}
	if err := ca.cert.CheckSignatureFrom(ca.cert); err != nil {
		return fmt.Errorf("the certificate is not self-signed: %w", err)
	}
	return nil
}

// Check issues a leaf and verifies it. It returns an error if the leaf is unusable, for example because of a name
// constraint or the expiry of the CA.
func (ca *CA) Check(leaf Leaf, now time.Time) error {
	key, err := NewKey()
	if err != nil {
		return err
	}
	chain, err := ca.Issue(key.Public(), leaf)
	if err != nil {
		return err
	}
	issued, err := parseCertificates(chain)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	for _, usage := range leaf.usages() {
		options := x509.VerifyOptions{
			Roots:       roots,
			CurrentTime: now,
			DNSName:     leaf.DNSNames[0],
			KeyUsages:   []x509.ExtKeyUsage{usage},
		}
		if _, err := issued[0].Verify(options); err != nil {
			return fmt.Errorf("verifying a leaf of CA %s: %w", ca.cert.Subject.CommonName, err)
		}
	}
	return nil
}

// CertPEM returns the CA's certificate, for trust bundles.
func (ca *CA) CertPEM() []byte { return encodeCertificates([][]byte{ca.cert.Raw}) }

// KeyPEM returns the CA's private key, as PKCS #8. Without a key it returns ErrCAKey.
func (ca *CA) KeyPEM() ([]byte, error) {
	if ca.key == nil {
		return nil, ErrCAKey
	}
	return encodeKey(ca.key)
}

// WithoutKey returns the CA without its key: it can be trusted, but cannot sign.
func (ca *CA) WithoutKey() *CA { return &CA{cert: ca.cert} }

// CanSign reports whether the CA has its key.
func (ca *CA) CanSign() bool { return ca.key != nil }

// Equal reports whether two CAs have the same certificate. Two nil CAs are equal.
func (ca *CA) Equal(other *CA) bool {
	if ca == nil || other == nil {
		return ca == other
	}
	return ca.cert.Equal(other.cert)
}

// Begin returns when NewCA created the CA. Its certificate becomes valid earlier, for slow clocks.
func (ca *CA) Begin() time.Time { return ca.cert.NotBefore.Add(ClockSkew) }

// NotAfter returns when the CA expires, and with it every leaf that it issued.
func (ca *CA) NotAfter() time.Time { return ca.cert.NotAfter }

// Subject returns the CA's distinguished name.
func (ca *CA) Subject() string { return ca.cert.Subject.String() }

// Serial returns the CA's serial number, in hexadecimal.
func (ca *CA) Serial() string { return ca.cert.SerialNumber.Text(16) }

func newSerial() (*big.Int, error) {
	// 127 bits, so that the number is positive in 16 bytes: RFC 5280 section 4.1.2.2 allows 20.
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("choosing serial number: %w", err)
	}
	return serial, nil
}

func samePublicKey(a, b crypto.PublicKey) bool {
	key, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && key.Equal(b)
}

// parseCertificates parses one or more certificates in PEM. It rejects any other content.
func parseCertificates(data []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for rest := data; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			if len(bytes.TrimSpace(rest)) > 0 {
				return nil, errors.New("it contains data that is not PEM")
			}
			break
		}
		if block.Type != pemCertificate {
			return nil, fmt.Errorf("it contains a %s instead of a certificate", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("reading certificate %d: %w", len(certs), err)
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, errors.New("no certificate found")
	}
	return certs, nil
}

func encodeCertificates(chain [][]byte) []byte {
	var out bytes.Buffer
	for _, der := range chain {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der}))
	}
	return out.Bytes()
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}

// parseSigner parses an ECDSA or RSA key. BoringSSL, with which Envoy verifies, accepts no other kind by default. Its
// errors never contain any part of the input.
func parseSigner(data []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("it is not PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		if key, err = x509.ParseECPrivateKey(block.Bytes); err != nil {
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		}
	}
	if err != nil {
		return nil, errors.New("it is not a private key in PKCS #8, SEC 1 or PKCS #1")
	}
	switch key := key.(type) {
	case *ecdsa.PrivateKey:
		return key, nil
	case *rsa.PrivateKey:
		return key, nil
	}
	return nil, fmt.Errorf("key type %T is not supported: must be ECDSA or RSA", key)
}
