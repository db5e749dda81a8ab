package envoy_test

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestClientConnectionsEndWithTheirTunnel has clients with an open connection each, and ends the edge that
// carries it: a client that waits for an answer must be disconnected at once, so that it can retry.
func TestClientConnectionsEndWithTheirTunnel(t *testing.T) {
	const soon = 700 * time.Millisecond // Envoy's delayed_close_timeout is 1 s by default
	workload := newAuthority(t)
	hostname := "c1.prod." + string(domain)
	server := newClosingServer(t, workload, hostname, 1)
	c1 := cluster(t, "c1", server.endpoint(t))
	in := newInstallation(t, 1, c1)
	in.workload = workload
	g := in.gateways[0]
	for route, dial := range map[string]func() (net.Conn, error){
		"sni":     func() (net.Conn, error) { return net.Dial("tcp", g.bind.APIServer.String()) },
		"connect": func() (net.Conn, error) { return dialConnect(g, hostname) },
	} {
		t.Run(route, func(t *testing.T) {
			if took := fastest(soon, func() time.Duration {
				edge := in.startEdge(t, c1)
				conn := connectTo(t, dial, in, hostname)
				begin := time.Now()
				edge.Kill()
				_ = conn.SetDeadline(begin.Add(envoytest.Patience))
				_, err := conn.Read(make([]byte, 1))
				took := time.Since(begin)
				if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatalf("it was not closed: %v", err)
				}
				t.Logf("after %s: %v", took, err)
				return took
			}); took > soon {
				t.Errorf("it was closed after %s", took)
			}
		})
	}
}
