package certs

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"time"
)

// Serving is a leaf for one server whose clients can be configured with its CA. The CA signs nothing else: its key is
// discarded as soon as the leaf is created, so it cannot be stolen.
type Serving struct {
	CAPEM           []byte
	CertPEM, KeyPEM []byte
}

// NewServing creates a leaf, and the CA that issues it, for a server with these DNS names and IP addresses.
func NewServing(commonName string, hosts []string, now time.Time, lifetime time.Duration) (Serving, error) {
	ca, err := NewCA(commonName, now, lifetime)
	if err != nil {
		return Serving{}, err
	}
	key, err := NewKey()
	if err != nil {
		return Serving{}, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: commonName}, NotBefore: now.Add(-ClockSkew), NotAfter: now.Add(lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	chain, err := ca.sign(template, key.Public())
	if err != nil {
		return Serving{}, err
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return Serving{}, err
	}
	return Serving{CAPEM: ca.CertPEM(), CertPEM: chain, KeyPEM: keyPEM}, nil
}

// sign completes a template and signs it, without checks.
func (ca *CA) sign(template *x509.Certificate, pub crypto.PublicKey) ([]byte, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, pub, ca.key)
	if err != nil {
		return nil, fmt.Errorf("issuing leaf for %s: %w", template.Subject.CommonName, err)
	}
	return encodeCertificates([][]byte{der}), nil
}
