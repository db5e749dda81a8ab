// Package pki creates certificate authorities and certificates for the apiservers and webhooks of a lab. Input: names
// and times. Output: PEM.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Authority is a certificate authority of a cluster, as kubeadm would make it: one for servers and clients.
type Authority struct {
	CertPEM, KeyPEM []byte
	cert            *x509.Certificate
	key             crypto.Signer
}

// KeyPair is a certificate and its key.
type KeyPair struct{ CertPEM, KeyPEM []byte }

// LeafSpec describes a certificate.
type LeafSpec struct {
	CommonName    string
	Organizations []string
	Names         []string // DNS names and IP addresses of a server
	Usage         x509.ExtKeyUsage
	NotAfter      time.Time // zero: a day from now
}

// NewAuthority returns an authority that is valid for a day.
func NewAuthority(commonName string) (*Authority, error) {
	return NewAuthorityUntil(commonName, time.Time{})
}

// NewAuthorityUntil returns an authority that is valid until notAfter; zero: for a day.
func NewAuthorityUntil(commonName string, notAfter time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of %s: %w", commonName, err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	return newAuthority(commonName, notAfter, key, keyPEM)
}

// NewRSAAuthority returns an authority that is valid for a day, with an RSA key in PKCS #1, for programs that read no
// other.
func NewRSAAuthority(commonName string) (*Authority, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, fmt.Errorf("making the key of %s: %w", commonName, err)
	}
	return newAuthority(commonName, time.Time{}, key, encode("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key)))
}

func newAuthority(commonName string, notAfter time.Time, key crypto.Signer, keyPEM []byte) (*Authority, error) {
	template := newTemplate(commonName)
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	if !notAfter.IsZero() {
		template.NotAfter = notAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate of %s: %w", commonName, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate of %s: %w", commonName, err)
	}
	return &Authority{CertPEM: encode("CERTIFICATE", der), KeyPEM: keyPEM, cert: cert, key: key}, nil
}

// ReadAuthority returns the authority of a certificate and its key, as kubeadm writes them: an RSA key in PKCS #1.
func ReadAuthority(certPEM, keyPEM []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("reading an authority: %w", err)
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("reading an authority: a %T signs nothing", pair.PrivateKey)
	}
	return &Authority{CertPEM: certPEM, KeyPEM: keyPEM, cert: pair.Leaf, key: signer}, nil
}

// Issue creates a key and a certificate for it.
func (a *Authority) Issue(spec LeafSpec) (KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, fmt.Errorf("making the key of %s: %w", spec.CommonName, err)
	}
	template := newTemplate(spec.CommonName)
	template.Subject.Organization = spec.Organizations
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{spec.Usage}
	if !spec.NotAfter.IsZero() {
		template.NotAfter = spec.NotAfter
	}
	for _, name := range spec.Names {
		if address := net.ParseIP(name); address != nil {
			template.IPAddresses = append(template.IPAddresses, address)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("signing the certificate of %s: %w", spec.CommonName, err)
	}
	keyPEM, err := encodeKey(key)
	return KeyPair{CertPEM: encode("CERTIFICATE", der), KeyPEM: keyPEM}, err
}

// Write writes the pair to <dir>/<name>.crt and <dir>/<name>.key.
func (k KeyPair) Write(dir, name string) error {
	return errors.Join(
		os.WriteFile(filepath.Join(dir, name+".crt"), k.CertPEM, 0o644),
		os.WriteFile(filepath.Join(dir, name+".key"), k.KeyPEM, 0o600),
	)
}

// ServiceAccountKey creates the key that signs an apiserver's ServiceAccount tokens.
func ServiceAccountKey() (KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, fmt.Errorf("making the ServiceAccount key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return KeyPair{}, fmt.Errorf("encoding the ServiceAccount key: %w", err)
	}
	keyPEM, err := encodeKey(key)
	return KeyPair{CertPEM: encode("PUBLIC KEY", public), KeyPEM: keyPEM}, err
}

func newTemplate(commonName string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)) // never fails
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: commonName},
		NotBefore:    now.Add(-time.Hour), // tolerates clocks that are behind
		NotAfter:     now.Add(24 * time.Hour),
	}
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	return encode("EC PRIVATE KEY", der), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
