package dial_test

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/fairlead/fairlead/internal/conntest"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	domain   model.TunnelDomain = "tunnels.example.com"
	patience                    = 20 * time.Second
)

// authority is a CA and its identities, which can be replaced while in use.
type authority struct {
	mu       sync.Mutex
	ca       *certs.CA
	bundle   certs.Bundle
	identity certs.Identity
	err      error
}

func newCA(t testing.TB) *certs.CA {
	t.Helper()
	ca, err := certs.NewCA("fairlead test CA", time.Now().Add(-24*time.Hour), 48*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// issue returns an identity that becomes valid at now + begin, for life.
func issue(t testing.TB, ca *certs.CA, s model.Subject, begin, life time.Duration) certs.Identity {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	from := time.Now().Add(begin)
	chain, err := ca.Issue(key.Public(), certs.Leaf{
		CommonName: s.Node, DNSNames: domain.DNSNames(s), Server: true, Client: true, NotBefore: from, NotAfter: from.Add(
			life),
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

// newAuthority returns an authority with a CA and the identity of an edge.
func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{ca: newCA(t)}
	a.bundle, a.identity = a.ca.CertPEM(), issue(t, a.ca, edge(), -time.Minute, time.Hour)
	return a
}

func edge() model.Subject {
	return model.Subject{Role: model.RoleEdge, Node: "edge-a", ID: "aaaaaaaaaaaaaaaaaaaaaaaa"}
}

// source returns the current identity of an authority; trust returns its current roots.
type source struct{ *authority }

func (s source) Identity() (certs.Identity, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.identity, s.err
}

type trust struct{ *authority }

func (s trust) Roots() (*x509.CertPool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bundle.Roots()
}

// set changes an authority under its lock.
func (a *authority) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

// control is a minimal xds-server. It answers with the identity of the client.
type control struct {
	address model.Endpoint
	server  *grpc.Server
}

// serve starts a control on an address.
func serve(t testing.TB, listen string, identity certs.Source, roots certs.TrustSource) *control {
	t.Helper()
	listener := listenOn(t, listen)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(certs.ServerTLS(identity, roots, 0))))
	healthv1.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return &control{address: endpoint(listener), server: server}
}

// call sends a request on a connection.
func call(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	return err
}

func listenOn(t testing.TB, address string) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

func endpoint(listener net.Listener) model.Endpoint {
	addr := netip.MustParseAddrPort(listener.Addr().String())
	return model.Endpoint{Host: addr.Addr().String(), Port: addr.Port()}
}

// answering listens and runs answer for every connection.
func answering(t testing.TB, address string, answer func(net.Conn)) model.Endpoint {
	t.Helper()
	listener := listenOn(t, address)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				answer(conn)
			}()
		}
	}()
	return endpoint(listener)
}

// echo sends back all data until the other side closes for writing.
func echo(conn net.Conn) { _, _ = io.Copy(conn, conn) }

// dead returns an address without a listener.
func dead(t testing.TB, host string) model.Endpoint {
	t.Helper()
	return model.Endpoint{Host: host, Port: uint16(freeport.TCP(t))}
}

// blackHole returns an address that answers no SYN.
func blackHole(t testing.TB) model.Endpoint {
	t.Helper()
	return endpoint(conntest.BlackHole(t, "127.0.0.1:0"))
}

// names is a real DNS server whose answers can be changed.
type names struct {
	conn net.PacketConn

	mu      sync.Mutex
	records map[string][]netip.Addr
	silent  bool
	mute    dnsmessage.Type // questions of this type get no answer
	queries int
}

func newNames(t testing.TB) *names {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	n := &names{conn: conn, records: map[string][]netip.Addr{}}
	go n.run()
	return n
}

// resolver returns a resolver that queries only this server.
func (n *names) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", n.conn.LocalAddr().String())
	}}
}

func (n *names) set(name string, addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.records[name+"."] = nil
	for _, addr := range addrs {
		n.records[name+"."] = append(n.records[name+"."], netip.MustParseAddr(addr))
	}
}

func (n *names) silence(silent bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.silent = silent
}

func (n *names) muteType(mute dnsmessage.Type) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mute = mute
}

func (n *names) run() {
	buffer := make([]byte, 1500)
	for {
		size, from, err := n.conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		if answer := n.answer(buffer[:size]); answer != nil {
			_, _ = n.conn.WriteTo(answer, from)
		}
	}
}

func (n *names) answer(query []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queries++
	addrs, known := n.records[m.Questions[0].Name.String()]
	m.Response, m.Authoritative, m.RecursionAvailable, m.Additionals = true, true, true, nil
	if !known {
		m.RCode = dnsmessage.RCodeNameError
	}
	header := dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: dnsmessage.ClassINET, TTL: 1}
	for _, addr := range addrs {
		switch {
		case addr.Is4() && m.Questions[0].Type == dnsmessage.TypeA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: addr.As4()}})
		case addr.Is6() && m.Questions[0].Type == dnsmessage.TypeAAAA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}})
		}
	}
	answer, err := m.Pack()
	if n.silent || m.Questions[0].Type == n.mute || err != nil {
		return nil
	}
	return answer
}

// failDial is the dialer of a resolver that must not be used.
func failDial(context.Context, string, string) (net.Conn, error) {
	return nil, errors.New("no name is to be looked up on this side of the proxy")
}
