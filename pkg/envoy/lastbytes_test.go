package envoy_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/envoy"
)

// TestLastBytes has a server that closes its connection right after its last byte, and clients that read slowly: the
// whole answer is still inside of the Envoys when the server is gone. In a usual reverse tunnel the answer is shorter
// than the window of a stream: for longer ones Envoy 1.40 loses data as described in docs/decisions/0025-last-bytes.md.
func TestLastBytes(t *testing.T) {
	for name, of := range map[string]struct{ lanes, size, rounds int }{
		"usual": {0, 3 << 19, 5}, // 1.5 MiB; the kernel's own buffers are additional
		"lane":  {1, 11 << 20, 1},
	} {
		t.Run(name, func(t *testing.T) { lastBytes(t, of.lanes, of.size, of.rounds) })
	}
}

func lastBytes(t *testing.T, lanes, size, rounds int) {
	workload := newAuthority(t)
	hostname := "c1.prod." + string(domain)
	server := newClosingServer(t, workload, hostname, size)
	c1 := cluster(t, "c1", server.endpoint(t))
	in := newInstallation(t, 1, c1)
	in.workload = workload
	if lanes > 0 {
		in.withLanes(t, lanes)
	}
	edge := in.startDialling(t, c1, envoy.EdgeDial{Version: envoy.Current})
	g := in.gateways[0]
	for route, dial := range map[string]func() (net.Conn, error){
		"sni":     func() (net.Conn, error) { return net.Dial("tcp", g.bind.APIServer.String()) },
		"connect": func() (net.Conn, error) { return dialConnect(g, hostname) },
	} {
		t.Run("a slow client gets all that a server sent before it closed, by "+route, func(t *testing.T) {
			used := func() bool { return edge.Sum(t, `^http[.]tunnel[.]downstream_cx_http1_active$`) > 0 }
			for range rounds {
				// A connection in 16 uses no lane, and neither does one that comes before its edge has dialled another.
				conn := connectTo(t, dial, in, hostname)
				for deadline := time.Now().Add(envoytest.Patience); used() != (lanes > 0); {
					_ = conn.Close()
					if time.Now().After(deadline) {
						t.Fatal("no connection uses what it should")
					}
					envoytest.Eventually(t, "the lane of the closed connection ends", func() error {
						if used() {
							return errors.New("it is in use")
						}
						return nil
					})
					conn = connectTo(t, dial, in, hostname)
				}
				checkAllArrives(t, conn, size)
			}
		})
	}
}

// newClosingServer sends size bytes to every client that has sent one, and closes the connection at once.
func newClosingServer(t *testing.T, ca authority, hostname string, size int) *countingListener {
	t.Helper()
	config := serverConfig(ca.leaf(t, certs.Leaf{CommonName: "server", DNSNames: []string{hostname}, Server: true}))
	return newCountingListener(t, "tcp", "127.0.0.1:0", func(raw net.Conn) {
		conn := tls.Server(raw, config)
		defer conn.Close()
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			_, _ = conn.Write(make([]byte, size))
		}
	})
}

// connectTo returns a connection with the server as soon as there is a reverse tunnel, and closes it after the test.
func connectTo(t *testing.T, dial func() (net.Conn, error), in *installation, hostname string) *tls.Conn {
	t.Helper()
	var conn *tls.Conn
	envoytest.Eventually(t, "the server is connected", func() (err error) {
		conn, err = tryHello(dial, in, hostname)
		return err
	})
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// tryHello returns a connection with the server after the handshake.
func tryHello(dial func() (net.Conn, error), in *installation, hostname string) (*tls.Conn, error) {
	raw, err := dial()
	if err != nil {
		return nil, err
	}
	_ = raw.SetDeadline(time.Now().Add(envoytest.Patience))
	conn := tls.Client(raw, &tls.Config{RootCAs: in.workload.roots(), ServerName: hostname})
	if err := conn.Handshake(); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return conn, nil
}

func checkAllArrives(t *testing.T, conn *tls.Conn, size int) {
	t.Helper()
	_, err := conn.Write([]byte{0})
	got, buffer := 0, make([]byte, 64<<10)
	tick := time.NewTicker(10 * time.Millisecond) // 6 MB/s
	defer tick.Stop()
	for err == nil {
		var n int
		n, err = conn.Read(buffer)
		got += n
		<-tick.C
	}
	if !errors.Is(err, io.EOF) || got != size {
		t.Errorf("got %d of %d bytes, and then %v", got, size, err)
	}
}

// dialConnect opens a connection by the CONNECT route.
func dialConnect(g *gateway, hostname string) (net.Conn, error) {
	conn, err := net.Dial("tcp", g.bind.Connect.String())
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(envoytest.Patience))
	_, _ = fmt.Fprintf(conn, "CONNECT %s:6443 HTTP/1.1\r\nHost: %s:6443\r\n\r\n", hostname, hostname)
	// The server sends nothing before the client does, so nothing is read ahead.
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("CONNECT was answered with %d", response.StatusCode)
	}
	if err != nil {
		_ = conn.Close()
	}
	return conn, err
}
