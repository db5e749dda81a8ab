package ca

import (
	"crypto/x509"
	"errors"
	"testing"
	"time"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestTheControllersOwnLeaf(t *testing.T) {
	w := newWorld(t, controllertest.APIServer(t))
	w.config.Now = func() time.Time { return w.clock }
	trust := PublishedTrust{w.m, w.config.Namespace}
	s := &SelfIssued{Config: w.config, Live: w.m, Trust: trust}
	if _, err := s.Identity(); !errors.Is(err, errNoCA) {
		t.Errorf("before there is a CA: %v", err)
	}
	w.reconcile()
	first, err := s.Identity()
	if err != nil {
		t.Fatal(err)
	}
	got, err := w.config.Domain.ParseSubject(first.Leaf().Subject.CommonName, first.Leaf().DNSNames)
	if err != nil || got != model.ControllerSubject() {
		t.Errorf("subject %+v, %v", got, err)
	}
	if again, err := s.Identity(); err != nil || again.Serial() != first.Serial() {
		t.Errorf("a fresh leaf is replaced: %v", err)
	}
	w.clock = w.clock.Add(w.config.LeafLifetime * 3 / 4)
	second, err := s.Identity()
	if err != nil || second.Serial() == first.Serial() {
		t.Errorf("a leaf that is due is kept: %v", err)
	}
	roots, err := trust.Roots()
	if err != nil {
		t.Fatal(err)
	}
	if own, err := certs.Bundle(w.state().bundle()).Roots(); err != nil || !roots.Equal(own) {
		t.Errorf("it trusts others than the published CAs: %v", err)
	}
}

// TestTheControllersOwnLeafFollowsALostState: no server accepts the old leaf any longer, long before its renewal is
// due.
func TestTheControllersOwnLeafFollowsALostState(t *testing.T) {
	w := newWorld(t, controllertest.APIServer(t))
	w.config.Now = func() time.Time { return w.clock }
	w.reconcile()
	trust := PublishedTrust{w.m, w.config.Namespace}
	s := &SelfIssued{Config: w.config, Live: w.m, Trust: trust}
	first, err := s.Identity()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{v1alpha1.CAStateSecretName, v1alpha1.CASecretName} {
		if err := w.m.Delete(t.Context(), w.secret(name)); err != nil {
			t.Fatal(err)
		}
	}
	w.reconcile()
	second, err := s.Identity()
	if err != nil || second.Serial() == first.Serial() {
		t.Fatalf("the leaf of a CA that is no more is kept: %v", err)
	}
	roots, err := trust.Roots()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := second.Leaf().Verify(x509.VerifyOptions{
		Roots: roots, CurrentTime: w.clock, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		t.Error(err)
	}
	if again, err := s.Identity(); err != nil || again.Serial() != second.Serial() {
		t.Errorf("a leaf that is good is replaced: %v", err)
	}
}
