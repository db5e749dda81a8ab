package envoy_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	upstreamhttpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestAnIdleEdgeCostsLittle has an edge with two gateways whose tunnels were used. Only the time after which a gateway
// closes a tunnel without connections is shorter than in reality. All pings and keepalive probes have their real
// intervals, and the kernel counts them.
func TestAnIdleEdgeCostsLittle(t *testing.T) {
	t.Parallel()
	const (
		// 20 MB with the headers of IP and TCP, and what one probe more in each connection adds to so short a span
		dailyLimit = 25e6
		shorter    = 30 // how much shorter that time is
		settled    = 2 * time.Second
		span       = 20 * time.Second
	)
	workload := newAuthority(t)
	in := newInstallation(t, 2, idleClusters(t, 1, workload)...)
	in.workload = workload
	var unusedAfter time.Duration
	for _, g := range in.gateways {
		unusedAfter = shortenUse(t, g.agent.clusters, shorter)
		g.deny(t, in, model.Denied{})
	}
	b := newBalancer(t, in, 0, 0)
	in.startEdges(t, b)
	tunnels, dialled, host := b.open.Load(), b.count.Load(), in.clusters[0].Hostname
	for _, g := range in.gateways {
		works(t, in.getBySNI, g, host, "api "+host)
		works(t, in.getByConnect, g, host, "api "+host)
		in.survivesSilence(t, g, host, 2*unusedAfter)
	}
	envoytest.Eventually(t, "the tunnels that were used are replaced", func() error {
		if open, again := b.open.Load(), b.count.Load()-dialled; open != tunnels || again < int64(len(in.gateways)) {
			return fmt.Errorf("%d of %d are open, %d were dialled again", open, tunnels, again)
		}
		return nil
	})

	time.Sleep(settled) // the last handshakes
	dialled = b.count.Load()
	before := b.onTheWire(t)
	time.Sleep(span)
	daily := float64(b.onTheWire(t)-before) * (24 * time.Hour).Seconds() / span.Seconds()
	t.Logf("%.1f MB a day", daily/1e6)
	if daily > dailyLimit || daily == 0 {
		t.Errorf("want some, and at most %.1f", dailyLimit/1e6)
	}
	if n := b.count.Load() - dialled; n > 0 {
		t.Errorf("an idle edge has dialled %d tunnels", n)
	}
}

// shortenUse divides the time after which a gateway closes a tunnel without connections, and returns the new time.
func shortenUse(t *testing.T, clusters []types.Resource, by time.Duration) (unusedAfter time.Duration) {
	t.Helper()
	const protocols = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
	for _, resource := range clusters {
		c, ok := resource.(*clusterv3.Cluster)
		if !ok || c.GetClusterType() == nil {
			continue // no tunnel
		}
		options := &upstreamhttpv3.HttpProtocolOptions{}
		if err := c.TypedExtensionProtocolOptions[protocols].UnmarshalTo(options); err != nil {
			t.Fatal(err)
		}
		unusedAfter = options.GetCommonHttpProtocolOptions().GetIdleTimeout().AsDuration() / by
		if unusedAfter == 0 {
			t.Fatalf("Envoy cluster %s keeps unused tunnels for Envoy's default time", c.GetName())
		}
		options.CommonHttpProtocolOptions.IdleTimeout = durationpb.New(unusedAfter)
		packed, err := anypb.New(options)
		if err != nil {
			t.Fatal(err)
		}
		c.TypedExtensionProtocolOptions[protocols] = packed
	}
	if unusedAfter == 0 {
		t.Fatal("there is no Envoy cluster of a tunnel")
	}
	return unusedAfter
}

// survivesSilence fails the test if a client's connection without data ends, or is not served afterwards.
func (in *installation) survivesSilence(t *testing.T, g *gateway, host string, silence time.Duration) {
	t.Helper()
	conn, err := tls.Dial("tcp", g.bind.APIServer.String(), &tls.Config{RootCAs: in.workload.roots(), ServerName: host})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	time.Sleep(silence)
	_ = conn.SetDeadline(time.Now().Add(envoytest.Patience))
	fmt.Fprintf(conn, "GET / HTTP/1.0\r\n\r\n")
	if answer, err := io.ReadAll(conn); err != nil || len(answer) == 0 {
		t.Errorf("after a silence of %s: got %q (%v)", silence, answer, err)
	}
}

// onTheWire returns the number of bytes, in both directions, that the open connections of edges would have exchanged
// without a balancer: data, and the headers of IPv4 and TCP of each packet. Keepalive probes of gateways are on the
// balancer's other connections.
func (b *balancer) onTheWire(t *testing.T) (n int64) {
	t.Helper()
	const headers = 20 + 20 + 12 // IPv4, TCP, and its time stamps
	b.mu.Lock()
	defer b.mu.Unlock()
	for from, to := range b.conns {
		edge, gateway := tcpInfo(t, from), tcpInfo(t, to)
		n += int64(edge.Bytes_acked+edge.Bytes_received) + headers*int64(edge.Segs_in+edge.Segs_out)
		n += headers * int64(gateway.Segs_in+gateway.Segs_out-gateway.Data_segs_in-gateway.Data_segs_out)
	}
	return n
}

// tcpInfo returns what the kernel has counted on a connection.
func tcpInfo(t *testing.T, conn net.Conn) *unix.TCPInfo {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	var failed error
	err = raw.Control(func(fd uintptr) {
		info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	if err != nil || failed != nil {
		t.Fatalf("reading what the kernel has counted: %v, %v", err, failed)
	}
	return info
}
