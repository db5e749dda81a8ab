package ca

import (
	"crypto/x509"
	"encoding/pem"
	"testing"
	"time"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/model"
)

// chain returns the certificates that a peer of a role gets now.
func (w *world) chain(role model.Role) []*x509.Certificate {
	w.t.Helper()
	ca, err := Load(w.t.Context(), w.config, w.m, role, w.clock)
	if err != nil {
		w.t.Fatal(err)
	}
	key, err := certs.NewKey()
	if err != nil {
		w.t.Fatal(err)
	}
	rest, err := ca.Issue(key.Public(), certs.Leaf{
		CommonName: "control", DNSNames: []string{w.config.Domain.Control()}, Server: true,
		NotBefore: w.clock.Add(-certs.ClockSkew), NotAfter: w.clock.Add(w.config.LeafLifetime),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	var chain []*x509.Certificate
	for block, rest := pem.Decode(rest); block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			w.t.Fatal(err)
		}
		chain = append(chain, cert)
	}
	return chain
}

// vouchedBy fails the test unless a CA, and no other one, vouches for what the xds-servers present. No role but theirs
// may have a cross-certificate.
func (w *world) vouchedBy(old *Issuer) {
	w.t.Helper()
	for _, role := range []model.Role{model.RoleEdge, model.RoleEgress, model.RoleGateway, model.RoleController} {
		if n := len(w.chain(role)); n != 1 {
			w.t.Errorf("in %s, %d certificates are issued for %s", w.state().phase, n, role)
		}
	}
	chain, info := w.chain(model.RoleControl), v1alpha1.CAInfo{}
	for _, ca := range w.rotation().CAs {
		if ca.CrossSignedUntil != nil {
			info = ca
		}
	}
	if old == nil {
		if len(chain) != 1 || info.CrossSignedBy != "" {
			w.t.Errorf("in %s, the xds-servers present %d certificates, and the status is %+v", w.state().phase, len(chain),
				info)
		}
		return
	}
	roots, err := certs.ParseCAs(old.CertPEM())
	if err != nil {
		w.t.Fatal(err)
	}
	if len(chain) != 2 || !roots[0].Issued(chain[1]) || chain[0].CheckSignatureFrom(chain[1]) != nil {
		w.t.Errorf("in %s, the CA %s does not vouch for the leaf of the xds-servers", w.state().phase, old.Serial())
	}
	if info.Serial != w.state().signing.Serial() || info.CrossSignedBy != old.Serial() ||
		info.CrossSignedUntil.After(old.NotAfter()) {
		w.t.Errorf("in %s, the status is %+v", w.state().phase, info)
	}
}

func TestThePreviousCAVouchesForTheXDSServers(t *testing.T) {
	w := newWorld(t, controllertest.APIServer(t))
	w.reconcile()
	w.vouchedBy(nil)
	first := w.state().signing
	w.ask()
	w.reconcile()
	w.vouchedBy(nil) // in introduce, the first CA signs
	w.clock = w.clock.Add(w.config.Timing().Introduce())
	w.reconcile()
	if n := len(w.chain(model.RoleControl)); n != 1 { // of the first CA itself
		t.Errorf("in move, the xds-servers present %d certificates", n)
	}
	w.clock = w.clock.Add(w.config.Timing().Move())
	w.reconcile()
	w.vouchedBy(first)
	w.restart()
	w.clock = w.clock.Add(w.config.Timing().Retire())
	w.reconcile()
	w.vouchedBy(first)
	second := w.state().signing
	w.rotate()
	w.vouchedBy(second) // and the first one no longer
	w.config.NoCrossSign = true
	w.restart()
	w.reconcile()
	w.vouchedBy(nil)
}

func TestAStolenCAVouchesForNone(t *testing.T) {
	w := newWorld(t, controllertest.APIServer(t))
	w.config.NoCrossSign = true
	w.restart()
	w.rotate()
	w.vouchedBy(nil)
	w.config.NoCrossSign = false
	w.restart()
	w.reconcile()
	w.vouchedBy(nil) // its key is gone
}

func TestACAVouchesForNoneAfterItsEnd(t *testing.T) {
	w := newWorld(t, controllertest.APIServer(t))
	w.config.CALifetime = 40 * 24 * time.Hour
	w.restart()
	w.reconcile()
	first := w.state().signing
	w.config.CALifetime = 400 * 24 * time.Hour
	w.restart()
	w.rotate()
	w.vouchedBy(first)
	w.clock = first.NotAfter()
	w.reconcile()
	w.vouchedBy(nil)
}

// TestARotationToABroughtCA has no cross-certificate between names if the first CA signs only leaves, as those that the
// controller creates. That must not stop the rotation.
func TestARotationToABroughtCA(t *testing.T) {
	for name, vouched := range map[string]bool{"Fairlead " + string(controllertest.Config().Domain): true, "Mine": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, controllertest.APIServer(t))
			w.reconcile()
			first := w.state().signing
			mine := w.bringNew(name)
			for range 4 {
				w.reconcile()
				w.checkOut()
				w.clock = w.clock.Add(w.config.Timing().Move() + w.config.Timing().Introduce())
			}
			if state := w.state(); state.phase != v1alpha1.CAPhaseSteady || !state.signing.Equal(mine) {
				t.Fatalf("the rotation is in %s", state.phase)
			}
			if !vouched {
				first = nil
			}
			w.vouchedBy(first)
		})
	}
}
