package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// ErrNoIdentity is what a Source returns that has no identity yet.
var ErrNoIdentity = errors.New("there is no identity")

// Source gives the current identity. It is asked at each use, because identities are renewed.
type Source interface {
	Identity() (Identity, error)
}

// Identity is a leaf and its key, which belong together. Its zero value is no identity. It is never changed, but replaced.
type Identity struct {
	chain []*x509.Certificate // leaf first
	key   *ecdsa.PrivateKey
}

// NewKey returns a new key for a leaf: ECDSA on P-256.
func NewKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making key: %w", err)
	}
	return key, nil
}

// NewCSR returns a signing request (PKCS #10, DER) for a key. It holds no names: who signs decides on them.
func NewCSR(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("making signing request: %w", err)
	}
	return der, nil
}

// NewIdentity joins a key and the chain that was issued for it, leaf first. It refuses a leaf of another key.
func NewIdentity(chainPEM []byte, key *ecdsa.PrivateKey) (Identity, error) {
	chain, err := parseCertificates(chainPEM)
	if err != nil {
		return Identity{}, fmt.Errorf("reading leaf: %w", err)
	}
	if !samePublicKey(chain[0].PublicKey, key.Public()) {
		return Identity{}, errors.New("reading leaf: it is of another key")
	}
	return Identity{chain: chain, key: key}, nil
}

// ParseIdentity is NewIdentity with a key in PEM. No error of it holds any part of the key.
func ParseIdentity(chainPEM, keyPEM []byte) (Identity, error) {
	signer, err := parseSigner(keyPEM)
	if err != nil {
		return Identity{}, fmt.Errorf("reading key: %w", err)
	}
	key, ok := signer.(*ecdsa.PrivateKey)
	if !ok {
		return Identity{}, errors.New("reading key: it is not ECDSA")
	}
	return NewIdentity(chainPEM, key)
}

// Leaf is the certificate itself, nil for the zero identity. It must not be changed.
func (i Identity) Leaf() *x509.Certificate {
	if len(i.chain) == 0 {
		return nil
	}
	return i.chain[0]
}

// NotBefore is when the leaf begins.
func (i Identity) NotBefore() time.Time { return i.Leaf().NotBefore }

// NotAfter is when the leaf ends.
func (i Identity) NotAfter() time.Time { return i.Leaf().NotAfter }

// Serial is the leaf's serial number, in hexadecimal: how logs name a leaf.
func (i Identity) Serial() string { return i.Leaf().SerialNumber.Text(16) }

// ChainPEM is the leaf and what is between it and its CA.
func (i Identity) ChainPEM() []byte { return encodeCertificates(i.raw()) }

// KeyPEM is the private key, as PKCS #8.
func (i Identity) KeyPEM() ([]byte, error) { return encodeKey(i.key) }

// TLSCertificate is the identity in the form that crypto/tls wants.
func (i Identity) TLSCertificate() tls.Certificate {
	return tls.Certificate{Certificate: i.raw(), PrivateKey: i.key, Leaf: i.Leaf()}
}

func (i Identity) raw() [][]byte {
	chain := make([][]byte, len(i.chain))
	for n, cert := range i.chain {
		chain[n] = cert.Raw
	}
	return chain
}
