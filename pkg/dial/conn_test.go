package dial_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/model"
)

// fixed is an identity that never changes.
type fixed struct{ identity certs.Identity }

func (f fixed) Identity() (certs.Identity, error) { return f.identity, nil }

// xdsServer starts a server with a valid certificate that accepts clients of the authority's CAs.
func xdsServer(t testing.TB, a *authority, listen string) *control {
	t.Helper()
	return serve(t, listen, fixed{issue(t, a.ca, model.ControlSubject(), -time.Hour, 2*time.Hour)}, trust{a})
}

// connect returns a connection with the trust and the identity of an authority.
func connect(t testing.TB, a *authority, addresses ...model.Endpoint) *grpc.ClientConn {
	t.Helper()
	return prepare(t, &dial.Dialer{Addresses: addresses}, trust{a}, source{a})
}

func prepare(t testing.TB, d *dial.Dialer, roots certs.TrustSource, identity certs.Source) *grpc.ClientConn {
	t.Helper()
	conn, err := dial.Conn(d, domain, roots, identity)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestConnReadsTrustAndIdentityAtEachHandshake(t *testing.T) {
	a := newAuthority(t)
	old := a.ca
	first := xdsServer(t, a, "127.0.0.1:0")
	conn := connect(t, a, first.address)
	if err := call(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	// The CA is replaced: the next server presents and accepts only certificates of the new one.
	a.set(func() {
		a.ca = newCA(t)
		a.bundle, a.identity = a.ca.CertPEM(), issue(t, a.ca, edge(), -time.Minute, time.Hour)
	})
	first.server.Stop()
	xdsServer(t, a, first.address.String())
	eventually.True(t, patience, "the connection is there again", func() error { return call(t.Context(), conn) })

	a.set(func() { a.bundle = old.CertPEM() })
	stale := connect(t, a, first.address)
	if err := call(t.Context(), stale); err == nil || !strings.Contains(err.Error(), "not by this installation") {
		t.Errorf("a server of a CA that is not trusted any more is taken: %v", err)
	}
}

func TestConnPresentsNoCertificateForEnrolment(t *testing.T) {
	a := newAuthority(t)
	dialer := &dial.Dialer{Addresses: []model.Endpoint{xdsServer(t, a, "127.0.0.1:0").address}}
	if err := call(t.Context(), prepare(t, dialer, trust{a}, nil)); err != nil {
		t.Error(err)
	}
}

func TestConnRequiresACA(t *testing.T) {
	a := newAuthority(t)
	d := &dial.Dialer{Addresses: []model.Endpoint{xdsServer(t, a, "127.0.0.1:0").address}}
	for name, roots := range map[string]certs.TrustSource{
		"none at all": nil, "an empty bundle": certs.Bundle(nil),
		"an empty pool": emptyPool{},
	} {
		t.Run(name, func(t *testing.T) {
			err := call(t.Context(), prepare(t, d, roots, nil))
			if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), dial.ErrNoTrust.Error()) {
				t.Errorf("error %v, want one that says %q", err, dial.ErrNoTrust)
			}
		})
	}
}

func TestConnWithoutIdentityReturnsAnError(t *testing.T) {
	a := newAuthority(t)
	a.set(func() { a.err = certs.ErrNoIdentity })
	err := call(t.Context(), connect(t, a, xdsServer(t, a, "127.0.0.1:0").address))
	if err == nil || !strings.Contains(err.Error(), certs.ErrNoIdentity.Error()) {
		t.Errorf("error %v", err)
	}
}

func TestConnSkipsAddressesThatAcceptConnectionsAndAreUnusable(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	good := xdsServer(t, a, "127.0.0.1:0")
	for name, answer := range map[string]func(net.Conn){
		"it cuts them":         func(net.Conn) {},
		"it never answers":     func(conn net.Conn) { hold(conn) },
		"it answers with HTTP": func(conn net.Conn) { _, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, a, answering(t, "127.0.0.1:0", answer), good.address)
			eventually.True(t, patience, "the call reaches the other address", func() error { return call(t.Context(), conn) })
		})
	}
}

// hold reads until the other side closes.
func hold(conn net.Conn) {
	for buffer := make([]byte, 1024); ; {
		if _, err := conn.Read(buffer); err != nil {
			return
		}
	}
}

// TestConnReconnectsSoonAfterAnOutage has an outage that is long enough for gRPC's backoff to reach its maximum. The
// rest of a wait may still be due when the outage is over.
func TestConnReconnectsSoonAfterAnOutage(t *testing.T) {
	t.Parallel()
	const outage, within = 20 * time.Second, 4 * time.Second
	a := newAuthority(t)
	attempts := make(chan time.Time, 1000)
	listener := listenOn(t, "127.0.0.1:0")
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			attempts <- time.Now()
			_ = conn.Close()
		}
	}()
	conn := connect(t, a, endpoint(listener))
	longest, last := time.Duration(0), time.Now()
	for over := time.After(outage); over != nil; {
		if call(t.Context(), conn) == nil {
			t.Fatal("a call succeeds without a server")
		}
		select {
		case <-over:
			over = nil
		case now := <-attempts:
			longest, last = max(longest, now.Sub(last)), now
		case <-time.After(20 * time.Millisecond):
		}
	}
	if longest > within {
		t.Errorf("between two attempts there were %s, want at most %s", longest, within)
	}
	_ = listener.Close()
	xdsServer(t, a, endpoint(listener).String())
	begin := time.Now()
	eventually.True(t, patience, "the connection is back", func() error { return call(t.Context(), conn) })
	t.Logf(
		"the longest wait was %s, and the connection is back after %s", longest.Round(time.Millisecond),
		time.Since(begin).Round(time.Millisecond),
	)
}

// TestConnDetectsALostConnection has a NAT between client and server that silently drops connections.
func TestConnDetectsALostConnection(t *testing.T) {
	t.Parallel()
	const within = 17 * time.Second // pings detect it within 14 s
	a := newAuthority(t)
	server := xdsServer(t, a, "127.0.0.1:0")
	nat := &lossyNAT{}
	conn := connect(t, a, answering(t, "127.0.0.1:0", func(conn net.Conn) { nat.join(conn, server.address) }))
	stream, err := healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	nat.drop()
	begin := time.Now()
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ends with %v", err)
	}
	if err := call(t.Context(), conn); err != nil {
		t.Error(err)
	}
	took := time.Since(begin)
	t.Logf("back after %s", took.Round(time.Millisecond))
	if took > within {
		t.Errorf("took %s, want at most %s", took, within)
	}
}

// lossyNAT joins connections, until it is made to drop them.
type lossyNAT struct {
	mu  sync.Mutex
	age int
}

func (f *lossyNAT) now() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.age
}

func (f *lossyNAT) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.age++
}

func (f *lossyNAT) join(down net.Conn, to model.Endpoint) {
	up, err := net.Dial("tcp", to.String())
	if err != nil {
		return
	}
	defer up.Close()
	born := f.now()
	carry := func(to, from net.Conn) {
		buffer := make([]byte, 4096)
		for {
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			if f.now() == born {
				_, _ = to.Write(buffer[:n])
			}
		}
	}
	go carry(down, up)
	carry(up, down)
}

func TestWaitingCallsReportWhatTheyWaitFor(t *testing.T) {
	a := newAuthority(t)
	address := dead(t, "127.0.0.1")
	conn := connect(t, a, address)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}, grpc.WaitForReady(true))
	if status.Code(err) != codes.DeadlineExceeded ||
		!strings.Contains(err.Error(), address.String()+": nothing listens there") {
		t.Errorf("error %v", err)
	}
	_, err = healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "nothing listens there") {
		t.Errorf("error of a stream: %v", err)
	}
}

func TestErrorsOfTheServerAreReturnedUnchanged(t *testing.T) {
	a := newAuthority(t)
	conn := connect(t, a, xdsServer(t, a, "127.0.0.1:0").address)
	_, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{Service: "no such thing"})
	if status.Code(err) != codes.NotFound || status.Convert(err).Message() != "unknown service" {
		t.Errorf("error %v", err)
	}
	if errors.Is(err, dial.ErrNoTrust) {
		t.Error("it is none of the connection's")
	}
}
