package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// TrustSource returns the CAs to trust. Call it at each use, because CAs are rotated.
type TrustSource interface {
	Roots() (*x509.CertPool, error)
}

// Bundle is an immutable trust bundle in PEM.
type Bundle []byte

// Roots implements TrustSource. It returns an error if the bundle contains anything but certificates, or no
// certificate.
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

// Overlaps reports whether two bundles have the key of a CA in common. It returns false if either is invalid.
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

// Verify returns nil if a CA of the bundle issued the identity, regardless of its key usage and expiry. It also
// returns nil if the bundle is invalid. The identity must have a leaf.
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
		Roots: roots, Intermediates: intermediates, CurrentTime: identity.NotAfter(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return fmt.Errorf("verifying own certificate: %w", err)
	}
	return nil
}

// ServerTLS returns the TLS configuration of the control channel's server. Clients without a certificate are accepted,
// because they may be connecting to get one. A client certificate must be issued by the CAs in trust for client
// authentication, else the handshake fails. But it may have expired, by at most grace, so that machines that were
// disconnected for long can renew by their key. A handler that returns anything but a new leaf must therefore call
// VerifyNow.
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
		ClientAuth: tls.RequestClientCert, // verified in VerifyConnection
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return nil
			}
			return verifyClient(state.PeerCertificates, trust, time.Now(), grace)
		},
		SessionTicketsDisabled: true, // a session would outlive a CA that is removed from the bundle
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
		Roots: roots, Intermediates: intermediates, CurrentTime: at,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return fmt.Errorf("verifying client certificate: %w", err)
	}
	return nil
}

// ErrNoPeer means that a client presented no certificate, ErrExpired that its leaf has expired.
var (
	ErrNoPeer  = errors.New("the client presented no certificate")
	ErrExpired = errors.New("the client's certificate has expired")
)

// Peer returns the client's leaf of a connection that ServerTLS verified. The leaf may have expired. The only error is
// ErrNoPeer.
func Peer(state tls.ConnectionState) (*x509.Certificate, error) {
	if len(state.PeerCertificates) == 0 {
		return nil, ErrNoPeer
	}
	return state.PeerCertificates[0], nil
}

// VerifyNow is like Peer, but returns ErrExpired if the leaf has expired.
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
