package envoy_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestStreamsEndWithTheirEdge kills the only edge of a network. Its streams must end at once, in whatever state they
// are: an apiserver sets no deadline, and clients of SPDY do not notice everything. A request must be answered.
func TestStreamsEndWithTheirEdge(t *testing.T) {
	if !insideNamespace(t, "10.1.0.5/32") {
		return
	}
	const soon, streams = time.Second, 20
	const answer = 5 * time.Second // gatewayAttempts of gatewayTimeout, or lostAttempts of connectBackoff
	newCountingListener(t, "tcp", "10.1.0.5:7000", func(conn net.Conn) {
		defer conn.Close()
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			for more := true; more; more = lines.Text() == "flood" {
				if _, err := fmt.Fprintln(conn, "an answer"); err != nil {
					return
				}
			}
		}
	})
	egress := model.NewID()
	site := newSite("a1", "a", egress, []string{"10.1.0.0/16"})
	in, socket := newEgress(t, egress, site, site)
	open := func() (net.Conn, error) { return openStream(socket, "10.1.0.5:7000") }
	for state, line := range map[string]string{
		"new": "", "idle": "hello\n", "waiting for an answer": "no newline", "not read": "flood\n",
	} {
		t.Run(state, func(t *testing.T) {
			if took := fastest(soon, func() time.Duration {
				edge := in.startDialling(t, site, envoy.EdgeDial{Version: envoy.Current})
				var all []net.Conn
				envoytest.Eventually(t, "the network is reached", func() error {
					conn, err := open()
					if err == nil {
						all = append(all, conn)
					}
					return err
				})
				for range streams {
					conn, err := open()
					if err != nil {
						t.Fatal(err)
					}
					all = append(all, conn)
				}
				for _, conn := range all {
					defer conn.Close()
					if _, err := conn.Write([]byte(line)); err != nil {
						t.Fatal(err)
					}
				}
				begin := time.Now()
				edge.Kill()
				for _, conn := range all {
					if err := drained(conn, begin.Add(envoytest.Patience)); err != nil {
						t.Fatal(err)
					}
				}
				return time.Since(begin)
			}); took > soon {
				t.Errorf("the streams ended after %s", took)
			}
		})
	}
	t.Run("an answer without an edge", func(t *testing.T) {
		if took := fastest(answer, func() time.Duration {
			begin := time.Now()
			if conn, err := open(); err == nil {
				conn.Close()
				t.Error("a stream was opened")
			}
			return time.Since(begin)
		}); took > answer {
			t.Errorf("it took %s", took)
		}
	})
}

// newEgress starts an installation with one gateway, and the Envoy beside an apiserver whose scope is a network. It
// returns the socket at which that Envoy answers.
func newEgress(t *testing.T, egress string, site, scope model.WorkloadCluster) (in *installation, socket string) {
	t.Helper()
	in = newInstallation(t, 1, site)
	g := in.gateways[0]
	g.bind.Version = envoy.Current
	g.agent.scopes = append(g.agent.scopes, envoy.NetworkScope(in.Installation, egress, []model.WorkloadCluster{scope}))
	g.deny(t, in, model.Denied{})
	socket = filepath.Join(envoytest.Dir(t), "egress.sock")
	in.startDialling(
		t, model.WorkloadCluster{ID: egress, Egress: true}, envoy.EdgeDial{Version: envoy.Current, Socket: socket},
	)
	return in, socket
}

// openStream opens a stream through the Unix socket of the Envoy beside an apiserver.
func openStream(socket, authority string) (net.Conn, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(envoytest.Patience))
	fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", authority)
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
	if err == nil && response.StatusCode != http.StatusOK {
		reason, _ := io.ReadAll(io.LimitReader(response.Body, 1024)) // Envoy names the reason
		err = fmt.Errorf("%s: %s", response.Status, reason)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// opens opens a stream and closes it.
func opens(socket, authority string) error {
	conn, err := openStream(socket, authority)
	if err == nil {
		_ = conn.Close()
	}
	return err
}

// drained reads a connection to its end.
func drained(conn net.Conn, deadline time.Time) error {
	_ = conn.SetReadDeadline(deadline)
	data := make([]byte, 64<<10)
	for {
		if _, err := conn.Read(data); errors.Is(err, os.ErrDeadlineExceeded) {
			return errors.New("a stream is open")
		} else if err != nil {
			return nil
		}
	}
}

// answerLines answers each line of each client.
func answerLines(t *testing.T, at string) {
	t.Helper()
	newCountingListener(t, "tcp", at, func(conn net.Conn) {
		defer conn.Close()
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			fmt.Fprintln(conn, lines.Text())
		}
	})
}

// answers sends a line through a stream, and returns an error if it does not come back.
func answers(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(envoytest.Patience))
	if _, err := fmt.Fprintln(conn, "hello"); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 64))
	return err
}

// TestNoRequestFailsWhileAnEdgeIsKilled kills one of two edges of a network while clients open streams. One of two
// addresses of the gateways refuses connections. A request whose reverse tunnel ends before its answer is repeated.
func TestNoRequestFailsWhileAnEdgeIsKilled(t *testing.T) {
	if !insideNamespace(t, "10.1.0.5/32") {
		return
	}
	const clients = 16
	answerLines(t, "10.1.0.5:7000")
	egress := model.NewID()
	site := newSite("a1", "a", egress, []string{"10.1.0.0/16"})
	in, socket := newEgress(t, egress, site, site)
	first := in.startDialling(t, site, envoy.EdgeDial{Version: envoy.Current})
	in.startDialling(t, site, envoy.EdgeDial{Version: envoy.Current})
	envoytest.Eventually(t, "the network is reached", func() error { return opens(socket, "10.1.0.5:7000") })
	envoytest.Eventually(t, "both edges have reverse tunnels", func() error {
		if n := in.public.count.Load(); n < 4 {
			return fmt.Errorf("%d were dialled", n)
		}
		return nil
	})
	var running sync.WaitGroup
	var requests, longest atomic.Int64
	end := time.Now().Add(2 * time.Second)
	for range clients {
		running.Go(func() {
			for began := time.Now(); began.Before(end); began = time.Now() {
				if err := opens(socket, "10.1.0.5:7000"); err != nil {
					t.Errorf("a request failed: %v", err)
				}
				requests.Add(1)
				if took := int64(time.Since(began)); took > longest.Load() {
					longest.Store(took)
				}
			}
		})
	}
	time.Sleep(time.Second)
	first.Kill()
	running.Wait()
	t.Logf("%d requests, the longest took %s", requests.Load(), time.Duration(longest.Load()))
}

// TestFirstRequestsOfADestination opens streams to many destinations, each by several clients at once. An edge that has
// not dialled a destination yet must not reject any of them.
func TestFirstRequestsOfADestination(t *testing.T) {
	if !insideNamespace(t, "10.1.0.5/16") {
		return
	}
	const clients, destinations, together = 16, 500, 10
	answerLines(t, "0.0.0.0:7000")
	egress := model.NewID()
	site := newSite("a1", "a", egress, []string{"10.1.0.0/16"})
	in, socket := newEgress(t, egress, site, site)
	in.startDialling(t, site, envoy.EdgeDial{Version: envoy.Current})
	envoytest.Eventually(t, "the network is reached", func() error { return opens(socket, "10.1.0.5:7000") })
	var running sync.WaitGroup
	for i := range destinations {
		at := fmt.Sprintf("10.1.%d.%d:7000", 1+i/250, 1+i%250)
		for range clients {
			running.Go(func() {
				if err := opens(socket, at); err != nil {
					t.Errorf("destination %d: %v", i, err)
				}
			})
		}
		if i%together == together-1 {
			running.Wait()
		}
	}
}
