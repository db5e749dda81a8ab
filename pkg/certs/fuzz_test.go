package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"slices"
	"testing"
	"time"
)

// requestOf returns a signing request as a seed.
func requestOf(f *testing.F, template *x509.CertificateRequest, key any) []byte {
	f.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		f.Fatal(err)
	}
	return der
}

// FuzzCSR parses signing requests. From an accepted request only the key is used, and the key has the one permitted
// form. The leaf has the names that its signer chose, whatever the request contains.
func FuzzCSR(f *testing.F) {
	key, err := NewKey()
	if err != nil {
		f.Fatal(err)
	}
	other, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		f.Fatal(err)
	}
	greedy := &x509.CertificateRequest{
		Subject: pkix.Name{
			CommonName:   "control",
			Organization: []string{"system:masters"},
		}, DNSNames: []string{"control.tunnels.example.com"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, EmailAddresses: []string{"a@b.c"},
		ExtraExtensions: []pkix.Extension{{Id: []int{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 3, 1, 1, 0xff}}},
	}
	for _, der := range [][]byte{
		nil, requestOf(f, &x509.CertificateRequest{}, key), requestOf(f, greedy, key), requestOf(f,
			&x509.CertificateRequest{}, other),
		requestOf(f, &x509.CertificateRequest{}, weak), make([]byte, MaxCSR+1),
	} {
		f.Add(der)
	}
	ca, err := NewCA("test", time.Now().Add(-time.Hour), 2*time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, der []byte) {
		public, err := ParseCSR(der)
		if err != nil {
			return
		}
		if k, ok := public.(*ecdsa.PublicKey); !ok || k.Curve != elliptic.P256() {
			t.Fatalf("a key of another form was taken: %T", public)
		}
		names := []string{"a.tunnels.example.com"}
		chain, err := ca.Issue(
			public,
			Leaf{
				CommonName: "edge-1",
				DNSNames:   names,
				Client:     true,
				NotBefore:  time.Now(),
				NotAfter:   time.Now().Add(time.Minute),
			},
		)
		if err != nil {
			t.Fatal(err)
		}
		all, err := parseCertificates(chain)
		if err != nil {
			t.Fatal(err)
		}
		leaf := all[0]
		if leaf.Subject.String() != "CN=edge-1" || !slices.Equal(leaf.DNSNames, names) || leaf.IsCA ||
			leaf.IPAddresses != nil || leaf.EmailAddresses != nil ||
			leaf.URIs != nil ||
			len(leaf.ExtKeyUsage) != 1 ||
			leaf.KeyUsage != x509.KeyUsageDigitalSignature {
			t.Errorf("the leaf says %+v", leaf)
		}
	})
}

// FuzzIdentity parses files with a leaf and a key: an accepted pair matches, and is written as it was read.
func FuzzIdentity(f *testing.F) {
	key, err := NewKey()
	if err != nil {
		f.Fatal(err)
	}
	ca, err := NewCA("test", time.Now().Add(-time.Hour), 2*time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	chain, err := ca.Issue(
		key.Public(),
		Leaf{
			CommonName: "edge-1",
			DNSNames:   []string{"a.b"},
			Client:     true,
			NotBefore:  time.Now(),
			NotAfter:   time.Now().Add(time.Minute),
		},
	)
	if err != nil {
		f.Fatal(err)
	}
	pem, err := encodeKey(key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(chain, pem)
	f.Add(slices.Concat(chain, chain), pem)
	f.Add(
		[]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"),
		[]byte("-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n"),
	)
	f.Fuzz(func(t *testing.T, chain, pem []byte) {
		i, err := ParseIdentity(chain, pem)
		if err != nil {
			return
		}
		again, err := i.KeyPEM()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseIdentity(i.ChainPEM(), again); err != nil {
			t.Errorf("written and read again: %v", err)
		}
	})
}
