package certs_test

import (
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/certs"
)

// fixed is a Source that never changes.
type fixed struct{ identity certs.Identity }

func (f fixed) Identity() (certs.Identity, error) { return f.identity, nil }

func TestServerTLS(t *testing.T) {
	ca, err := certs.NewCA("test CA", now.Add(-48*time.Hour), 96*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	server := newIdentity(t, ca, now.Add(-time.Hour), 2*time.Hour)
	expired := newIdentity(t, ca, now.Add(-3*time.Hour), time.Hour)
	tests := map[string]struct {
		client  *certs.Identity
		grace   time.Duration
		wantErr string // of the server's side of the handshake
		want    error  // of VerifyNow
	}{
		"a client without certificate is let in": {want: certs.ErrNoPeer},
		"a client of the same CA":                {client: &server},
		"a client of another CA":                 {client: foreign(t), wantErr: "unknown authority"},
		"an expired leaf within the grace time": {
			client: &expired,
			grace:  24 * time.Hour,
			want:   certs.ErrExpired,
		},
		"an expired leaf after the grace time":         {client: &expired, grace: time.Hour, wantErr: "expired"},
		"an expired leaf where there is no grace time": {client: &expired, wantErr: "expired"},
		"a leaf that is for servers only":              {client: serverOnly(t, ca), wantErr: "incompatible key usage"},
		"an expired leaf of another CA, within a grace time": {
			client:  foreign(t),
			grace:   24 * time.Hour,
			wantErr: "unknown authority",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			state, err := handshake(t, certs.ServerTLS(fixed{server}, certs.Bundle(ca.CertPEM()), tc.grace), tc.client)
			checkError(t, err, tc.wantErr)
			if err != nil {
				return
			}
			if _, err := certs.VerifyNow(state, time.Now()); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

func foreign(t *testing.T) *certs.Identity {
	t.Helper()
	identity := newIdentity(t, newCA(t), now, time.Hour)
	return &identity
}

func serverOnly(t *testing.T, ca *certs.CA) *certs.Identity {
	t.Helper()
	key := newKey(t)
	chain, err := ca.Issue(key.Public(), certs.Leaf{
		CommonName: "control", DNSNames: []string{"a.example.com"}, Server: true, NotBefore: now.Add(-time.Hour),
		NotAfter: now.Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	identity, err := certs.NewIdentity(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	return &identity
}

// handshake returns the server's view of its client.
func handshake(t *testing.T, config *tls.Config, client *certs.Identity) (tls.ConnectionState, error) {
	t.Helper()
	near, far := net.Pipe()
	defer near.Close()
	deadline := time.Now().Add(10 * time.Second)
	if err := errors.Join(near.SetDeadline(deadline), far.SetDeadline(deadline)); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer far.Close()
		settings := &tls.Config{InsecureSkipVerify: true} // the test checks the server's side
		if client != nil {
			settings.Certificates = []tls.Certificate{client.TLSCertificate()}
		}
		conn := tls.Client(far, settings)
		_ = conn.Handshake()
		_, _ = conn.Read(make([]byte, 1)) // a server's rejection arrives after the client's handshake
	}()
	conn := tls.Server(near, config)
	err := conn.HandshakeContext(t.Context())
	return conn.ConnectionState(), err
}

func TestBundle(t *testing.T) {
	ca := newCA(t)
	tests := map[string]struct {
		in      string
		wantErr string
	}{
		"one CA":             {in: string(ca.CertPEM())},
		"two CAs":            {in: string(ca.CertPEM()) + "\n" + string(newCA(t).CertPEM())},
		"nothing":            {wantErr: "no certificate"},
		"something else":     {in: "x", wantErr: "not PEM"},
		"a CA and a remnant": {in: string(ca.CertPEM()) + "-----BEGIN", wantErr: "not PEM"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := certs.Bundle(tc.in).Roots()
			checkError(t, err, tc.wantErr)
		})
	}
}

func TestOverlaps(t *testing.T) {
	a, b := newCA(t).CertPEM(), newCA(t).CertPEM()
	for name, tc := range map[string]struct {
		one, other []byte
		want       bool
	}{
		"the same":           {one: a, other: a, want: true},
		"one more":           {one: a, other: slices.Concat(b, a), want: true},
		"others":             {one: a, other: b},
		"none":               {one: a},
		"one that is broken": {one: []byte("x"), other: []byte("x")},
	} {
		if got := certs.Bundle(tc.one).Overlaps(tc.other); got != tc.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
