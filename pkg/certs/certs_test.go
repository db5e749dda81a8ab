package certs_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/certs"
)

var now = time.Now().Truncate(time.Second)

func newCA(t *testing.T) *certs.CA {
	t.Helper()
	ca, err := certs.NewCA("test CA", now, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// newIdentity issues a leaf for a client and server that is valid from begin for life.
func newIdentity(t *testing.T, ca *certs.CA, begin time.Time, life time.Duration) certs.Identity {
	t.Helper()
	key := newKey(t)
	chain, err := ca.Issue(key.Public(), certs.Leaf{
		CommonName: "edge-a", DNSNames: []string{"a.example.com"}, Server: true, Client: true, NotBefore: begin,
		NotAfter: begin.Add(life),
	})
	if err != nil {
		t.Fatal(err)
	}
	identity, err := certs.NewIdentity(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

func TestALeafContainsTheNamesThatItsSignerRequested(t *testing.T) {
	ca := newCA(t)
	leaf := newIdentity(t, ca, now.Add(-time.Minute), time.Hour).Leaf()
	roots, err := certs.Bundle(ca.CertPEM()).Roots()
	if err != nil {
		t.Fatal(err)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			t.Error(err)
		}
	}
	if leaf.Subject.String() != "CN=edge-a" || !slices.Equal(leaf.DNSNames, []string{"a.example.com"}) {
		t.Errorf("subject %s, names %v", leaf.Subject, leaf.DNSNames)
	}
	if leaf.IsCA || leaf.KeyUsage != x509.KeyUsageDigitalSignature || leaf.SerialNumber.BitLen() < 64 {
		t.Errorf("CA %v, usage %v, serial %v", leaf.IsCA, leaf.KeyUsage, leaf.SerialNumber)
	}
}

func TestIssue(t *testing.T) {
	good := certs.Leaf{
		CommonName: "a",
		DNSNames:   []string{"a.example.com"},
		Client:     true,
		NotBefore:  now,
		NotAfter:   now.Add(time.Hour),
	}
	tests := map[string]struct {
		change  func(*certs.Leaf)
		wantEnd time.Time
		wantErr string
	}{
		"a usual leaf": {change: func(*certs.Leaf) {}, wantEnd: now.Add(time.Hour)},
		"a leaf that would outlive its CA": {
			change:  func(l *certs.Leaf) { l.NotAfter = now.Add(48 * time.Hour) },
			wantEnd: now.Add(24 * time.Hour),
		},
		"a leaf that begins after its CA": {
			change:  func(l *certs.Leaf) { l.NotBefore = now.Add(25 * time.Hour); l.NotAfter = now.Add(26 * time.Hour) },
			wantErr: "CA has expired",
		},
		"a leaf that ends before it begins": {
			change:  func(l *certs.Leaf) { l.NotAfter = now.Add(-time.Hour) },
			wantErr: "before it becomes valid",
		},
		"a leaf with no begin": {
			change:  func(l *certs.Leaf) { l.NotBefore = time.Time{} },
			wantErr: "before it becomes valid",
		},
		"a leaf without common name": {change: func(l *certs.Leaf) { l.CommonName = "" }, wantErr: "common name"},
		"a leaf with too long a common name": {
			change:  func(l *certs.Leaf) { l.CommonName = strings.Repeat("a", 65) },
			wantErr: "common name",
		},
		"a leaf without DNS name":              {change: func(l *certs.Leaf) { l.DNSNames = nil }, wantErr: "DNS name"},
		"a leaf for neither client nor server": {change: func(l *certs.Leaf) { l.Client = false }, wantErr: "neither"},
	}
	ca, key := newCA(t), newKey(t)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			leaf := good
			tc.change(&leaf)
			chain, err := ca.Issue(key.Public(), leaf)
			checkError(t, err, tc.wantErr)
			if err != nil {
				return
			}
			identity, err := certs.NewIdentity(chain, key)
			if err != nil {
				t.Fatal(err)
			}
			if !identity.NotAfter().Equal(tc.wantEnd) {
				t.Errorf("it ends at %v, want %v", identity.NotAfter(), tc.wantEnd)
			}
		})
	}
}

func TestParseCAReadsAWrittenCA(t *testing.T) {
	ca := newCA(t)
	key, err := ca.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	again, err := certs.ParseCA(ca.CertPEM(), key)
	if err != nil {
		t.Fatal(err)
	}
	if string(again.CertPEM()) != string(ca.CertPEM()) || !again.NotAfter().Equal(now.Add(24*time.Hour)) {
		t.Error("another CA came back")
	}
}

func TestParseCARejects(t *testing.T) {
	ca, leaf := newCA(t), newIdentity(t, newCA(t), now, time.Hour)
	caKey, err := ca.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	leafKey, err := leaf.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		cert, key []byte
		wantErr   string
	}{
		"no certificate":            {key: caKey, wantErr: "no certificate"},
		"no key":                    {cert: ca.CertPEM(), wantErr: "not PEM"},
		"a key that is none":        {cert: ca.CertPEM(), key: ca.CertPEM(), wantErr: "not a private key"},
		"another's key":             {cert: ca.CertPEM(), key: leafKey, wantErr: "does not belong to the certificate"},
		"a leaf":                    {cert: leaf.ChainPEM(), key: leafKey, wantErr: "is not a CA"},
		"a key where a CA belongs":  {cert: caKey, key: caKey, wantErr: "instead of a certificate"},
		"text after a certificate":  {cert: append(ca.CertPEM(), "x"...), key: caKey, wantErr: "not PEM"},
		"a CA that another CA made": intermediate(t, ca),
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := certs.ParseCA(tc.cert, tc.key)
			checkError(t, err, tc.wantErr)
		})
	}
}

func intermediate(t *testing.T, parent *certs.CA) (tc struct {
	cert, key []byte
	wantErr   string
},
) {
	t.Helper()
	parentKey, err := parent.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	signer, err := x509.ParsePKCS8PrivateKey(decode(t, parentKey))
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(decode(t, parent.CertPEM()))
	if err != nil {
		t.Fatal(err)
	}
	key := newKey(t)
	template := *cert
	template.Subject.CommonName = "intermediate"
	der, err := x509.CreateCertificate(rand.Reader, &template, cert, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	tc.cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	tc.key = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	tc.wantErr = "not self-signed"
	return tc
}

func TestParseCSR(t *testing.T) {
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	key := newKey(t)
	forged := request(t, key)
	forged[len(forged)-1] ^= 1
	tests := map[string]struct {
		in      []byte
		wantErr string
	}{
		"a certificate of this CA":   {in: request(t, key)},
		"a key on another curve":     {in: request(t, p384), wantErr: "P-256"},
		"an RSA key":                 {in: request(t, rsaKey), wantErr: "P-256"},
		"a signature of another key": {in: forged, wantErr: "reading signing request"},
		"nothing":                    {wantErr: "reading signing request"},
		"more than the limit":        {in: make([]byte, certs.MaxCSR+1), wantErr: "more than 8192"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := certs.ParseCSR(tc.in)
			checkError(t, err, tc.wantErr)
			if err == nil && !key.PublicKey.Equal(got) {
				t.Error("another key came back")
			}
		})
	}
}

func request(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func decode(t *testing.T, data []byte) []byte {
	t.Helper()
	block, _ := pem.Decode(data)
	if block == nil {
		t.Fatal("not PEM")
	}
	return block.Bytes
}

func checkError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Fatalf("unexpected error: %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Fatalf("got error %v, want one with %q", err, want)
	}
}
