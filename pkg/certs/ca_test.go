package certs_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/certs"
)

func TestACAWithoutKeyIsOnlyTrusted(t *testing.T) {
	ca, other := newCA(t), newCA(t)
	read, err := certs.ParseCAs(slices.Concat(ca.CertPEM(), other.CertPEM()))
	if err != nil || len(read) != 2 || !read[0].Equal(ca) || read[0].Equal(other) {
		t.Fatalf("%d CAs, %v", len(read), err)
	}
	key := newKey(t)
	leaf := certs.Leaf{
		CommonName: "a",
		DNSNames:   []string{"a.example.com"},
		Client:     true,
		NotBefore:  now,
		NotAfter:   now.Add(time.Hour),
	}
	for _, keyless := range []*certs.CA{read[0], ca.WithoutKey()} {
		if _, err := keyless.Issue(key.Public(), leaf); !errors.Is(err, certs.ErrCAKey) || keyless.CanSign() {
			t.Errorf("issuing: %v", err)
		}
		if _, err := keyless.KeyPEM(); !errors.Is(err, certs.ErrCAKey) {
			t.Errorf("the key: %v", err)
		}
	}
	if !ca.CanSign() || ca.Serial() == other.Serial() || ca.Subject() != "CN=test CA" || !ca.Begin().Equal(now) {
		t.Errorf("serial %s, subject %s, begin %s", ca.Serial(), ca.Subject(), ca.Begin())
	}
	var none *certs.CA
	if none.Equal(ca) || ca.Equal(none) || !none.Equal(nil) {
		t.Error("no CA is equal to one")
	}
}

func TestCheckTriesTheCA(t *testing.T) {
	ca := newCA(t)
	leaf := certs.Leaf{
		CommonName: "a",
		DNSNames:   []string{"a.example.com"},
		Client:     true,
		Server:     true,
		NotBefore:  now.Add(-time.Hour),
		NotAfter:   now.Add(time.Hour),
	}
	if err := ca.Check(leaf, now); err != nil {
		t.Error(err)
	}
	checkError(t, ca.Check(leaf, now.Add(25*time.Hour)), "expired")
	leaf.DNSNames = nil
	checkError(t, ca.Check(leaf, now), "DNS name")
}
