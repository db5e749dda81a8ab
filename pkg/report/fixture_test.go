package report

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
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
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

const (
	domain   = model.TunnelDomain("tunnels.example.com")
	patience = 10 * time.Second
)

// quick are all times of the product, a fifth as long. Retries are ten times as quick: on a busy machine a handshake is not.
var quick = times{settle: settleTime / 5, silent: silentTime / 5, hold: holdTime / 5, keep: keepTime}

func TestMain(m *testing.M) {
	reopening = retry.Backoff{Min: reopening.Min / 10, Max: reopening.Max / 10}
	os.Exit(m.Run())
}

var (
	idA = strings.Repeat("a", 24)
	idB = strings.Repeat("b", 24)
)

func edgeOf(node, id string) model.Subject {
	return model.Subject{Role: model.RoleEdge, Node: node, ID: id}
}

func gatewayOf(name string) model.Subject { return model.Subject{Role: model.RoleGateway, Node: name} }

// rules are an Admission that everybody may change.
type rules struct {
	mu      sync.Mutex
	denied  model.Denied
	changed chan struct{}
	unknown bool // nothing is published yet

	gateways []string // of the installation
}

func newRules() *rules { return &rules{changed: make(chan struct{})} }

// Admit implements Admission.
func (r *rules) Admit(s model.Subject) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.unknown:
		return status.Error(codes.Unavailable, "nothing is known yet")
	case s.Role == model.RoleEdge && (slices.Contains(r.denied.Edges, model.EdgeRef{Node: s.Node, ID: s.ID}) || slices.Contains(r.denied.IDs, s.ID)):
		return status.Error(codes.FailedPrecondition, "it is denied")
	}
	return nil
}

// Denied implements Admission.
func (r *rules) Denied() (model.Denied, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.denied, r.changed
}

// Gateways implements Admission.
func (r *rules) Gateways() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gateways
}

func (r *rules) set(d model.Denied, unknown bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.denied, r.unknown = d, unknown
	close(r.changed)
	r.changed = make(chan struct{})
}

// world is an installation: a CA, and what all hubs have in common.
type world struct {
	ca    *certs.CA
	rules *rules
	log   *slog.Logger
	text  *journal
}

func newWorld(t testing.TB) *world {
	t.Helper()
	ca, err := certs.NewCA("test", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{ca: ca, rules: newRules(), text: &journal{}}
	w.log = slog.New(slog.NewTextHandler(w.text, nil))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", w.text.String())
		}
	})
	return w
}

func (w *world) identity(t testing.TB, s model.Subject, notAfter time.Time) certs.Identity {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := w.ca.Issue(key.Public(), certs.Leaf{
		CommonName: s.Node, DNSNames: domain.DNSNames(s), Server: true, Client: true,
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

type fixed struct{ identity certs.Identity }

func (f fixed) Identity() (certs.Identity, error) { return f.identity, nil }

// place is an address at which a hub may run, now and then.
type place struct {
	world   *world
	address string
	hub     *Hub
	stop    func()
}

func (w *world) place(t testing.TB) *place {
	t.Helper()
	p := &place{world: w, address: fmt.Sprintf("127.0.0.1:%d", freeport.TCP(t))}
	p.start(t)
	t.Cleanup(func() { p.stop() })
	return p
}

// start runs a hub that knows nothing.
func (p *place) start(t testing.TB) {
	t.Helper()
	var listener net.Listener
	eventually.True(t, patience, "the address is free", func() (err error) {
		listener, err = net.Listen("tcp", p.address)
		return err
	})
	p.hub = NewHub(domain, p.world.rules, p.world.log)
	p.hub.settle = quick.settle
	control := fixed{p.world.identity(t, model.ControlSubject(), time.Now().Add(time.Hour))}
	config := certs.ServerTLS(control, certs.Bundle(p.world.ca.CertPEM()), time.Hour)
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)), grpc.MaxRecvMsgSize(8<<20))
	reportv1.RegisterReportServer(g, p.hub)
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(listener) }()
	hub := p.hub
	p.stop = sync.OnceFunc(func() {
		hub.Close()
		g.Stop()
		if err := <-ended; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // stopped before it had begun
			t.Errorf("serving: %v", err)
		}
	})
}

// dial connects to one of some addresses, whichever answers; a nil subject has no certificate.
func (w *world) dial(t testing.TB, s *model.Subject, addresses ...string) *grpc.ClientConn {
	t.Helper()
	var identity *certs.Identity
	if s != nil {
		i := w.identity(t, *s, time.Now().Add(time.Hour))
		identity = &i
	}
	return w.dialAs(t, identity, addresses...)
}

func (w *world) dialAs(t testing.TB, identity *certs.Identity, addresses ...string) *grpc.ClientConn {
	t.Helper()
	roots, err := certs.Bundle(w.ca.CertPEM()).Roots()
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{RootCAs: roots, ServerName: domain.Control(), MinVersion: tls.VersionTLS13}
	if identity != nil {
		config.Certificates = []tls.Certificate{identity.TLSCertificate()}
	}
	redial := backoff.Config{BaseDelay: 30 * time.Millisecond, Multiplier: 1.6, Jitter: 0.3, MaxDelay: 250 * time.Millisecond} // a tenth of pkg/dial's
	conn, err := grpc.NewClient("passthrough:///control",
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: redial, MinConnectTimeout: patience}),
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

// background runs something until the test ends it.
func background(t testing.TB, run func(ctx context.Context) error) (stop func()) {
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

// code waits for the end of a stream.
func code[M any](t testing.TB, recv func() (*M, error)) codes.Code {
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
	case <-time.After(patience):
		t.Fatal("the stream is still open")
	}
	return codes.Unknown
}

// journal is a log that a test can read.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// String is all of it.
func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}
