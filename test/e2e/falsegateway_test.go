package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/promise"
)

// falseGatewayAddress is the address of the public name for an edge whose DNS is under an attacker's control.
var falseGatewayAddress = netip.MustParseAddrPort("127.0.0.2:443")

// falseGateway is a man in the middle between an edge and the gateway. It forwards the control channel, and
// impersonates the gateway.
type falseGateway struct {
	in          *netns.Namespace
	certificate atomic.Pointer[tls.Certificate] // shown to edges
	accepted    atomic.Int32                    // edges that continued and requested a tunnel
	refused     atomic.Int32                    // edges that did not
}

// falseGateway proves that an edge opens its tunnel only to real gateways.
func (w *world) falseGateway(t *testing.T) {
	listener, err := w.Network.Workload.Listen(t.Context(), falseGatewayAddress.String())
	must(t, err)
	defer func() { _ = listener.Close() }()
	gateway, _ := identityOf(t, w.Gateways[0].StateDir)
	tokyo, _ := identityOf(t, w.tokyo.edge.StateDir)
	foreign := foreignIdentity(t, subjectOf(t, w.Gateways[0].StateDir))

	f := &falseGateway{in: w.Network.Workload}
	f.certificate.Store(&tokyo)
	go f.serve(t.Context(), listener)
	cluster := w.bareCluster(t, lab.ClusterSpec{Name: "misled"})
	bootstrap, err := cluster.Bootstrap(t.Context())
	must(t, err)
	_, err = w.RunEdge(lab.EdgeSpec{
		Name: "edge-misled", Bootstraps: [][]byte{bootstrap},
		Hosts: map[string]netip.Addr{netns.PublicName: falseGatewayAddress.Addr()},
	})
	must(t, err)

	for _, attack := range []struct {
		name        string
		certificate tls.Certificate
	}{
		{"an edge rejects a gateway that presents an edge's certificate", tokyo},
		{"an edge rejects a gateway that presents a certificate of another CA", foreign},
	} {
		promise.That(t, attack.name, func(t *testing.T) {
			f.show(&attack.certificate)
			eventually(t, func(context.Context) error { return atLeast(&f.refused, 3) })
			if n := f.accepted.Load(); n > 0 {
				t.Errorf("it went on %d times", n)
			}
		})
	}
	promise.That(t, "the same edge accepts the gateway's valid certificate", func(t *testing.T) {
		f.show(&gateway)
		eventually(t, func(context.Context) error { return atLeast(&f.accepted, 1) })
	})
}

func atLeast(count *atomic.Int32, want int32) error {
	if n := count.Load(); n < want {
		return fmt.Errorf("only %d of %d", n, want)
	}
	return nil
}

// show changes the certificate and resets the counters.
func (f *falseGateway) show(certificate *tls.Certificate) {
	f.certificate.Store(certificate)
	f.accepted.Store(0)
	f.refused.Store(0)
}

func (f *falseGateway) serve(ctx context.Context, listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			name, conn, err := peekName(conn)
			switch {
			case err != nil:
			case name == domain.Control():
				f.forward(ctx, conn)
			default:
				f.impersonate(ctx, conn)
			}
		}()
	}
}

// impersonate terminates the outer TLS in place of the gateway. An edge that requests a tunnel has accepted the
// certificate.
func (f *falseGateway) impersonate(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	shown := f.certificate.Load()
	server := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{*shown}, ClientAuth: tls.RequestClientCert})
	err := server.HandshakeContext(ctx)
	if err == nil {
		_, err = io.ReadFull(server, make([]byte, len("GET /reverse_connections")))
	}
	switch {
	case shown != f.certificate.Load(): // the connection began before the last change
	case err == nil:
		f.accepted.Add(1)
	default:
		f.refused.Add(1)
	}
}

// forward copies bytes between an edge and the real gateway.
func (f *falseGateway) forward(ctx context.Context, edge net.Conn) {
	gateway, err := f.in.DialContext(ctx, "tcp", hostPort(netns.PublicName, netns.PublicPort))
	if err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(gateway, edge)
		_ = gateway.Close()
	}()
	_, _ = io.Copy(edge, gateway)
}

// errPeeked ends a handshake after its first message.
var errPeeked = errors.New("peeked")

// peekName reads the SNI of a TLS client, and returns a connection from which all bytes can still be read.
func peekName(conn net.Conn) (name string, whole net.Conn, err error) {
	var seen bytes.Buffer
	err = tls.Server(replayed{Conn: conn, reader: io.TeeReader(conn, &seen), mute: true}, &tls.Config{
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name = hello.ServerName
			return nil, errPeeked
		},
	}).Handshake()
	if !errors.Is(err, errPeeked) {
		return "", nil, err
	}
	return name, replayed{Conn: conn, reader: io.MultiReader(&seen, conn)}, nil
}

// replayed is a connection whose bytes come from a reader. If it is mute, it sends nothing.
type replayed struct {
	net.Conn
	reader io.Reader
	mute   bool
}

func (r replayed) Read(p []byte) (int, error) { return r.reader.Read(p) }

func (r replayed) Write(p []byte) (int, error) {
	if r.mute {
		return len(p), nil
	}
	return r.Conn.Write(p)
}
