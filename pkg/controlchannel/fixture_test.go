package controlchannel_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controlchannel"
	"github.com/fairlead/fairlead/pkg/enrol"
	enrolserver "github.com/fairlead/fairlead/pkg/enrol/server"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
	reporthub "github.com/fairlead/fairlead/pkg/report/hub"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/pkg/xds"
)

const (
	domain   = model.TunnelDomain("tunnels.example.com")
	patience = 20 * time.Second
	grace    = 48 * time.Hour
)

var (
	inst = model.Installation{
		Domain: domain, Public: model.Endpoint{Host: "gateways.example.com", Port: 443},
		Control:  model.Endpoint{Host: "10.0.0.9", Port: 18000},
		Gateways: []model.Gateway{{Name: "gateway-0"}},
	}
	c1, c2  = workload("c1"), workload("c2")
	edge    = model.Subject{Role: model.RoleEdge, Node: "edge-a", ID: c1.ID}
	gateway = model.Subject{Role: model.RoleGateway, Node: "gateway-0"}
)

func workload(name string) model.WorkloadCluster {
	return model.WorkloadCluster{
		Key: model.Key{Namespace: "prod", Name: name}, ID: name + strings.Repeat("0", 20-len(name)),
		Hostname: name + ".prod.tunnels.example.com", APIServer: model.Endpoint{Host: "10.1.0.1", Port: 6443},
	}
}

// testbed is the whole control channel with all of its services, but without Kubernetes: tokens and a signer are in
// memory.
type testbed struct {
	*controlchannel.Channel
	ca      *certs.CA
	ads     *xds.Server
	address string
	stop    func() error

	mu      sync.Mutex
	tokens  map[string]*token // by hash
	lookups int               // of tokens of edges
	gate    string            // the hash of the gateway token
}

// token is a recorded bootstrap token.
type token struct {
	grant enrol.Grant
	uses  int // remaining
}

func newTestbed(t testing.TB, bounds controlchannel.Bounds) *testbed {
	t.Helper()
	ca, err := certs.NewCA("test", time.Now().Add(-240*time.Hour), 480*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	b := &testbed{ca: ca, ads: xds.NewServer(inst, log), tokens: map[string]*token{}}
	b.ads.Ended(map[string]time.Time{workload("gone").ID: time.Now().Add(time.Hour)})
	b.ads.Replace([]model.WorkloadCluster{c1, c2})
	hub := reporthub.New(domain, b.ads, log)
	b.Channel = controlchannel.NewBounded(controlchannel.Config{
		Domain: domain,
		TLS: certs.ServerTLS(
			fixed{b.identity(t, model.ControlSubject(), time.Hour)}, certs.Bundle(ca.CertPEM()), grace,
		),
		Anonymous: []string{enrolv1.Enrolment_EnrolEdge_FullMethodName, enrolv1.Enrolment_EnrolGateway_FullMethodName},
		Expired:   []string{enrolv1.Enrolment_Renew_FullMethodName},
		Inside: []string{
			enrolv1.Enrolment_EnrolGateway_FullMethodName,
			reportv1.Report_Gateway_FullMethodName,
			reportv1.Report_Watch_FullMethodName,
		},
		Closing: func() { b.ads.Close(); hub.Close() },
		Log:     log,
	}, bounds)
	b.ads.Register(b)
	reportv1.RegisterReportServer(b, hub)
	enrolv1.RegisterEnrolmentServer(b, enrolserver.New(enrolserver.Config{
		Domain: domain, Tokens: b, Issuer: b, Renewals: b.ads, Trust: ca.CertPEM, Log: log,
	}))
	b.serve(t)
	return b
}

func (b *testbed) serve(t testing.TB) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Serve(ctx, listener) }()
	b.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() {
		if err := b.stop(); err != nil {
			t.Errorf("serving: %v", err)
		}
		if held := b.Held(); held != 0 {
			t.Errorf("after the end %d connections are still counted", held)
		}
	})
}

// newToken records a token.
func (b *testbed) newToken(t testing.TB, wc model.WorkloadCluster, uses int) string {
	t.Helper()
	text, err := enrol.RandomToken()
	if err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens[enrol.HashToken(text)] = &token{enrol.Grant{Tunnel: wc.Key, ID: wc.ID}, uses}
	return text
}

// EdgeToken implements enrolserver.Tokens.
func (b *testbed) EdgeToken(hash, _ string) (enrol.Grant, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lookups++
	if t := b.tokens[hash]; t != nil && t.uses > 0 {
		return t.grant, nil
	}
	return enrol.Grant{}, enrol.ErrUnknownToken
}

// GatewayToken implements enrolserver.Tokens.
func (b *testbed) GatewayToken(hash string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gate == "" || hash != b.gate {
		return enrol.ErrUnknownToken
	}
	return nil
}

// Issue implements enrolserver.Issuer: it counts the use of a token and signs the subject's names.
func (b *testbed) Issue(_ context.Context, r enrolserver.IssueRequest) ([]byte, error) {
	key, err := certs.ParseCSR(r.CSR)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.TokenHash != "" {
		t := b.tokens[r.TokenHash]
		if t == nil || t.uses == 0 {
			return nil, fmt.Errorf("%w: the token has no uses left", enrolserver.ErrDenied)
		}
		t.uses--
	}
	return b.ca.Issue(key, leaf(r.Subject, time.Hour))
}

func leaf(s model.Subject, left time.Duration) certs.Leaf {
	end := time.Now().Add(left)
	return certs.Leaf{
		CommonName: s.Node,
		DNSNames:   domain.DNSNames(s),
		Server:     true,
		Client:     true,
		NotBefore:  end.Add(-100 * time.Hour),
		NotAfter:   end,
	}
}

// identity returns a leaf that expires after left, or has expired if left is negative.
func (b *testbed) identity(t testing.TB, s model.Subject, left time.Duration) certs.Identity {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := b.ca.Issue(key.Public(), leaf(s, left))
	if err != nil {
		t.Fatal(err)
	}
	identity, err := certs.NewIdentity(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

type fixed struct{ identity certs.Identity }

func (f fixed) Identity() (certs.Identity, error) { return f.identity, nil }

// clientTLS returns the configuration of a client with an identity; nil: without one.
func (b *testbed) clientTLS(t testing.TB, identity *certs.Identity) *tls.Config {
	t.Helper()
	roots, err := certs.Bundle(b.ca.CertPEM()).Roots()
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{
		RootCAs:    roots,
		ServerName: domain.Control(),
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2"},
	}
	if identity != nil {
		cert := identity.TLSCertificate()
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
	}
	return config
}

// raw connects. If from is not empty, the connection uses the public port, from that address.
func (b *testbed) raw(ctx context.Context, from string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", b.address)
	if err != nil || from == "" {
		return conn, err
	}
	source, err := net.ResolveTCPAddr("tcp", from)
	if err == nil {
		_, err = proxyproto.HeaderProxyFromAddrs(2, source, source).WriteTo(conn)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// dial returns a gRPC connection with an identity, or nil for none, through the public port unless from is empty.
func (b *testbed) dial(t testing.TB, identity *certs.Identity, from string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(
		"passthrough:///"+b.address, grpc.WithTransportCredentials(credentials.NewTLS(b.clientTLS(t, identity))),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return b.raw(ctx, from) }),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// alive checks that the control channel still serves an edge, a gateway and a new edge.
func (b *testbed) alive(t testing.TB) {
	t.Helper()
	for _, s := range []model.Subject{edge, gateway} {
		eventually.True(
			t, patience, s.Node+" being served",
			func() error { return fetch(t, b.dial(t, ptr(b.identity(t, s, time.Hour)), ""), s) },
		)
	}
	token := b.newToken(t, c1, 1)
	eventually.True(t, patience, "a newcomer being enrolled", func() error {
		_, err := enrolv1.NewEnrolmentClient(b.dial(t, nil, "198.51.100.200:1")).
			EnrolEdge(t.Context(), &enrolv1.EnrolEdgeRequest{Token: token, Csr: csr(t)})
		return err
	})
}

func ptr[T any](v T) *T { return &v }
