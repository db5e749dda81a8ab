package certs_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead/fairlead/pkg/certs"
)

func TestAnIdentityOfAnUntrustedCAIsRenewedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		trusted := certs.Bundle(i.ca.CertPEM())
		i.check = func(identity certs.Identity) error {
			i.mu.Lock()
			defer i.mu.Unlock()
			return trusted.Verify(identity)
		}
		i.start()
		i.expect("at the start", i.pass(time.Second), 1, 1)
		i.expect("while it is good", i.pass(time.Hour), 0, 0)
		next, err := certs.NewCA("test CA", time.Now(), 10000*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		i.mu.Lock()
		trusted, i.ca = next.CertPEM(), next
		i.mu.Unlock()
		i.expect("when the CA was replaced", i.pass(2*time.Second), 1, 1)
		i.expect("once that is done", i.pass(time.Hour), 0, 0)
	})
}

func TestAnIdentityThatIsAlwaysInvalidIsRenewedWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		needsRenewal := errors.New("of no CA")
		i.check = func(certs.Identity) error {
			i.mu.Lock()
			defer i.mu.Unlock()
			return needsRenewal
		}
		i.start()
		i.expect("in 10 min", i.pass(10*time.Minute), 10, 30)
		i.expect("in 10 min more", i.pass(10*time.Minute), 10, 21)
		if n := strings.Count(i.log.String(), "of no CA"); n != 1 {
			t.Errorf("the reason was logged %d times:\n%s", n, i.log.String())
		}
		i.mu.Lock()
		needsRenewal = nil
		i.mu.Unlock()
		i.pass(time.Minute)
		i.expect("when it is good", i.pass(time.Hour), 0, 0)
	})
}

func TestABundleVerifiesIdentitiesOfItsCAs(t *testing.T) {
	ca, err := certs.NewCA("test CA", now.Add(-48*time.Hour), 96*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	other, err := certs.NewCA("test CA", now.Add(-48*time.Hour), 96*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	both := append(append(certs.Bundle{}, other.CertPEM()...), ca.CertPEM()...)
	tests := map[string]struct {
		bundle certs.Bundle
		is     certs.Identity
		ok     bool
	}{
		"one of its CA": {
			bundle: ca.CertPEM(),
			is:     newIdentity(t, ca, now.Add(-time.Hour), 2*time.Hour),
			ok:     true,
		},
		"one of one of its CAs": {
			bundle: both,
			is:     newIdentity(t, ca, now.Add(-time.Hour), 2*time.Hour),
			ok:     true,
		},
		"one that has expired": {
			bundle: ca.CertPEM(),
			is:     newIdentity(t, ca, now.Add(-3*time.Hour), time.Hour),
			ok:     true,
		},
		"one that has yet to begin": {
			bundle: ca.CertPEM(),
			is:     newIdentity(t, ca, now.Add(3*time.Hour), time.Hour),
			ok:     true,
		},
		"one for servers only": {bundle: ca.CertPEM(), is: *serverOnly(t, ca), ok: true},
		"one of another CA of that name": {
			bundle: other.CertPEM(),
			is:     newIdentity(t, ca, now.Add(-time.Hour), 2*time.Hour),
		},
		"any, while the bundle is missing": {is: newIdentity(t, ca, now.Add(-time.Hour), 2*time.Hour), ok: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if err := tc.bundle.Verify(tc.is); (err == nil) != tc.ok {
				t.Errorf("got %v", err)
			}
		})
	}
}
