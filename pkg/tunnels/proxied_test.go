package tunnels

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/model"
)

// behindBalancer returns a bed of an Envoy, which is this process, whose connections have PROXY headers.
func behindBalancer(t *testing.T, e *echo) *bed {
	t.Helper()
	needsRight(t)
	b := newBed(t, t.TempDir())
	b.accountEvery = 150 * time.Millisecond
	b.config.Public, b.config.Writes = e.Addr().(*net.TCPAddr).AddrPort(), writesOf(good)
	b.config.Envoy = func() (int, error) { return os.Getpid(), nil }
	if err := b.Fresh(); err != nil {
		t.Fatal(err)
	}
	if err := b.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.run(t)
	b.completes(t)
	return b
}

// proxied returns an event of a tunnel with the addresses in its PROXY header.
func (w wire) proxied(t *testing.T, event string, client int, node, id string) string {
	t.Helper()
	raw, err := w.server.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var text string
	if err := raw.Control(func(fd uintptr) {
		text = strings.Replace(line(event, peerAt(client), "203.0.113.1:443", node, id, noon), `"fd":35`,
			fmt.Sprintf(`"fd":%d`, fd), 1)
	}); err != nil {
		t.Fatal(err)
	}
	return text
}

func TestTunnelsBehindABalancerAreFoundByTheirFileDescriptors(t *testing.T) {
	e := newEcho(t, "tcp", "127.0.0.1:0")
	b := behindBalancer(t, e)
	dial := func() wire { return e.dial(t, e.Addr().String()) }
	denied, kept, relay, unknown := dial(), dial(), dial(), dial()
	b.write(t, denied.proxied(t, eventSetup, 1, "edge-1", idA), kept.proxied(t, eventSetup, 2, "edge-2", idA))
	b.own(t, relay, 1)
	b.has(t, map[string]string{peerAt(1): "edge-1", peerAt(2): "edge-2"})
	isClosed(t, unknown) // it has no owner
	b.completes(t)
	for _, place := range b.Places() {
		if place.From.IsLoopback() {
			t.Errorf("the source of %s is the address of the balancer", place.Node)
		}
	}
	edge := model.EdgeRef{Node: "edge-1", ID: idA}
	if p := b.Prove(t.Context(), edge); p.Open != 1 || p.Incomplete != "" {
		t.Errorf("before the denial: %+v", p)
	}
	b.Deny(model.Denied{Edges: []model.EdgeRef{edge}})
	isCut(t, denied)
	eventually.True(t, patience, "it is proven", func() error {
		if p := b.Prove(t.Context(), edge); p.Open != 0 || p.Closed != 1 || !p.Denied {
			return fmt.Errorf("got %+v", p)
		}
		return nil
	})
	for what, w := range map[string]wire{"another tunnel": kept, "a relay": relay} {
		if err := w.answers(); err != nil {
			t.Errorf("%s is closed: %v", what, err)
		}
	}
	b.has(t, map[string]string{peerAt(2): "edge-2"})
	// A tunnel that ended without an event is removed.
	_ = kept.Close()
	_ = kept.server.Close()
	b.has(t, map[string]string{})
}

// TestATunnelBehindABalancerThatIsNotFoundFailsClosed: it has no owner, so it is closed.
func TestATunnelBehindABalancerThatIsNotFoundFailsClosed(t *testing.T) {
	e := newEcho(t, "tcp", "127.0.0.1:0")
	b := behindBalancer(t, e)
	w := e.dial(t, e.Addr().String())
	text := line(eventSetup, peerAt(1), "203.0.113.1:443", "edge-1", idA, noon)
	b.write(t, strings.Replace(text, `"fd":35`, `"fd":99999`, 1))
	isClosed(t, w)
}
