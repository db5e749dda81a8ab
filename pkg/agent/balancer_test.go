package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/model"
)

// Addresses of this machine in the tests of the PROXY protocol.
var (
	balancerAddress = netip.MustParseAddr("127.0.0.2")
	outsiderAddress = netip.MustParseAddr("127.0.0.3")
	peerAddress     = netip.MustParseAddr("127.0.0.4")
)

// stays is how long a connection must stay open after its handshake to count as admitted.
const stays = 300 * time.Millisecond

// header returns a PROXY header.
type header func(from, to netip.AddrPort) []byte

func noHeader(_, _ netip.AddrPort) []byte { return nil }

func version1(from, to netip.AddrPort) []byte {
	family := "TCP4"
	if from.Addr().Is6() {
		family, to = "TCP6", netip.AddrPortFrom(netip.MustParseAddr("2001:db8::1"), to.Port())
	}
	return fmt.Appendf(nil, "PROXY %s %s %s %d %d\r\n", family, from.Addr(), to.Addr(), from.Port(), to.Port())
}

func version2(from, to netip.AddrPort) []byte {
	h := []byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c")
	if from.Addr().Is6() {
		h = []byte("\r\n\r\n\x00\r\nQUIT\n\x21\x21\x00\x24")
		to = netip.AddrPortFrom(netip.MustParseAddr("2001:db8::1"), to.Port())
	}
	h = append(append(h, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(h, from.Port()), to.Port())
}

// arrive opens a connection to the gateway from an address, with a header of a client.
func (c *control) arrive(ctx context.Context, from, client netip.AddrPort, h header) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 5 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(from)}
	conn, err := dialer.DialContext(ctx, "tcp", model.Endpoint{Host: "127.0.0.1", Port: c.bind.Public.Port}.String())
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(h(client, conn.RemoteAddr().(*net.TCPAddr).AddrPort())); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// admits returns nil if the gateway admits a connection from an address with the header of a client. Envoy may answer a
// TLS handshake before it knows that.
func (c *control) admits(from, client netip.Addr, h header) error {
	conn, err := c.arrive(c.t.Context(), netip.AddrPortFrom(from, 0), netip.AddrPortFrom(client, 40000), h)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	encrypted := tls.Client(conn, &tls.Config{
		ServerName: domain.GatewayReplica(name), InsecureSkipVerify: true,
		Certificates: []tls.Certificate{c.fresh(edgeSubject).TLSCertificate()},
	})
	if err := encrypted.HandshakeContext(c.t.Context()); err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Now().Add(stays))
	if _, err := encrypted.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the gateway closes it: %w", err)
	}
	return nil
}

// flood opens connections at the same time, a few in a row.
func (c *control) flood(from, client netip.Addr, h header, connections int) {
	var group sync.WaitGroup
	const each = 4
	for range connections / each {
		group.Go(func() {
			for range each {
				_ = c.admits(from, client, h)
			}
		})
	}
	group.Wait()
}

// balancer is a load balancer: it forwards connections, each with a header of a client.
func (c *control) balancer(client netip.Addr, h header) model.Endpoint {
	c.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			port := from.RemoteAddr().(*net.TCPAddr).AddrPort().Port()
			to, err := c.arrive(
				context.Background(), netip.AddrPortFrom(balancerAddress, 0), netip.AddrPortFrom(client, port), h,
			)
			if err != nil {
				_ = from.Close()
				continue
			}
			for _, ends := range [][2]net.Conn{{from, to}, {to, from}} {
				go func() {
					_, _ = io.Copy(ends[0], ends[1])
					_ = ends[0].Close()
					_ = ends[1].Close()
				}()
			}
		}
	}()
	return endpoint(c.t, listener.Addr())
}

func prefixOf(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// newBalanced returns a gateway that load balancers reach.
func newBalanced(c *control) *place {
	p := newGateway(c)
	p.child.ProxyProtocol = envoy.ProxyProtocol{
		Balancers: []netip.Prefix{prefixOf(balancerAddress)}, Gateways: []netip.Prefix{prefixOf(peerAddress)},
	}
	return p
}

// TestAnEdgeBehindABalancerIsKnownByItsOwnAddressAndCutByTheKernels has edges of either family, and balancers that send
// either version.
func TestAnEdgeBehindABalancerIsKnownByItsOwnAddressAndCutByTheKernels(t *testing.T) {
	for name, tc := range map[string]struct {
		client, listen string
		header         header
	}{
		"version 1, IPv4": {"198.51.100.7", "127.0.0.1", version1},
		"version 1, IPv6": {"2001:db8::7", "127.0.0.1", version1},
		"version 2, IPv4": {"198.51.100.7", "::", version2},
		"version 2, IPv6": {"2001:db8::7", "::", version2},
	} {
		t.Run(name, func(t *testing.T) {
			c := newWorld(t)
			a := newAPIServer(c, edgeSubject.ID, "c1")
			c.bind.Public.Host = tc.listen
			gateway, edge := newBalanced(c), newEdge(c)
			c.public = c.balancer(netip.MustParseAddr(tc.client), tc.header)
			other := model.NewID()
			token := c.tunnel("c2", other, a.Endpoint)
			b, kept := newAPIServer(c, other, "c2"), newPlace(c, func(*child, string) {})
			kept.add(other, token)
			edge.child.Edges[0].To, kept.child.Edges[0].To = []model.Endpoint{c.public}, []model.Endpoint{c.public}
			c.serve()
			gateway.agent()
			edge.agent()
			kept.agent()
			c.works(a)
			c.works(b)
			wait, goesOn := c.stream(a, longStream), c.stream(b, 8*time.Second)
			gateway.state("each connection has an owner", func(s state) error {
				if s.Tunnels == nil || s.Tunnels.Tunnels != 4 || s.Tunnels.Incomplete != "" || s.Tunnels.BadLines != 0 {
					return errors.New("not all have")
				}
				return nil
			})
			log := gateway.read(filepath.Join(gateway.child.StateDir, record.TunnelLog))
			for _, want := range []string{
				`"owner":"tunnel","peer":"` + strings.TrimSuffix(netip.AddrPortFrom(netip.MustParseAddr(tc.client), 1).String(), "1"),
				`"owner":"control","peer":"` + balancerAddress.String() + ":",
			} {
				if !strings.Contains(log, want) {
					t.Errorf("the log does not have %s: %s", want, log)
				}
			}
			node := edge.state("it has a name", func(s state) error {
				if s.Memberships[0].Node == "" {
					return errors.New("it has none")
				}
				return nil
			}).Memberships[0].Node
			c.set(func() { clear(c.tokens) })
			began := time.Now()
			c.revoke(edgeSubject.ID, node)
			if err := wait(); err == nil {
				t.Error("the stream came to its end")
			}
			if took := time.Since(began); took > withinBound {
				t.Errorf("the tunnel was closed after %s", took)
			}
			gateway.state("the tunnels are closed one by one", func(s state) error {
				if s.Tunnels.Cut < 2 || s.Tunnels.CutFails != 0 || s.Tunnels.Replaced != 0 {
					return errors.New("they are not")
				}
				return nil
			})
			if err := goesOn(); err != nil {
				t.Errorf("of the other edge: %v", err)
			}
		})
	}
}

// TestOnlyABalancerDecidesTheSourceOfAConnection: nothing that an outsider sends does.
func TestOnlyABalancerDecidesTheSourceOfAConnection(t *testing.T) {
	const flood = 400 // twice what one source may open at once
	c := newWorld(t)
	gateway := newBalanced(c)
	c.serve()
	gateway.agent()
	gateway.ready()
	first, second, third := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.2"),
		netip.MustParseAddr("198.51.100.3")
	for name, h := range map[string]header{"version 1": version1, "version 2": version2} {
		for from, what := range map[netip.Addr]string{balancerAddress: "a balancer", peerAddress: "a gateway"} {
			if err := c.admits(from, first, h); err != nil {
				t.Errorf("%s with a header of %s is rejected: %v", what, name, err)
			}
		}
		if c.admits(outsiderAddress, first, h) == nil {
			t.Errorf("an outsider with a header of %s is admitted", name)
		}
	}
	for from, what := range map[netip.Addr]string{
		balancerAddress: "a balancer", peerAddress: "a gateway", outsiderAddress: "an outsider",
	} {
		if c.admits(from, first, noHeader) == nil {
			t.Errorf("%s is admitted without a header", what)
		}
	}

	// An outsider uses up its own share, and not the one of the client that it names.
	c.flood(outsiderAddress, second, version1, flood)
	gateway.logged("first_source="+outsiderAddress.String(), 1)
	if err := c.admits(balancerAddress, second, version2); err != nil {
		t.Errorf("an outsider has used up the share of a client: %v", err)
	}
	// Two clients behind a balancer have two shares.
	c.flood(balancerAddress, second, version2, flood)
	if err := c.admits(balancerAddress, third, version2); err != nil {
		t.Errorf("a client has used up the share of another one: %v", err)
	}
	gateway.logged("first_source="+second.String(), 1)
}

// TestOtherGatewaysAreFoundByTheirAddresses: another gateway may name the client of a reverse tunnel that it relays,
// and nothing else.
func TestOtherGatewaysAreFoundByTheirAddresses(t *testing.T) {
	c := newWorld(t)
	// The gateway's own entry, at the outsider's address here, is not another gateway.
	c.peers = []model.Gateway{
		{Name: name, Peer: model.Endpoint{Host: outsiderAddress.String(), Port: 1}},
		{Name: "gateway-1", Peer: model.Endpoint{Host: peerAddress.String(), Port: 1}},
	}
	gateway := newBalanced(c)
	gateway.child.ProxyProtocol.Gateways = nil
	c.serve()
	gateway.agent()
	gateway.ready()
	client := netip.MustParseAddr("198.51.100.1")
	envoytest.Eventually(
		t, "the other gateway is accepted", func() error { return c.admits(peerAddress, client, version2) },
	)
	if c.admits(outsiderAddress, client, version2) == nil {
		t.Error("an outsider is admitted")
	}
	if err := c.admits(balancerAddress, client, version2); err != nil {
		t.Errorf("the balancer is rejected: %v", err)
	}
	for from, want := range map[netip.Addr]bool{balancerAddress: true, peerAddress: false} {
		if got := c.reachesControl(from, client); got != want {
			t.Errorf("%s reaches the control channel: %t, want %t", from, got, want)
		}
	}
}

// reachesControl reports whether a connection from an address with a header of a client reaches the xds-server.
func (c *control) reachesControl(from, client netip.Addr) bool {
	conn, err := c.arrive(c.t.Context(), netip.AddrPortFrom(from, 0), netip.AddrPortFrom(client, 40000), version2)
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(envoytest.Patience))
	encrypted := tls.Client(conn, &tls.Config{
		ServerName: domain.Control(), InsecureSkipVerify: true, NextProtos: []string{"h2"},
	})
	return encrypted.HandshakeContext(c.t.Context()) == nil
}

// TestANewAgentClosesATunnelBehindABalancer restarts the gateway's agent while its Envoy runs on.
func TestANewAgentClosesATunnelBehindABalancer(t *testing.T) {
	c := newWorld(t)
	a := newAPIServer(c, edgeSubject.ID, "c1")
	gateway, edge := newBalanced(c), newEdge(c)
	c.public = c.balancer(netip.MustParseAddr("198.51.100.7"), version2)
	edge.child.Edges[0].To = []model.Endpoint{c.public}
	c.serve()
	old := gateway.agent()
	edge.agent()
	c.works(a)
	pid := gateway.ready()
	wait := c.stream(a, longStream)
	old.end(t, syscall.SIGKILL)
	gateway.agent()
	gateway.state("the new agent has the tunnels", func(s state) error {
		if s.Tunnels == nil || s.Tunnels.Tunnels != 2 || s.Tunnels.Incomplete != "" {
			return errors.New("it has not")
		}
		return nil
	})
	if now, err := gateway.admin().PID(); err != nil || now != pid {
		t.Fatalf("Envoy is %d and was %d: %v", now, pid, err)
	}
	node := edge.state("it has a name", func(state) error { return nil }).Memberships[0].Node
	c.set(func() { clear(c.tokens) })
	began := time.Now()
	c.revoke(edgeSubject.ID, node)
	if err := wait(); err == nil {
		t.Error("the stream came to its end")
	}
	if took := time.Since(began); took > withinBound {
		t.Errorf("the tunnel was closed after %s", took)
	}
}

func TestARelayedConnectionKeepsTheAddressOfItsClient(t *testing.T) {
	c := newWorld(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	c.peers = []model.Gateway{{Name: "gateway-1", Peer: endpoint(t, listener.Addr())}}
	gateway := newBalanced(c)
	c.serve()
	gateway.agent()
	client := netip.MustParseAddrPort("198.51.100.9:40000")
	var conn net.Conn
	envoytest.Eventually(t, "the gateway accepts connections", func() (err error) {
		conn, err = c.arrive(t.Context(), netip.AddrPortFrom(balancerAddress, 0), client, version1)
		return err
	})
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(envoytest.Patience))
	go func() {
		_ = tls.Client(conn, &tls.Config{ServerName: domain.GatewayReplica("gateway-1"), InsecureSkipVerify: true}).
			HandshakeContext(t.Context())
	}()
	_ = listener.(*net.TCPListener).SetDeadline(time.Now().Add(envoytest.Patience))
	relayed, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer relayed.Close()
	_ = relayed.SetDeadline(time.Now().Add(envoytest.Patience))
	to := conn.RemoteAddr().(*net.TCPAddr).AddrPort()
	want := version2(client, to)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(relayed, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	gateway.state("the relayed connection has an owner", func(s state) error {
		if s.Tunnels == nil || s.Tunnels.Incomplete != "" || s.Tunnels.Unknown != 0 {
			return errors.New("it has none")
		}
		return nil
	})
	log := gateway.read(filepath.Join(gateway.child.StateDir, record.TunnelLog))
	if !slices.ContainsFunc(strings.Split(log, "\n"), func(line string) bool {
		return strings.Contains(line, `"owner":"relay"`) &&
			strings.Contains(line, `"peer":"`+conn.LocalAddr().String()+`"`) &&
			strings.Contains(line, `"local":"`+to.String()+`"`)
	}) {
		t.Errorf("the record does not have the addresses of the socket: %s", log)
	}
}
