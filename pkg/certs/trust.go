package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// TrustSource gives the CAs to accept. It is asked at each use, because CAs are rotated.
type TrustSource interface {
	Roots() (*x509.CertPool, error)
}

// Bundle is a trust bundle in PEM that does not change.
type Bundle []byte

// Roots implements TrustSource. A bundle that holds anything but certificates, or none, is an error.
func (b Bundle) Roots() (*x509.CertPool, error) {
	certs, err := parseCertificates(b)
	if err != nil {
		return nil, fmt.Errorf("reading trust bundle: %w", err)
	}
	pool := x509.NewCertPool()
	for _, cert := range certs {
		pool.AddCert(cert)
	}
	return pool, nil
}

// Overlaps says whether two bundles have the key of a CA in common. One that can't be read has none.
func (b Bundle) Overlaps(other Bundle) bool {
	mine, errMine := parseCertificates(b)
	others, errOthers := parseCertificates(other)
	if errMine != nil || errOthers != nil {
		return false
	}
	for _, cert := range mine {
		if slices.ContainsFunc(others, func(o *x509.Certificate) bool { return samePublicKey(o.PublicKey, cert.PublicKey) }) {
			return true
		}
	}
	return false
}

// Verify returns nil if an identity is of one of the bundle's CAs, whatever it is for and whether or not its time is over. A
// bundle that can't be read says nothing about it: that is no error either. The identity must have a leaf.
func (b Bundle) Verify(identity Identity) error {
	roots, err := b.Roots()
	if err != nil {
		return nil //nolint:nilerr // as documented
	}
	intermediates := x509.NewCertPool()
	for _, cert := range identity.chain {
		intermediates.AddCert(cert)
	}
	_, err = identity.Leaf().Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, CurrentTime: identity.NotAfter(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return fmt.Errorf("verifying the own certificate: %w", err)
	}
	return nil
}

// ServerTLS is the TLS of the control channel's server. Clients without a certificate are let in, because they may be
// there to get one. A certificate that is shown must be of the CAs in trust and for clients, else the handshake fails; but
// it may have expired, by at most grace, so that machines that were cut off for long can renew by their key. So whoever
// gives out anything but a new leaf must ask VerifyNow.
func ServerTLS(identity Source, trust TrustSource, grace time.Duration) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			current, err := identity.Identity()
			if err != nil {
				return nil, fmt.Errorf("reading identity of the server: %w", err)
			}
			cert := current.TLSCertificate()
			return &cert, nil
		},
		ClientAuth: tls.RequestClientCert, // what is shown is verified below
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return nil
			}
			return verifyClient(state.PeerCertificates, trust, time.Now(), grace)
		},
		SessionTicketsDisabled: true, // a session would outlive a CA that is taken out of the bundle
	}
}

func verifyClient(chain []*x509.Certificate, trust TrustSource, now time.Time, grace time.Duration) error {
	roots, err := trust.Roots()
	if err != nil {
		return fmt.Errorf("verifying client certificate: %w", err)
	}
	at := now
	if end := chain[0].NotAfter; now.After(end) && now.Before(end.Add(grace)) {
		at = end
	}
	intermediates := x509.NewCertPool()
	for _, cert := range chain[1:] {
		intermediates.AddCert(cert)
	}
	_, err = chain[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return fmt.Errorf("verifying client certificate: %w", err)
	}
	return nil
}

// ErrNoPeer says that a client showed no certificate, ErrExpired that its leaf has ended.
var (
	ErrNoPeer  = errors.New("the client showed no certificate")
	ErrExpired = errors.New("the client's certificate has expired")
)

// Peer returns the leaf of the client of a connection that ServerTLS verified. It may have expired: ErrNoPeer is the only error.
func Peer(state tls.ConnectionState) (*x509.Certificate, error) {
	if len(state.PeerCertificates) == 0 {
		return nil, ErrNoPeer
	}
	return state.PeerCertificates[0], nil
}

// VerifyNow is Peer for a leaf that must be valid now, else the error is ErrExpired.
func VerifyNow(state tls.ConnectionState, now time.Time) (*x509.Certificate, error) {
	leaf, err := Peer(state)
	if err != nil {
		return nil, err
	}
	if now.After(leaf.NotAfter) {
		return nil, ErrExpired
	}
	return leaf, nil
}
