package tunnels

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/sockets"
)

// TestWaitingTunnelsOfAStalledPathAreClosed has tunnels that come from three addresses. What came from the first one
// acknowledges all data and answers nothing, as a gateway that relays for edges while its Envoy is frozen.
func TestWaitingTunnelsOfAStalledPathAreClosed(t *testing.T) {
	needsRight(t)
	e := newEcho(t, "tcp4", "0.0.0.0:0")
	port := netip.MustParseAddrPort(e.Addr().String()).Port()
	b := newBed(t, t.TempDir())
	b.run(t)
	type place struct {
		wire
		from                              byte // last byte of the address
		node, id                          string
		usual, used, answers, late, close bool
	}
	write := func(p *place, event string) {
		l := line(event, p.remote.String(), p.local.String(), p.node, p.id, time.Now())
		if !p.usual {
			l = inLane(l)
		}
		b.write(t, l)
	}
	places := map[string]*place{
		"a lane in use without an answer":   {from: 2, node: "edge-1", id: idA, used: true},
		"a lane that waits":                 {from: 2, node: "edge-1", id: idA, close: true},
		"a usual tunnel that waits":         {from: 2, node: "edge-1", id: idA, usual: true, close: true},
		"another edge's lane that waits":    {from: 2, node: "edge-2", id: idA, close: true},
		"a lane in use with an answer":      {from: 2, node: "edge-1", id: idA, used: true, answers: true},
		"a lane that was opened later":      {from: 2, node: "edge-1", id: idA, late: true},
		"a lane of another cluster":         {from: 2, node: "edge-3", id: idB},
		"a lane from another address":       {from: 3, node: "edge-1", id: idA},
		"a lane in use that answers alone":  {from: 4, node: "edge-1", id: idA, used: true, answers: true},
		"a lane that waits beside that one": {from: 4, node: "edge-1", id: idA},
	}
	open := func(p *place) {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, p.from}), 0)
		conn := dialFrom(t, from, fmt.Sprintf("127.0.0.1:%d", port))
		server := <-e.accepted
		t.Cleanup(func() { _ = server.Close() })
		remote, local := server.RemoteAddr().(*net.TCPAddr), server.LocalAddr().(*net.TCPAddr)
		p.wire = wire{conn, server, remote.AddrPort(), local.AddrPort()}
		write(p, eventSetup)
	}
	early := 0
	for _, p := range places {
		if !p.late {
			open(p)
			early++
		}
	}
	inTable := func(n int) {
		t.Helper()
		eventually.True(t, patience, "all are in the table", func() error {
			if have := b.Stats().Tunnels; have != n {
				return fmt.Errorf("there are %d", have)
			}
			return nil
		})
	}
	inTable(early)
	time.Sleep(4 * stalledPrecision) // a tunnel without data since just before its use has none since its use
	began := time.Now()
	for _, p := range places {
		if !p.used {
			continue
		}
		write(p, eventHandoff)
		if _, err := p.server.Write([]byte("hello\n")); err != nil {
			t.Fatal(err)
		}
		if p.answers {
			if _, err := p.Write([]byte("hello\n")); err != nil {
				t.Fatal(err)
			}
		}
	}
	open(places["a lane that was opened later"])
	var kernel sockets.Kernel
	defer kernel.Close()
	closed := func(p *place) bool {
		_, err := kernel.Get(p.local, p.remote)
		if err != nil && !errors.Is(err, sockets.ErrGone) {
			t.Fatal(err)
		}
		return err != nil
	}
	eventually.True(t, patience, "the waiting tunnels are closed", func() error {
		for name, p := range places {
			if p.close && !closed(p) {
				return fmt.Errorf("%s is open", name)
			}
		}
		return nil
	})
	t.Logf("closed after %s", time.Since(began))
	time.Sleep(2 * usedInterval)
	for name, p := range places {
		if closed(p) != p.close {
			t.Errorf("%s: closed is %t", name, closed(p))
		}
	}
}

// TestStalled has first uses some time ago, and sockets of which the kernel says when data was last received.
func TestStalled(t *testing.T) {
	const s = time.Second
	for name, tt := range map[string]struct {
		used, received, rtt time.Duration
		want                bool
	}{
		"no answer":                        {used: 1500 * time.Millisecond, received: 9 * s, want: true},
		"an answer":                        {used: 1500 * time.Millisecond, received: 1400 * time.Millisecond},
		"an answer, within the precision":  {used: 1500 * time.Millisecond, received: 1510 * time.Millisecond},
		"no answer yet":                    {used: 900 * time.Millisecond, received: 9 * s},
		"no answer yet, on a long path":    {used: 1500 * time.Millisecond, received: 9 * s, rtt: 400 * time.Millisecond},
		"no answer on a long path":         {used: 2 * s, received: 9 * s, rtt: 400 * time.Millisecond, want: true},
		"in use, and the clock was set":    {used: 5 * s, received: 9 * s},
		"just used, and the clock was set": {used: -5 * s, received: 9 * s},
	} {
		u := use{&entry{}, time.Now().Add(-tt.used)}
		if got := u.stalled(sockets.Socket{RTT: tt.rtt, Received: tt.received}); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
