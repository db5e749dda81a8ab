package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/traffic"
)

// relay forwards connections to another address of its network.
type relay struct {
	to    string
	in    *netns.Namespace
	count atomic.Int64
}

// newRelay starts a relay that ends with the test.
func newRelay(t *testing.T, in *netns.Namespace, at netip.AddrPort, to string) *relay {
	t.Helper()
	r := &relay{to: to, in: in}
	listen(t, in, at, r.pass)
	return r
}

// listen serves connections until the test ends.
func listen(t *testing.T, in *netns.Namespace, at netip.AddrPort, serve func(context.Context, net.Conn)) {
	t.Helper()
	listener, err := in.Listen(t.Context(), at.String())
	must(t, err)
	ctx := t.Context()
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
				defer stop()
				serve(ctx, conn)
			}()
		}
	}()
}

// pass copies bytes in both directions until one side ends.
func (r *relay) pass(ctx context.Context, near net.Conn) {
	defer func() { _ = near.Close() }()
	far, err := r.in.DialContext(ctx, "tcp", r.to)
	if err != nil {
		return
	}
	r.count.Add(1)
	join(near, far)
}

func join(near, far net.Conn) {
	go func() {
		_, _ = io.Copy(far, near)
		_ = far.Close()
	}()
	_, _ = io.Copy(near, far)
	_ = near.Close()
}

// How an inspector treats connections.
const (
	inspecting int32 = iota // terminates TLS with its own certificate
	captive                 // answers with a login page
	cutting                 // closes the connection when its SNI is an unknown name
	open                    // forwards everything
)

// inspector is a middlebox between edges and gateways.
type inspector struct {
	relay
	mode  atomic.Int32
	proxy *pki.Authority
}

func newInspector(t *testing.T, in *netns.Namespace, at netip.AddrPort, to string) *inspector {
	t.Helper()
	authority, err := pki.NewAuthority("Corporate Inspection CA")
	must(t, err)
	i := &inspector{relay: relay{to: to, in: in}, proxy: authority}
	listen(t, in, at, i.serve)
	return i
}

func (i *inspector) serve(ctx context.Context, conn net.Conn) {
	if i.mode.Load() == open {
		i.pass(ctx, conn)
		return
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(traffic.RequestTimeout))
	switch i.mode.Load() {
	case inspecting:
		i.inspect(ctx, conn)
	case captive:
		_, _ = conn.Read(make([]byte, 4096))
		_, _ = io.WriteString(conn, "HTTP/1.1 302 Found\r\nLocation: http://login.hotel.test/\r\nContent-Length: 0\r\n\r\n")
	case cutting:
		_, _ = conn.Read(make([]byte, 4096))
	}
}

// inspect terminates TLS with a certificate for any name, and opens its own TLS connection to the server.
func (i *inspector) inspect(ctx context.Context, conn net.Conn) {
	near := tls.Server(conn, &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		pair, err := i.proxy.Issue(
			pki.LeafSpec{CommonName: hello.ServerName, Names: []string{hello.ServerName}, Usage: x509.ExtKeyUsageServerAuth},
		)
		if err != nil {
			return nil, err
		}
		certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
		return &certificate, err
	}})
	if near.HandshakeContext(ctx) != nil {
		return
	}
	far, err := i.in.DialContext(ctx, "tcp", i.to)
	if err != nil {
		return
	}
	join(near, tls.Client(far, &tls.Config{ServerName: near.ConnectionState().ServerName, InsecureSkipVerify: true}))
}
