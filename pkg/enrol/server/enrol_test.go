package server_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/enrol"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
	enrolserver "github.com/fairlead/fairlead/pkg/enrol/server"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestAnEdgeEnrolsByItsTokenAndRenewsByItsKey(t *testing.T) {
	m := newManagement(t)
	client := m.serve()
	first, bundle, err := client.EnrolEdge(t.Context(), m.edge, "host-1")
	if err != nil {
		t.Fatal(err)
	}
	subject := subjectOf(t, first)
	if subject.Role != model.RoleEdge || subject.ID != id || string(bundle) != string(m.ca.CertPEM()) {
		t.Errorf("got %+v", subject)
	}
	if m.request.Host != "host-1" || m.request.TokenHash != enrol.HashToken(m.edge) || m.request.Tunnel != tunnel {
		t.Errorf("the signer was asked for %+v", m.request)
	}
	second, _, err := client.Renew(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	if subjectOf(t, second) != subject || second.Serial() == first.Serial() {
		t.Errorf("renewed %+v to %+v", subject, subjectOf(t, second))
	}
	if m.request.TokenHash != "" || m.request.Tunnel != tunnel {
		t.Errorf("to renew, the signer was asked for %+v", m.request)
	}
	other, _, err := client.EnrolEdge(t.Context(), m.edge, "")
	if err != nil {
		t.Fatal(err)
	}
	if subjectOf(t, other).Node == subject.Node {
		t.Error("two edges have one node name")
	}
}

// TestTheTunnelOfATokenDecidesTheRole: the client sends the same request for both roles.
func TestTheTunnelOfATokenDecidesTheRole(t *testing.T) {
	m := newManagement(t)
	client := m.serve()
	for token, want := range map[string]model.Subject{
		m.edge:   {Role: model.RoleEdge, ID: id},
		m.egress: {Role: model.RoleEgress, ID: egressID},
	} {
		first, _, err := client.EnrolEdge(t.Context(), token, "host-1")
		if err != nil {
			t.Fatal(err)
		}
		got := subjectOf(t, first)
		if want.Node = got.Node; got != want {
			t.Errorf("enrolled as %+v, want %+v", got, want)
		}
		second, _, err := client.Renew(t.Context(), first)
		if err != nil {
			t.Fatal(err)
		}
		if got := subjectOf(t, second); got != want || m.request.Subject != want {
			t.Errorf("renewed as %+v by a request for %+v, want %+v", got, m.request.Subject, want)
		}
	}
	if m.request.Tunnel != tunnel && m.request.Tunnel != egressTunnel {
		t.Errorf("the signer was asked for %s", m.request.Tunnel)
	}
}

// TestARepeatedRequestIsTheSameEdge: the answer was lost, and the signer must recognise that it has counted this edge.
func TestARepeatedRequestIsTheSameEdge(t *testing.T) {
	m := newManagement(t)
	client := m.serve()
	client.Asking = &enrolclient.Asking{}
	ask := func() (string, error) {
		_, _, err := client.EnrolEdge(t.Context(), m.edge, "host-1")
		return m.request.Subject.Node, err
	}
	m.set(func() { m.err = errors.New("the answer is late") })
	first, err := ask()
	if err == nil || first == "" {
		t.Fatalf("the first try is %q, %v", first, err)
	}
	if second, err := ask(); err == nil || second != first {
		t.Errorf("the second try is %q, %v, and the first was %q", second, err, first)
	}
	m.set(func() { m.err = nil })
	if third, err := ask(); err != nil || third != first {
		t.Errorf("the third try is %q, %v, and the first was %q", third, err, first)
	}
	if next, err := ask(); err != nil || next == first {
		t.Errorf("after an answer another enrolment is the same edge %q, %v", next, err)
	}
}

func TestAGatewayEnrolsByEitherCredential(t *testing.T) {
	m := newManagement(t)
	client := m.serve()
	for name, credential := range map[string]enrolclient.GatewayCredential{
		"gateway token":        {Token: m.gate},
		"ServiceAccount token": {ServiceAccountToken: "service.account.token-of-gateway-3"},
	} {
		t.Run(name, func(t *testing.T) {
			identity, _, err := client.EnrolGateway(t.Context(), "gateway-3", credential)
			if err != nil {
				t.Fatal(err)
			}
			want := model.Subject{Role: model.RoleGateway, Node: "gateway-3"}
			if got := subjectOf(t, identity); got != want {
				t.Errorf("got %+v", got)
			}
			renewed, _, err := client.Renew(t.Context(), identity)
			if err != nil {
				t.Fatal(err)
			}
			if got := subjectOf(t, renewed); got != want {
				t.Errorf("renewed to %+v", got)
			}
		})
	}
}

func TestAnExpiredLeafIsRenewedByItsKeyForSomeTime(t *testing.T) {
	m := newManagement(t)
	client := m.serve()
	expired := m.aged(-3*time.Hour, time.Hour)
	if err := renew(t, client, expired); err != nil {
		t.Error(err)
	}
}

func TestTheClientRejectsACertificateThatEnvoyCannotUse(t *testing.T) {
	m := newManagement(t)
	client := m.serve()
	otherInstallation := newManagement(t)
	tests := map[string]struct {
		change  func()
		wantErr string
	}{
		"an expired one": {change: func() { m.begin = -2 * time.Hour }, wantErr: "verifying the new certificate"},
		"one of another CA": {
			change:  func() { m.trust = otherInstallation.ca.CertPEM() },
			wantErr: "verifying the new certificate",
		},
		"a broken trust bundle": {change: func() { m.trust = []byte("x") }, wantErr: "trust bundle"},
		"one with no known names": {change: func() {
			m.names = func(enrolserver.IssueRequest) (string, []string) { return "a", []string{"a.example.com"} }
		}, wantErr: "no profile"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			begin, trust, names := m.begin, m.trust, m.names
			m.set(tc.change)
			defer m.set(func() { m.begin, m.trust, m.names = begin, trust, names })
			if err := enrolEdge(t, client, m.edge); err == nil || !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("got %v, want an error with %q", err, tc.wantErr)
			}
		})
	}
}

func TestTheClientSendsItsTokenToNoOtherServer(t *testing.T) {
	m, otherInstallation := newManagement(t), newManagement(t)
	client := otherInstallation.serve() // a real server, with another CA
	client.Trust = certs.Bundle(m.ca.CertPEM())
	err := enrolEdge(t, client, m.edge)
	if err == nil || !strings.Contains(err.Error(), "unknown authority") || errors.Is(err, certs.ErrRefused) {
		t.Errorf("got %v", err)
	}
}

func TestAnInvalidHostNameIsOmitted(t *testing.T) {
	m := newManagement(t)
	client := m.serve()
	if _, _, err := client.EnrolEdge(t.Context(), m.edge, "a\nb"); err != nil {
		t.Fatal(err)
	}
	if m.request.Host != "" {
		t.Errorf("the signer was told %q", m.request.Host)
	}
}

func subjectOf(t *testing.T, identity certs.Identity) model.Subject {
	t.Helper()
	subject, err := domain.ParseSubject(identity.Leaf().Subject.CommonName, identity.Leaf().DNSNames)
	if err != nil {
		t.Fatal(err)
	}
	return subject
}

func enrolEdge(t *testing.T, client enrolclient.Client, token string) error {
	t.Helper()
	_, _, err := client.EnrolEdge(t.Context(), token, "host-1")
	return err
}

func enrolGateway(
	t *testing.T, client enrolclient.Client, name string, credential enrolclient.GatewayCredential,
) error {
	t.Helper()
	_, _, err := client.EnrolGateway(t.Context(), name, credential)
	return err
}

func renew(t *testing.T, client enrolclient.Client, identity certs.Identity) error {
	t.Helper()
	_, _, err := client.Renew(t.Context(), identity)
	return err
}

var _ interface {
	enrolserver.Tokens
	enrolserver.Reviewer
	enrolserver.Issuer
	enrolserver.Renewals
} = (*management)(nil)
