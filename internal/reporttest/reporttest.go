// Package reporttest gives tests of reports an installation without programs: a CA, an Admission that the test changes,
// identities, and connections to hubs. It knows none of the parts under test.
package reporttest

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

const (
	// Domain is that of the installation.
	Domain = model.TunnelDomain("tunnels.example.com")
	// Patience bounds every wait.
	Patience = 10 * time.Second
)

// IDA and IDB are two tunnel ids.
var (
	IDA = strings.Repeat("a", 24)
	IDB = strings.Repeat("b", 24)
)

// EdgeOf returns the subject of an edge.
func EdgeOf(node, id string) model.Subject {
	return model.Subject{Role: model.RoleEdge, Node: node, ID: id}
}

// GatewayOf returns the subject of a gateway.
func GatewayOf(name string) model.Subject {
	return model.Subject{Role: model.RoleGateway, Node: name}
}

// Rules are an Admission that a test changes.
type Rules struct {
	mu      sync.Mutex
	denied  model.Denied
	changed chan struct{}
	unknown bool // nothing is published yet

	gateways []string
}

// NewRules returns rules that deny no edge.
func NewRules() *Rules { return &Rules{changed: make(chan struct{})} }

// Admit implements hub.Admission.
func (r *Rules) Admit(s model.Subject) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.unknown:
		return status.Error(codes.Unavailable, "nothing is known yet")
	case s.Role != model.RoleEdge:
		return nil
	case slices.Contains(r.denied.Edges, model.EdgeRef{Node: s.Node, ID: s.ID}), slices.Contains(r.denied.IDs, s.ID):
		return status.Error(codes.FailedPrecondition, "it is denied")
	}
	return nil
}

// Denied implements hub.Admission.
func (r *Rules) Denied() (model.Denied, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.denied, r.changed
}

// SetGateways replaces the gateways of the installation.
func (r *Rules) SetGateways(names ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gateways = names
}

// Gateways implements hub.Admission.
func (r *Rules) Gateways() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gateways
}

// Set replaces what is denied; unknown: nothing is published yet.
func (r *Rules) Set(d model.Denied, unknown bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.denied, r.unknown = d, unknown
	close(r.changed)
	r.changed = make(chan struct{})
}

// World is an installation: a CA, and what all hubs have in common.
type World struct {
	CA    *certs.CA
	Rules *Rules
	Log   *slog.Logger
	Text  *Journal // what was logged
}

// NewWorld returns an installation. The log of a failed test is printed.
func NewWorld(t testing.TB) *World {
	t.Helper()
	ca, err := certs.NewCA("test", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	w := &World{CA: ca, Rules: NewRules(), Text: &Journal{}}
	w.Log = slog.New(slog.NewTextHandler(w.Text, nil))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", w.Text.String())
		}
	})
	return w
}

// Identity returns a leaf of a subject that ends at a time.
func (w *World) Identity(t testing.TB, s model.Subject, notAfter time.Time) certs.Identity {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := w.CA.Issue(key.Public(), certs.Leaf{
		CommonName: s.Node, DNSNames: Domain.DNSNames(s), Server: true, Client: true,
		NotBefore: time.Now().Add(-30 * time.Minute), NotAfter: notAfter,
	})
	if err != nil {
		t.Fatal(err)
	}
	identity, err := certs.NewIdentity(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

// Fixed is a source of one identity.
type Fixed struct{ Is certs.Identity }

// Identity implements certs.Source.
func (f Fixed) Identity() (certs.Identity, error) { return f.Is, nil }

// Dial connects to one of some addresses, whichever answers; a nil subject has no certificate.
func (w *World) Dial(t testing.TB, s *model.Subject, addresses ...string) *grpc.ClientConn {
	t.Helper()
	var identity *certs.Identity
	if s != nil {
		i := w.Identity(t, *s, time.Now().Add(time.Hour))
		identity = &i
	}
	return w.DialAs(t, identity, addresses...)
}

// DialAs is Dial with an identity; nil: there is no certificate.
func (w *World) DialAs(t testing.TB, identity *certs.Identity, addresses ...string) *grpc.ClientConn {
	t.Helper()
	roots, err := certs.Bundle(w.CA.CertPEM()).Roots()
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{RootCAs: roots, ServerName: Domain.Control(), MinVersion: tls.VersionTLS13}
	if identity != nil {
		config.Certificates = []tls.Certificate{identity.TLSCertificate()}
	}
	// A tenth of pkg/dial's.
	redial := backoff.Config{
		BaseDelay: 30 * time.Millisecond, Multiplier: 1.6, Jitter: 0.3,
		MaxDelay: 250 * time.Millisecond,
	}
	conn, err := grpc.NewClient("passthrough:///control",
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: redial, MinConnectTimeout: Patience}),
		grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var errs []error
			for _, address := range addresses {
				conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
				if err == nil {
					return conn, nil
				}
				errs = append(errs, err)
			}
			return nil, errors.Join(errs...)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Background runs something until the test ends it.
func Background(t testing.TB, run func(ctx context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("got %v, want no error", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// Code waits for the end of a stream and returns its code.
func Code[M any](t testing.TB, recv func() (*M, error)) codes.Code {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		for {
			if _, err := recv(); err != nil {
				ended <- err
				return
			}
		}
	}()
	select {
	case err := <-ended:
		if errors.Is(err, io.EOF) {
			return codes.OK
		}
		return status.Code(err)
	case <-time.After(Patience):
		t.Fatal("the stream is still open")
	}
	return codes.Unknown
}

// Journal is a log that a test can read.
type Journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (j *Journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// String is all of it.
func (j *Journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// Place is an address at which a hub may run, now and then.
type Place struct {
	World   *World
	Address string
	stop    func()
}

// Place returns a free address.
func (w *World) Place(t testing.TB) *Place {
	t.Helper()
	p := &Place{World: w, Address: freeport.Address(t), stop: func() {}}
	t.Cleanup(func() { p.Stop() })
	return p
}

// Start serves a hub until Stop, which closes it.
func (p *Place) Start(t testing.TB, server interface {
	reportv1.ReportServer
	Close()
},
) {
	t.Helper()
	var listener net.Listener
	eventually.True(t, Patience, "the address is free", func() (err error) {
		listener, err = net.Listen("tcp", p.Address)
		return err
	})
	control := Fixed{p.World.Identity(t, model.ControlSubject(), time.Now().Add(time.Hour))}
	config := certs.ServerTLS(control, certs.Bundle(p.World.CA.CertPEM()), time.Hour)
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)), grpc.MaxRecvMsgSize(8<<20))
	reportv1.RegisterReportServer(g, server)
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(listener) }()
	p.stop = sync.OnceFunc(func() {
		server.Close()
		g.Stop()
		if err := <-ended; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // stopped before it had begun
			t.Errorf("serving: %v", err)
		}
	})
}

// Stop ends the hub that runs, if there is one.
func (p *Place) Stop() { p.stop() }
