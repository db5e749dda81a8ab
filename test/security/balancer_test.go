package security

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/world"
)

// balancerAddress is the address of a load balancer in the workload network, and clientAddress the one of all clients
// that it names.
var (
	balancerAddress = netns.AddressAt(netns.WorkloadPrefix, 200)
	clientAddress   = netip.MustParseAddr("198.51.100.7")
)

// TestABalancerBeforeTwoGateways has a load balancer that sends PROXY headers, and an edge that has reverse tunnels to
// both gateways through it. The load balancer sends everything to the first gateway, which relays what is for the
// other one.
func TestABalancerBeforeTwoGateways(t *testing.T) {
	if testing.Short() {
		t.Skip("the full run has it")
	}
	w := world.Start(t, &proof, lab.Options{
		Lean: true, WithoutWorkload: true, Gateways: 2, XDSServers: 2, BalancerNetwork: netip.PrefixFrom(balancerAddress, 32),
	})
	in := &installation{World: w}
	in.startBalancer(t)
	member := w.Member(t, "victim", nil)
	edge := w.Edge(t, lab.EdgeSpec{Name: "edge-victim"}, member)
	eventually(t, member.Works)
	that(t, "both gateways know the client of reverse tunnels, also of relayed ones", func(t *testing.T) {
		eventually(t, func(context.Context) error { return in.knowClients() })
	})
	attack(t, "an outsider names the address of a client to a gateway",
		"the addresses of load balancers and gateways", func(t *testing.T) {
			for i := range 2 {
				if err := in.names(t, in.Network.WorkloadAddress(), i); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("%s does not close the connection: %v", netns.GatewayReplica(i), err)
				}
			}
		}, func(t *testing.T) { must(t, in.names(t, balancerAddress, 0)) })
	that(t, "a revocation closes relayed reverse tunnels at both gateways, and proves it", func(t *testing.T) {
		out, err := in.Exec(t.Context(), "edge", "revoke", world.Steal(t, edge).Subject.Node, in.Inspection())
		if err != nil || strings.Contains(out, "closed 0 connections") || strings.Count(out, " connections") < 2 {
			t.Errorf("%v: %s", err, out)
		}
		eventually(t, member.Unreachable)
	})
}

// knowClients returns nil once each gateway has a reverse tunnel, one of them a relayed one, and each record has the
// address of the client, or for a connection that is relayed, of the load balancer.
func (in *installation) knowClients() error {
	var all strings.Builder
	for i := range 2 {
		data, err := os.ReadFile(in.File(netns.GatewayReplica(i), "state", record.TunnelLog))
		if err != nil {
			return err
		}
		if !strings.Contains(string(data), `"owner":"tunnel"`) {
			return fmt.Errorf("%s has no reverse tunnel", netns.GatewayReplica(i))
		}
		all.Write(data)
	}
	if !strings.Contains(all.String(), `"owner":"relay"`) {
		return errors.New("no gateway has relayed a connection")
	}
	for line := range strings.Lines(all.String()) {
		peer := balancerAddress
		if strings.Contains(line, `"owner":"tunnel"`) {
			peer = clientAddress
		}
		if !strings.Contains(line, `"peer":"`+peer.String()+":") {
			return fmt.Errorf("the peer is not %s: %s", peer, line)
		}
	}
	return nil
}

func (in *installation) publicOf(gateway int) string {
	return netip.AddrPortFrom(in.Network.PublicAddress(gateway), netns.PublicPort).String()
}

// proxyHeader returns a PROXY header (version 1) of a client with a port.
func proxyHeader(port uint16) string {
	return fmt.Sprintf("PROXY TCP4 %s %s %d %d\r\n", clientAddress, balancerAddress, port, netns.PublicPort)
}

// connect connects to a gateway from an address of the workload network, and sends the header of a client.
func (in *installation) connect(from netip.Addr, gateway int, clientPort uint16) (conn net.Conn, err error) {
	dialer := net.Dialer{Timeout: closedWithin, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
	if err = in.Network.Workload.Do(func() error {
		conn, err = dialer.DialContext(context.Background(), "tcp", in.publicOf(gateway))
		return err
	}); err == nil {
		_, err = fmt.Fprint(conn, proxyHeader(clientPort))
	}
	return conn, err
}

// names returns nil if a gateway takes part in a TLS handshake with a client that names another address.
func (in *installation) names(t *testing.T, from netip.Addr, gateway int) error {
	t.Helper()
	conn, err := in.connect(from, gateway, 40000)
	must(t, err)
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(closedWithin))
	return tls.Client(conn, &tls.Config{
		ServerName: world.Domain.GatewayReplica(netns.GatewayReplica(gateway)), InsecureSkipVerify: true,
	}).HandshakeContext(t.Context())
}

// startBalancer starts a load balancer that connects every edge to the first gateway, so that this gateway relays the
// reverse tunnels to the other one.
func (in *installation) startBalancer(t *testing.T) {
	t.Helper()
	network := in.Network.Workload
	must(t, network.AddAddress(t.Context(), "work", netip.PrefixFrom(balancerAddress, 24)))
	listener, err := network.Listen(t.Context(), netip.AddrPortFrom(balancerAddress, netns.PublicPort).String())
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	must(t, network.SetHost(in.Network.PublicName, balancerAddress))
	var next atomic.Uint32
	go netns.ForwardAll(listener, func() (net.Conn, error) {
		return in.connect(balancerAddress, 0, uint16(20000+next.Add(1)))
	})
}
