package certs_test

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/certs"
)

// serverName is the name of every server of these tests.
const serverName = "a.example.com"

// root is a self-signed CA as another tool makes it.
func root(t *testing.T, change func(*x509.Certificate)) (*certs.CA, *x509.Certificate, crypto.Signer) {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "brought CA"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}
	change(template)
	cert := signed(t, template, template, key.Public(), key)
	keyPEM, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	ca, err := certs.ParseCA(pemOf(cert), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyPEM}))
	must(t, err)
	return ca, cert, key
}

func signed(
	t *testing.T, template, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer,
) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	return cert
}

func pemOf(all ...*x509.Certificate) (out []byte) {
	for _, cert := range all {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
	}
	return out
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// present returns an identity that a CA has issued, with more certificates after it.
func present(t *testing.T, ca *certs.CA, leaf certs.Leaf, more ...[]byte) certs.Identity {
	t.Helper()
	key := newKey(t)
	leaf.CommonName, leaf.DNSNames = "control", []string{serverName}
	if leaf.NotAfter.IsZero() {
		leaf.NotBefore, leaf.NotAfter = now.Add(-time.Hour), now.Add(time.Hour)
	}
	chain, err := ca.Issue(key.Public(), leaf)
	must(t, err)
	for _, cert := range more {
		chain = append(chain, cert...)
	}
	identity, err := certs.NewIdentity(chain, key)
	must(t, err)
	return identity
}

// dialled returns the error of a client with ClientTLS that connects to a server with an identity.
func dialled(t *testing.T, server certs.Identity, name string, bundle ...byte) error {
	t.Helper()
	roots, err := certs.Bundle(bundle).Roots()
	must(t, err)
	// Not net.Pipe: without a buffer, a client that rejects a certificate and a server that still sends block each other.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		_ = tls.Server(conn, certs.ServerTLS(fixed{server}, certs.Bundle(bundle), 0)).Handshake()
	}()
	conn, err := net.Dial("tcp", listener.Addr().String())
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	return tls.Client(conn, certs.ClientTLS(name, roots)).HandshakeContext(t.Context())
}

// pair is a CA and the one after it, with the cross-certificate.
type pair struct {
	old, next *certs.CA
	cross     *certs.Cross
}

func newPair(t *testing.T, old, next *certs.CA) pair {
	t.Helper()
	cross, err := old.CrossSign(next, now)
	must(t, err)
	return pair{old, next, cross}
}

func pairs(t *testing.T) map[string]pair {
	t.Helper()
	brought, _, _ := root(t, func(*x509.Certificate) {})
	other, _, _ := root(t, func(c *x509.Certificate) { c.Subject.CommonName = "another name" })
	return map[string]pair{
		"both created":                 newPair(t, newCA(t), newCA(t)),
		"both brought":                 newPair(t, brought, other),
		"created after brought":        newPair(t, brought, newCA(t)),
		"brought with the name before": newPair(t, newCA(t), named(t, "test CA")),
		"created, the old one longer":  newPair(t, long(t), newCA(t)),
	}
}

func named(t *testing.T, name string) *certs.CA {
	t.Helper()
	ca, _, _ := root(t, func(c *x509.Certificate) { c.Subject.CommonName = name })
	return ca
}

func long(t *testing.T) *certs.CA {
	t.Helper()
	ca, err := certs.NewCA("test CA", now, 1000*time.Hour)
	must(t, err)
	return ca
}

func TestAClientOfEitherCAAcceptsALeafWithTheCrossCertificate(t *testing.T) {
	for name, p := range pairs(t) {
		t.Run(name, func(t *testing.T) {
			old, next := p.old.CertPEM(), p.next.CertPEM()
			server := present(t, p.next, certs.Leaf{Server: true}, p.cross.CertPEM())
			for trusts, bundle := range map[string][]byte{
				"the old CA": old, "the new CA": next, "both": append(append([]byte{}, old...), next...),
			} {
				if err := dialled(t, server, serverName, bundle...); err != nil {
					t.Errorf("a client that trusts %s: %v", trusts, err)
				}
			}
			if err := dialled(t, present(t, p.next, certs.Leaf{Server: true}), serverName, old...); err == nil {
				t.Error("a client of the old CA accepts a leaf of the new CA without the cross-certificate")
			}
			if end := p.cross.NotAfter(); end.After(p.old.NotAfter()) || end.After(p.next.NotAfter()) {
				t.Errorf("the cross-certificate ends at %s, after one of the CAs", end)
			}
			parsed, err := certs.ParseCross(p.cross.CertPEM(), p.next)
			if err != nil || string(parsed.CertPEM()) != string(p.cross.CertPEM()) {
				t.Errorf("the cross-certificate cannot be read: %v", err)
			}
			if _, err := certs.ParseCross(p.cross.CertPEM(), p.old); err == nil {
				t.Error("the cross-certificate is accepted as one of another CA")
			}
		})
	}
}

func TestACrossCertificateGivesNoIdentity(t *testing.T) {
	for name, p := range pairs(t) {
		t.Run(name, func(t *testing.T) {
			stranger := named(t, "stranger")
			forged := newPair(t, stranger, p.next)
			client := certs.Leaf{Client: true}
			// Clients that trust the old CA only.
			for attack, server := range map[string]certs.Identity{
				"a leaf of a CA for which a stranger vouches": present(t, p.next, certs.Leaf{Server: true}, forged.cross.CertPEM()),
				"a leaf of a stranger":                        present(t, stranger, certs.Leaf{Server: true}, p.cross.CertPEM()),
				"a leaf for clients":                          present(t, p.next, client, p.cross.CertPEM()),
				"a leaf that has expired": present(t, p.next, certs.Leaf{
					Server: true, NotBefore: now.Add(-2 * time.Hour), NotAfter: now.Add(-time.Hour),
				}, p.cross.CertPEM()),
			} {
				if err := dialled(t, server, serverName, p.old.CertPEM()...); err == nil {
					t.Errorf("a client accepts %s", attack)
				}
			}
			if err := dialled(t, present(t, p.next, certs.Leaf{Server: true}, p.cross.CertPEM()), "b.example.com",
				p.old.CertPEM()...); err == nil {
				t.Error("a client accepts another name")
			}
			// The holder of the old key, after the overlap.
			if err := dialled(t, present(t, p.old, certs.Leaf{Server: true}, p.cross.CertPEM()), serverName,
				p.next.CertPEM()...); err == nil {
				t.Error("a client of the new CA accepts a server of the old one")
			}
			for attack, identity := range map[string]certs.Identity{
				"of the old CA, with the cross-certificate": present(t, p.old, client, p.cross.CertPEM()),
				"of the old CA, with its root":              present(t, p.old, client, p.cross.CertPEM(), p.old.CertPEM()),
			} {
				server := fixed{present(t, p.next, certs.Leaf{Server: true})}
				config := certs.ServerTLS(server, certs.Bundle(p.next.CertPEM()), time.Hour)
				if _, err := handshake(t, config, &identity); err == nil {
					t.Errorf("a server of the new CA accepts a client %s", attack)
				}
			}
			// A server that trusts the old CA only: the cross-certificate is for servers.
			through := present(t, p.next, client, p.cross.CertPEM())
			server := fixed{present(t, p.old, certs.Leaf{Server: true})}
			config := certs.ServerTLS(server, certs.Bundle(p.old.CertPEM()), time.Hour)
			if _, err := handshake(t, config, &through); err == nil {
				t.Error("a server accepts a client by the cross-certificate")
			}
			if err := dialled(t, present(t, p.old, certs.Leaf{Server: true}, p.cross.CertPEM(), p.old.CertPEM()),
				serverName, p.next.CertPEM()...); err == nil {
				t.Error("the cross-certificate works backwards")
			}
		})
	}
}

// TestACrossCertificateVouchesForNoOtherCA lets the holder of the new CA's key make a CA below it, and one with its
// name.
func TestACrossCertificateVouchesForNoOtherCA(t *testing.T) {
	for name, old := range map[string]*certs.CA{
		"a CA that signs only leaves": newCA(t), "another CA": named(t, "old CA"),
	} {
		t.Run(name, func(t *testing.T) {
			next, cert, key := root(t, func(c *x509.Certificate) { c.Subject.CommonName = "test CA" })
			cross := newPair(t, old, next).cross
			for attack, subject := range map[string]string{"below it": "below", "with its name": "test CA"} {
				sub, subCert, _ := root(t, func(c *x509.Certificate) { c.Subject.CommonName = subject })
				below := signed(t, &x509.Certificate{
					SerialNumber: big.NewInt(1), Subject: subCert.Subject, NotBefore: cert.NotBefore, NotAfter: cert.NotAfter,
					KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true, AuthorityKeyId: cert.SubjectKeyId,
				}, cert, subCert.PublicKey, key)
				server := present(t, sub, certs.Leaf{Server: true}, pemOf(below), cross.CertPEM())
				if err := dialled(t, server, serverName, old.CertPEM()...); err == nil {
					t.Errorf("a client accepts a leaf of a CA %s", attack)
				}
			}
		})
	}
}

func TestACAThatMustNotVouchMakesNoCrossCertificate(t *testing.T) {
	leavesOnly := func(c *x509.Certificate) { c.MaxPathLenZero = true }
	strict, _, _ := root(t, leavesOnly)
	constrained, _, _ := root(t, func(c *x509.Certificate) {
		leavesOnly(c)
		c.Subject.CommonName, c.PermittedDNSDomains = "test CA", []string{"example.com"}
	})
	expired, err := certs.NewCA("test CA", now.Add(-2*time.Hour), time.Hour)
	must(t, err)
	for name, tc := range map[string]struct {
		old     *certs.CA
		wantErr string
	}{
		"it has no key":  {newCA(t).WithoutKey(), certs.ErrCAKey.Error()},
		"it has expired": {expired, "expired"},
		"it signs only leaves, and has another name": {strict, "only leaves"},
		"it signs only leaves of some names":         {constrained, "only leaves"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tc.old.CrossSign(newCA(t), now)
			checkError(t, err, tc.wantErr)
			if err == nil {
				t.Error("it makes one")
			}
		})
	}
}
