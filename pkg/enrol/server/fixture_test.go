package server_test

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/logtest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controlchannel"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/enrol"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
	enrolserver "github.com/fairlead/fairlead/pkg/enrol/server"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
)

const domain model.TunnelDomain = "tunnels.example.com"

var (
	tunnel = model.Key{Namespace: "prod", Name: "c1"}
	id     = model.NewID()

	egressTunnel = model.Key{Namespace: "prod", Name: "c1.egress"}
	egressID     = model.NewID()
)

// management simulates the management cluster: tokens, tunnels and a signer with a real CA.
type management struct {
	t    testing.TB
	ca   *certs.CA
	edge string // a valid bootstrap token
	// egress is a valid bootstrap token of a Tunnel with spec.egressOf.
	egress string
	gate   string // the gateway token
	log    logtest.Journal
	// report is a valid token for boot reports.
	report string

	mu      sync.Mutex
	life    time.Duration
	begin   time.Duration // of leaves, relative to now
	err     error         // of the signer
	hold    chan struct{} // the signer waits for it
	admit   error         // result of Admit
	trust   []byte
	names   func(enrolserver.IssueRequest) (string, []string) // what the signer writes
	request enrolserver.IssueRequest                          // the last one
	reviews int                                               // of ServiceAccount tokens
	// verified counts the ServiceAccount tokens of Pods.
	verified int
	boots    []string // accepted reports
}

func newManagement(t testing.TB) *management {
	t.Helper()
	ca, err := certs.NewCA("test CA", time.Now().Add(-240*time.Hour), 480*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	m := &management{t: t, ca: ca, life: time.Hour, begin: -time.Minute, trust: ca.CertPEM()}
	m.names = func(r enrolserver.IssueRequest) (string, []string) { return r.Subject.Node, domain.DNSNames(r.Subject) }
	for _, token := range []*string{&m.edge, &m.egress, &m.gate} {
		if *token, err = enrol.RandomToken(); err != nil {
			t.Fatal(err)
		}
	}
	if m.report, err = enrol.RandomReportToken(); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *management) EdgeToken(hash, _ string) (enrol.Grant, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch hash {
	case enrol.HashToken(m.edge):
		return enrol.Grant{Tunnel: tunnel, ID: id}, nil
	case enrol.HashToken(m.egress):
		return enrol.Grant{Tunnel: egressTunnel, ID: egressID, Egress: true}, nil
	}
	return enrol.Grant{}, enrol.ErrUnknownToken
}

func (m *management) GatewayToken(hash string) error {
	if hash != enrol.HashToken(m.gate) {
		return enrol.ErrUnknownToken
	}
	return nil
}

func (m *management) ReviewGateway(_ context.Context, token, gateway string) error {
	m.set(func() { m.reviews++ })
	if token != "service.account.token-of-"+gateway {
		return enrolserver.ErrDenied
	}
	return nil
}

func (m *management) Tunnel(wanted string) (model.Key, bool) {
	if wanted == egressID {
		return egressTunnel, true
	}
	return tunnel, wanted == id
}

func (m *management) Admit(subject model.Subject) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.admit == nil && subject.Role == model.RoleEdge && subject.ID != id {
		return status.Error(codes.Unavailable, "no tunnel has this id")
	}
	return m.admit
}

func (m *management) Issue(ctx context.Context, r enrolserver.IssueRequest) ([]byte, error) {
	m.mu.Lock()
	hold := m.hold
	m.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.request = r
	if m.err != nil {
		return nil, m.err
	}
	key, err := certs.ParseCSR(r.CSR)
	if err != nil {
		return nil, err
	}
	name, dnsNames := m.names(r)
	begin := time.Now().Add(m.begin)
	return m.ca.Issue(key, certs.Leaf{
		CommonName: name, DNSNames: dnsNames, Server: true, Client: true, NotBefore: begin, NotAfter: begin.Add(m.life),
	})
}

// set changes management under its lock.
func (m *management) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

// identity returns a leaf of this CA with any names.
func (m *management) identity(name string, dnsNames ...string) certs.Identity {
	m.t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		m.t.Fatal(err)
	}
	chain, err := m.ca.Issue(key.Public(), certs.Leaf{
		CommonName: name, DNSNames: dnsNames, Server: true, Client: true, NotBefore: time.Now().Add(-time.Minute),
		NotAfter: time.Now().Add(time.Hour),
	})
	if err != nil {
		m.t.Fatal(err)
	}
	identity, err := certs.NewIdentity(chain, key)
	if err != nil {
		m.t.Fatal(err)
	}
	return identity
}

// aged returns an edge's leaf that becomes valid at now + begin, for life.
func (m *management) aged(begin, life time.Duration) certs.Identity {
	m.t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		m.t.Fatal(err)
	}
	from := time.Now().Add(begin)
	chain, err := m.ca.Issue(key.Public(), certs.Leaf{
		CommonName: "edge-a", DNSNames: []string{domain.TunnelID(id)}, Server: true, Client: true, NotBefore: from,
		NotAfter: from.Add(life),
	})
	if err != nil {
		m.t.Fatal(err)
	}
	identity, err := certs.NewIdentity(chain, key)
	if err != nil {
		m.t.Fatal(err)
	}
	return identity
}

type fixed struct{ identity certs.Identity }

func (f fixed) Identity() (certs.Identity, error) { return f.identity, nil }

// serve runs the service on a channel over TLS until the test ends, and returns its client.
func (m *management) serve() enrolclient.Client {
	m.t.Helper()
	service := enrolserver.New(enrolserver.Config{
		Domain: domain, Tokens: m, Reviewer: m, Pods: m, Issuer: m, Renewals: m,
		Log: slog.New(slog.NewTextHandler(&m.log, nil)),
		Trust: func() []byte {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.trust
		},
		Boot: &enrolserver.BootConfig{Tokens: m, Boots: m},
	})
	c := controlchannel.New(controlchannel.Config{
		Domain: domain,
		TLS:    certs.ServerTLS(fixed{m.identity("control", domain.Control())}, certs.Bundle(m.ca.CertPEM()), 48*time.Hour),
		Anonymous: []string{
			enrolv1.Enrolment_EnrolEdge_FullMethodName, enrolv1.Enrolment_EnrolGateway_FullMethodName,
			enrolv1.Enrolment_ReportBoot_FullMethodName,
		},
		Expired: []string{enrolv1.Enrolment_Renew_FullMethodName},
		Inside:  []string{enrolv1.Enrolment_EnrolGateway_FullMethodName},
		Log:     slog.New(slog.DiscardHandler),
	})
	enrolv1.RegisterEnrolmentServer(c, service)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- c.Serve(ctx, listener) }()
	m.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			m.t.Error(err)
		}
	})
	address, err := model.ParseEndpoint(listener.Addr().String())
	if err != nil {
		m.t.Fatal(err)
	}
	return enrolclient.Client{
		Dialer: &dial.Dialer{Addresses: []model.Endpoint{address}},
		Domain: domain,
		Trust:  certs.Bundle(m.ca.CertPEM()),
	}
}
