package envoy_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/envoy"
)

// TestManyClientsComeAndGo has clients that connect, disconnect and connect again, as fast as they can. None may notice
// the others. Three defects of Envoy 1.40 would show: it may lose a connection that it accepts while a reverse tunnel
// ends (docs/decisions/0023-client-first-message.md), or one that it opens then because there is no free lane (package
// lane), and an edge would close a reverse tunnel in which 1,000 clients have disconnected first (multiplex.Edge).
func TestManyClientsComeAndGo(t *testing.T) {
	const atOnce = 8
	// Without lanes, more than 1,000 clients share a reverse tunnel.
	for lanes, each := range []int{250, 150} {
		t.Run(fmt.Sprintf("%d lanes", lanes), func(t *testing.T) {
			workload := newAuthority(t)
			hostname := "c1.prod." + string(domain)
			c1 := cluster(t, "c1", newClosingServer(t, workload, hostname, 1).endpoint(t))
			in := newInstallationOf(t, envoy.BootstrapConfig{ClusterStatistics: true}, 1, c1)
			in.workload = workload
			in.withLanes(t, lanes)
			in.startDialling(t, c1, envoy.EdgeDial{Version: envoy.Current})
			g := in.gateways[0]
			for route, dial := range map[string]func() (net.Conn, error){
				"sni":     func() (net.Conn, error) { return net.Dial("tcp", g.bind.APIServer.String()) },
				"connect": func() (net.Conn, error) { return dialConnect(g, hostname) },
			} {
				connectTo(t, dial, in, hostname)
				var failed atomic.Int32
				var last atomic.Value
				var clients sync.WaitGroup
				begin := time.Now()
				for range atOnce {
					clients.Go(func() {
						for range each {
							conn, err := tryHello(dial, in, hostname)
							if err != nil {
								failed.Add(1)
								last.Store(err.Error())
								continue
							}
							_ = conn.NetConn().Close()
						}
					})
				}
				clients.Wait()
				if n := failed.Load(); n > 0 {
					t.Errorf("by %s, %d of %d connections failed, the last one with: %s", route, n, atOnce*each, last.Load())
				}
				t.Logf("by %s: %d connections in %s", route, atOnce*each, time.Since(begin))
			}
			// A client that waits for an attempt which Envoy has lost is served after the timeout, so it does not fail.
			stats, err := g.Admin(t.Context(), http.MethodGet, "/stats?usedonly&filter=upstream_cx_(total|connect_timeout)")
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(stats, hostname+".upstream_cx_total") ||
				strings.Contains(stats, "upstream_cx_connect_timeout") {
				t.Errorf("attempts to get a reverse tunnel have timed out:\n%s", stats)
			}
		})
	}
}
