package enrol_test

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/enrol"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
)

const domain model.TunnelDomain = "tunnels.example.com"

var (
	tunnel = model.Key{Namespace: "prod", Name: "c1"}
	id     = model.NewID()
)

// management is the other end: tokens, tunnels and a signer that signs with a real CA.
type management struct {
	t    *testing.T
	ca   *certs.CA
	edge string // a good bootstrap token
	gate string // the gateway token

	mu      sync.Mutex
	life    time.Duration
	begin   time.Duration // of leaves, relative to now
	err     error         // of the signer
	hold    chan struct{} // the signer waits for it
	ended   bool          // the tunnel
	starts  bool          // the server, and so knows no tunnels yet
	trust   []byte
	names   func(enrol.IssueRequest) (string, []string) // what the signer writes
	request enrol.IssueRequest                          // the last one
}

func newManagement(t *testing.T) *management {
	t.Helper()
	ca, err := certs.NewCA("test CA", time.Now().Add(-240*time.Hour), 480*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	m := &management{t: t, ca: ca, life: time.Hour, begin: -time.Minute, trust: ca.CertPEM()}
	m.names = func(r enrol.IssueRequest) (string, []string) { return r.Subject.Node, domain.DNSNames(r.Subject) }
	for _, token := range []*string{&m.edge, &m.gate} {
		if *token, err = enrol.RandomToken(); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func (m *management) EdgeToken(hash string) (enrol.Grant, error) {
	if hash != enrol.HashToken(m.edge) {
		return enrol.Grant{}, enrol.ErrUnknownToken
	}
	return enrol.Grant{Tunnel: tunnel, ID: id}, nil
}

func (m *management) GatewayToken(hash string) error {
	if hash != enrol.HashToken(m.gate) {
		return enrol.ErrUnknownToken
	}
	return nil
}

func (m *management) ReviewGateway(_ context.Context, token, gateway string) error {
	if token != "service account token of "+gateway {
		return enrol.ErrDenied
	}
	return nil
}

func (m *management) Tunnel(asked string) (model.Key, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return tunnel, asked == id && !m.ended && !m.starts
}

func (m *management) Published() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.starts
}

func (m *management) Issue(ctx context.Context, r enrol.IssueRequest) ([]byte, error) {
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

// set changes the other end while it serves.
func (m *management) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

// identity is a leaf of this CA with any names.
func (m *management) identity(name string, dnsNames ...string) certs.Identity {
	m.t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		m.t.Fatal(err)
	}
	chain, err := m.ca.Issue(key.Public(), certs.Leaf{
		CommonName: name, DNSNames: dnsNames, Server: true, Client: true, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
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

// serve runs the service over TLS until the test ends, and returns a client of it.
func (m *management) serve() enrol.Client {
	m.t.Helper()
	service := enrol.NewServer(enrol.Config{
		Domain: domain, Tokens: m, Reviewer: m, Issuer: m, Renewals: m, Log: slog.New(slog.DiscardHandler),
		Trust: func() []byte {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.trust
		},
	})
	control := fixed{m.identity("control", domain.Control())}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(certs.ServerTLS(control, certs.Bundle(m.ca.CertPEM()), 48*time.Hour))))
	enrolv1.RegisterEnrolmentServer(server, service)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		m.t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- server.Serve(listener) }()
	m.t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			m.t.Error(err)
		}
	})
	address, err := model.ParseEndpoint(listener.Addr().String())
	if err != nil {
		m.t.Fatal(err)
	}
	return enrol.Client{Address: address, Domain: domain, Trust: certs.Bundle(m.ca.CertPEM())}
}
