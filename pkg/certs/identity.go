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

// ErrNoIdentity is returned by a Source that has no identity yet.
var ErrNoIdentity = errors.New("no identity yet")

// Source returns the current identity. Call it at each use, because identities are renewed.
type Source interface {
	Identity() (Identity, error)
}

// Identity is a leaf and its key. The zero value is no identity. An Identity is immutable; a renewal replaces it.
type Identity struct {
	chain []*x509.Certificate // leaf first
	key   *ecdsa.PrivateKey
}

// NewKey returns a new key for a leaf: ECDSA on P-256.
func NewKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("creating key: %w", err)
	}
	return key, nil
}

// NewCSR returns a signing request (PKCS #10, DER) for a key. It contains no names: the signer decides them.
func NewCSR(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("creating signing request: %w", err)
	}
	return der, nil
}

// NewIdentity combines a key and the chain that was issued for it, leaf first. It rejects a leaf of another key.
func NewIdentity(chainPEM []byte, key *ecdsa.PrivateKey) (Identity, error) {
	chain, err := parseCertificates(chainPEM)
	if err != nil {
		return Identity{}, fmt.Errorf("reading leaf: %w", err)
	}
	if !samePublicKey(chain[0].PublicKey, key.Public()) {
		return Identity{}, errors.New("reading leaf: it does not belong to the key")
	}
	return Identity{chain: chain, key: key}, nil
}

// ParseIdentity is like NewIdentity, with a key in PEM. Its errors contain no part of the key.
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

// Leaf returns the leaf, or nil for the zero identity. The caller must not modify it.
func (i Identity) Leaf() *x509.Certificate {
	if len(i.chain) == 0 {
		return nil
	}
	return i.chain[0]
}

// NotBefore returns when the leaf becomes valid. It panics for the zero identity.
func (i Identity) NotBefore() time.Time { return i.Leaf().NotBefore }

// NotAfter returns when the leaf expires. It panics for the zero identity.
func (i Identity) NotAfter() time.Time { return i.Leaf().NotAfter }

// Lifetime returns for how long the leaf is valid from the moment at which it was issued. Issuers set NotBefore earlier
// by ClockSkew; a leaf that is valid for less in all has another issuer. It panics for the zero identity.
func (i Identity) Lifetime() time.Duration {
	valid := i.NotAfter().Sub(i.NotBefore())
	if valid > ClockSkew {
		return valid - ClockSkew
	}
	return valid
}

// Serial returns the leaf's serial number in hexadecimal, as logs name a leaf. It panics for the zero identity.
func (i Identity) Serial() string { return i.Leaf().SerialNumber.Text(16) }

// ChainPEM returns the leaf and its intermediate certificates.
func (i Identity) ChainPEM() []byte { return encodeCertificates(i.raw()) }

// KeyPEM returns the private key, as PKCS #8.
func (i Identity) KeyPEM() ([]byte, error) { return encodeKey(i.key) }

// TLSCertificate returns the identity as a certificate of crypto/tls.
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
