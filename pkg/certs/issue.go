package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"time"
)

const (
	// ClockSkew is how much earlier than now the validity of a certificate should begin, because the clocks of
	// machines differ. A clock that is wrong by 10 minutes is not rare on unattended machines, and must work.
	ClockSkew = 15 * time.Minute
	// MaxCSR is the maximum size in bytes that ParseCSR accepts. Ours have about 200.
	MaxCSR = 8 << 10
)

// Leaf is the content of a certificate. All of it comes from the signer, nothing from the requester.
type Leaf struct {
	CommonName          string
	DNSNames            []string
	Server, Client      bool // permitted roles in a TLS handshake: at least one
	NotBefore, NotAfter time.Time
}

// Issue signs a leaf for a key, and returns it as PEM. The leaf expires with its CA at the latest. If the content of
// the leaf is invalid, the error names the invalid part.
func (ca *CA) Issue(pub crypto.PublicKey, leaf Leaf) (chainPEM []byte, err error) {
	if ca.key == nil {
		return nil, fmt.Errorf("issuing leaf for %s: %w", leaf.CommonName, ErrCAKey)
	}
	if leaf.NotAfter.After(ca.cert.NotAfter) {
		leaf.NotAfter = ca.cert.NotAfter
	}
	if err := leaf.validate(); err != nil {
		return nil, fmt.Errorf("issuing leaf for %s: %w", leaf.CommonName, err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: leaf.CommonName},
		DNSNames:              leaf.DNSNames,
		NotBefore:             leaf.NotBefore,
		NotAfter:              leaf.NotAfter,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           leaf.usages(),
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, pub, ca.key)
	if err != nil {
		return nil, fmt.Errorf("issuing leaf for %s: %w", leaf.CommonName, err)
	}
	return encodeCertificates([][]byte{der}), nil
}

func (l Leaf) validate() error {
	switch {
	case l.CommonName == "" || len(l.CommonName) > maxCommonName:
		return fmt.Errorf("its common name has %d bytes, not 1 to %d", len(l.CommonName), maxCommonName)
	case len(l.DNSNames) == 0:
		return errors.New("it has no DNS name")
	case !l.Server && !l.Client:
		return errors.New("it is for neither servers nor clients")
	case l.NotBefore.IsZero() || !l.NotAfter.After(l.NotBefore):
		return errors.New("it would expire before it becomes valid, or its CA has expired")
	}
	return nil
}

func (l Leaf) usages() []x509.ExtKeyUsage {
	var usages []x509.ExtKeyUsage
	if l.Server {
		usages = append(usages, x509.ExtKeyUsageServerAuth)
	}
	if l.Client {
		usages = append(usages, x509.ExtKeyUsageClientAuth)
	}
	return usages
}

// ParseCSR returns the key of a signing request (PKCS #10, DER) whose signature proves possession of the key. It
// accepts only ECDSA keys on P-256. It ignores all other content of the request.
func ParseCSR(der []byte) (crypto.PublicKey, error) {
	if len(der) > MaxCSR {
		return nil, fmt.Errorf("reading signing request: it has %d bytes, more than %d", len(der), MaxCSR)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, fmt.Errorf("reading signing request: %w", err)
	}
	key, ok := csr.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("reading signing request: its key is not ECDSA on P-256")
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("reading signing request: %w", err)
	}
	return key, nil
}
