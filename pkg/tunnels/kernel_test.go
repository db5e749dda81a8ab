package tunnels

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/sockets"
)

// echo is a gateway: it keeps the connections that it accepts, and echoes their data.
type echo struct {
	net.Listener
	accepted chan net.Conn
}

func newEcho(t testing.TB, network, address string) *echo {
	t.Helper()
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{listener, make(chan net.Conn)}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			e.accepted <- conn
			go func() {
				defer conn.Close()
				for lines := bufio.NewReader(conn); ; {
					line, err := lines.ReadString('\n')
					if err != nil {
						return
					}
					if _, err := conn.Write([]byte(line)); err != nil {
						return
					}
				}
			}()
		}
	}()
	return e
}

// wire is one connection to an echo.
type wire struct {
	net.Conn
	server        net.Conn
	remote, local netip.AddrPort // from the gateway's view
}

func (e *echo) dial(t testing.TB, address string) wire {
	t.Helper()
	conn := dialFrom(t, netip.AddrPort{}, address)
	server := <-e.accepted
	t.Cleanup(func() { _ = server.Close() })
	return wire{conn, server, server.RemoteAddr().(*net.TCPAddr).AddrPort(), server.LocalAddr().(*net.TCPAddr).AddrPort()}
}

// answers returns nil if the connection works.
func (w wire) answers() error {
	if _, err := w.Write([]byte("hello\n")); err != nil {
		return err
	}
	_, err := bufio.NewReader(w).ReadString('\n')
	return err
}

func (w wire) event(name, node, id string) string {
	return line(name, w.remote.String(), w.local.String(), node, id, noon)
}

var networks = map[string]struct{ network, listen, dial string }{
	"IPv4":                       {"tcp4", "127.0.0.1:0", "127.0.0.1"},
	"IPv6":                       {"tcp6", "[::1]:0", "::1"},
	"IPv4 by a listener of IPv6": {"tcp", "[::]:0", "127.0.0.1"},
}

// needsRight skips a test that closes connections if the kernel does not permit it. If E2E_REQUIRED is set, the test
// fails instead.
func needsRight(t testing.TB) {
	t.Helper()
	switch err := sockets.Permitted(); {
	case err != nil && os.Getenv("E2E_REQUIRED") != "":
		t.Fatalf("closing connections: %v", err)
	case err != nil:
		t.Skipf("can't close connections here: %v", err)
	}
}

func TestDenyClosesExactlyTheDeniedConnections(t *testing.T) {
	needsRight(t)
	for name, n := range networks {
		for _, logged := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, the gateway's address in the log: %t", name, logged), func(t *testing.T) {
				e := newEcho(t, n.network, n.listen)
				_, port, _ := net.SplitHostPort(e.Addr().String())
				address := net.JoinHostPort(n.dial, port)
				b := newBed(t, t.TempDir())
				b.run(t)
				tunnel := func(node, id string) wire {
					w := e.dial(t, address)
					if !logged {
						w.local = netip.AddrPort{}
						b.write(t, line(eventSetup, w.remote.String(), "", node, id, noon))
					} else {
						b.write(t, w.event(eventSetup, node, id))
					}
					return w
				}
				denied := []wire{tunnel("edge-1", idA), tunnel("edge-1", idA), tunnel("edge-2", idB)}
				// An edge of another tunnel with the same node name is another edge.
				spared := []wire{tunnel("edge-3", idA), tunnel("edge-1", idC), e.dial(t, address)}
				eventually.True(t, patience, "all are in the table", func() error {
					if n := b.Stats().Tunnels; n != 5 {
						return fmt.Errorf("there are %d", n)
					}
					return nil
				})
				for _, w := range append(spared, denied...) {
					if err := w.answers(); err != nil {
						t.Fatal(err)
					}
				}
				b.Deny(
					model.Denied{Edges: []model.EdgeRef{{Node: "edge-1", ID: idA}, {Node: "edge-9", ID: idA}}, IDs: []string{idB}},
				)
				isCut(t, denied...)
				later := tunnel("edge-9", idA)
				isCut(t, later)
				for _, w := range spared {
					if err := w.answers(); err != nil {
						t.Errorf("a connection of others was cut: %v", err)
					}
				}
				eventually.True(t, patience, "they are not in the table", func() error {
					if s := b.Stats(); s != (Stats{Tunnels: 2, Cut: 4}) {
						return fmt.Errorf("got %+v", s)
					}
					return nil
				})
				if got := b.log.Count("tunnel closed"); got != 4 {
					t.Errorf("%d cuts are in the log", got)
				}
				b.Deny(model.Denied{})
				back := tunnel("edge-1", idA)
				eventually.True(t, patience, "it is in the table", func() error {
					if n := b.Stats().Tunnels; n != 3 {
						return fmt.Errorf("there are %d", n)
					}
					return nil
				})
				if err := back.answers(); err != nil {
					t.Errorf("an edge that is not denied any more was cut: %v", err)
				}
			})
		}
	}
}

// isCut waits until the connections are reset.
func isCut(t *testing.T, wires ...wire) {
	t.Helper()
	for _, w := range wires {
		eventually.True(t, patience, "the connection ends", func() error {
			if err := w.answers(); err == nil {
				return errors.New("it is alive")
			}
			return nil
		})
	}
}

func TestTunnelsWithoutASocketAreRemoved(t *testing.T) {
	e := newEcho(t, "tcp", "127.0.0.1:0")
	b := newBed(t, t.TempDir())
	b.run(t)
	lost, kept := e.dial(t, e.Addr().String()), e.dial(t, e.Addr().String())
	b.write(t, lost.event(eventSetup, "edge-1", idA), kept.event(eventSetup, "edge-2", idA))
	b.has(t, map[string]string{lost.remote.String(): "edge-1", kept.remote.String(): "edge-2"})
	_ = lost.Close()
	_ = lost.server.Close()
	b.has(t, map[string]string{kept.remote.String(): "edge-2"})
}

func TestAStartingAgentRecordsOnlyOpenTunnels(t *testing.T) {
	e := newEcho(t, "tcp", "127.0.0.1:0")
	dir := t.TempDir()
	b := newBed(t, dir)
	gone, kept := e.dial(t, e.Addr().String()), e.dial(t, e.Addr().String())
	b.write(t, gone.event(eventSetup, "edge-1", idA), kept.event(eventSetup, "edge-2", idA))
	_ = gone.Close()
	_ = gone.server.Close()
	b.poll(noon)
	if all, version := b.Snapshot(); version != 0 {
		t.Fatalf("known before the kernel was asked: %+v", all)
	}
	b.publish()
	want := map[string]string{kept.remote.String(): "edge-2"}
	b.has(t, want)

	t.Run("also if none is there any more", func(t *testing.T) {
		_ = kept.Close()
		_ = kept.server.Close()
		b := newBed(t, dir)
		b.run(t)
		b.has(t, map[string]string{})
	})
	t.Run("but nothing is concluded in another network namespace", func(t *testing.T) {
		_ = e.Close()
		b := newBed(t, dir)
		b.run(t)
		b.has(t, map[string]string{gone.remote.String(): "edge-1", kept.remote.String(): "edge-2"})
		if b.log.Count("no tunnel socket found") != 1 {
			t.Errorf("it is not said:\n%s", b.log.String())
		}
	})
}

// TestAReusedAddressIsNotClosed has a second connection with both addresses of the first.
func TestAReusedAddressIsNotClosed(t *testing.T) {
	needsRight(t)
	e := newEcho(t, "tcp", "127.0.0.1:0")
	b := newBed(t, t.TempDir())
	first := e.dial(t, e.Addr().String())
	b.write(t, first.event(eventSetup, "edge-1", idA))
	b.poll(noon)
	b.publish()
	b.bind()
	_ = first.Conn.(*net.TCPConn).SetLinger(0) // no TIME_WAIT
	_ = first.Close()
	_ = first.server.Close()
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(first.remote)}
	conn, err := dialer.Dial("tcp", e.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	second := wire{Conn: conn, server: <-e.accepted}
	t.Cleanup(func() { _ = second.server.Close() })

	b.Deny(model.Denied{Edges: []model.EdgeRef{{Node: "edge-1", ID: idA}}})
	if left := b.closeDenied(); left != 0 {
		t.Errorf("%d are still to be cut", left)
	}
	if err := second.answers(); err != nil {
		t.Errorf("a connection that is no tunnel was cut: %v", err)
	}
	b.has(t, map[string]string{})
}
