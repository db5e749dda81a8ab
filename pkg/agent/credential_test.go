package agent

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/agent/status"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestANewCredentialDropsAnIdentityThatIsNotItsOwn starts an agent with an identity of one credential, and with
// another credential.
func TestANewCredentialDropsAnIdentityThatIsNotItsOwn(t *testing.T) {
	c, after, stranger := newControl(t), newControl(t), newControl(t) // after: this installation's next CA
	oldCA, newCA, otherCA := c.ca.CertPEM(), after.ca.CertPEM(), stranger.ca.CertPEM()
	tests := map[string]struct {
		then, now edge.Credential
		readErr   error
		bundle    []byte   // of the store
		signer    *control // of the identity in the store
		keep      bool
	}{
		"the same": {
			then:   edge.Credential{ID: edgeSubject.ID, CA: oldCA},
			now:    edge.Credential{ID: edgeSubject.ID, CA: oldCA},
			bundle: oldCA,
			signer: c,
			keep:   true,
		},
		"one without an id, as before": {
			then:   edge.Credential{CA: oldCA},
			now:    edge.Credential{CA: oldCA},
			bundle: oldCA,
			signer: c,
			keep:   true,
		},
		"another tunnel's": {
			then:   edge.Credential{CA: oldCA},
			now:    edge.Credential{ID: model.NewID(), CA: oldCA},
			bundle: oldCA,
			signer: c,
		},
		"one that can't be read": {
			then:    edge.Credential{CA: oldCA},
			readErr: errors.New("gone"),
			bundle:  oldCA,
			signer:  c,
			keep:    true,
		},
		"another installation's, by its CA": {
			then:   edge.Credential{CA: oldCA},
			now:    edge.Credential{CA: otherCA},
			bundle: oldCA,
			signer: c,
		},
		"one without a CA": {
			then:   edge.Credential{CA: oldCA},
			now:    edge.Credential{},
			bundle: oldCA,
			signer: c,
			keep:   true,
		},
		"one with a broken CA": {
			then:   edge.Credential{CA: oldCA},
			now:    edge.Credential{CA: []byte("x")},
			bundle: oldCA,
			signer: c,
			keep:   true,
		},
		"the same, after a CA rotation": {
			then:   edge.Credential{CA: oldCA},
			now:    edge.Credential{CA: oldCA},
			bundle: newCA,
			signer: after,
			keep:   true,
		},
		"a newer one, after a CA rotation": {
			then:   edge.Credential{CA: oldCA},
			now:    edge.Credential{CA: newCA},
			bundle: newCA,
			signer: after,
			keep:   true,
		},
		"a newer one, in a CA rotation": {
			then:   edge.Credential{CA: oldCA},
			now:    edge.Credential{CA: newCA},
			bundle: slices.Concat(oldCA, newCA),
			signer: c,
			keep:   true,
		},
		"a newer one, before the store's turn": {
			then:   edge.Credential{CA: oldCA},
			now:    edge.Credential{CA: slices.Concat(newCA, oldCA)},
			bundle: oldCA,
			signer: c,
			keep:   true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			credential, readErr := tc.then, error(nil)
			role := c.edgeWith(func() (edge.Credential, error) { return credential, readErr })
			i := testIdentities(t, role)
			if err := i.store.Save(tc.signer.fresh(edgeSubject), tc.bundle); err != nil {
				t.Fatal(err)
			}
			i.RemoveForeign() // with the earlier credential, which it records
			credential, readErr = tc.now, tc.readErr
			for range 2 { // the second start decides like the first one
				i = identitiesIn(t, i.dir, role)
				i.RemoveForeign()
				if _, err := i.store.Identity(); (err == nil) != tc.keep {
					t.Errorf("the store says %v; is it kept: want %v", err, tc.keep)
				}
			}
		})
	}
}

func TestAnIdentityOlderThanTheRecordIsKept(t *testing.T) {
	c := newControl(t)
	ca := newControl(t).ca.CertPEM()
	i := testIdentities(t, c.edgeWith(func() (edge.Credential, error) { return edge.Credential{CA: ca}, nil }))
	c.save(i.store, c.fresh(edgeSubject))
	i.RemoveForeign()
	if _, err := i.store.Identity(); err != nil {
		t.Error(err)
	}
	ca = newControl(t).ca.CertPEM()
	i.RemoveForeign()
	if _, err := i.store.Identity(); !errors.Is(err, certs.ErrNoIdentity) {
		t.Errorf("a CA that is changed after that: got %v", err)
	}
}

func TestEnrollingRecordsTheCA(t *testing.T) {
	for name, written := range map[string]bool{"and the identity is on disk": true, "and the agent crashes": false} {
		t.Run(name, func(t *testing.T) {
			old, c := newControl(t), newControl(t) // of two installations with the same tunnel id
			c.serve()
			credential := edge.Credential{ID: edgeSubject.ID, Token: c.token, CA: old.ca.CertPEM()}
			role := c.edgeWith(func() (edge.Credential, error) { return credential, nil })
			i := testIdentities(t, role)
			old.save(i.store, old.fresh(edgeSubject))
			i.RemoveForeign()
			credential.CA = c.ca.CertPEM()
			identity, bundle, err := i.Renew(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if written {
				if err := i.store.Save(identity, bundle); err != nil {
					t.Fatal(err)
				}
				(&membership{identities: i.Renewer, status: status.New(status.Process)}).written(nil)
			}
			i = identitiesIn(t, i.dir, role)
			if i.RemoveForeign(); bytes.Equal(i.store.Bundle(), old.ca.CertPEM()) {
				t.Error("an identity of another installation is kept")
			}
			if _, err := i.store.Identity(); (err == nil) != written {
				t.Errorf("after the next start the store says %v", err)
			}
			credential.CA = old.ca.CertPEM()
			i = identitiesIn(t, i.dir, role)
			i.RemoveForeign()
			if _, err := i.store.Identity(); (err == nil) == written {
				t.Errorf("with the earlier credential the store says %v", err)
			}
		})
	}
}
