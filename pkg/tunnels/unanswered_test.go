package tunnels

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/pkg/sockets"
)

// losePackets has the kernel drop every packet that arrives at a connection, so that it acknowledges nothing.
func losePackets(t *testing.T, conn net.Conn) {
	t.Helper()
	all, err := bpf.RetConstant{Val: 0}.Assemble()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	filter := unix.SockFprog{Len: 1, Filter: &unix.SockFilter{Code: all.Op, Jt: all.Jt, Jf: all.Jf, K: all.K}}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &filter)
	}); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
}

// TestDeadLanesAreClosed has four edges that acknowledge nothing any more, and one that does not read: of these, only
// the lane in use is closed whose data waits for an acknowledgement.
func TestDeadLanesAreClosed(t *testing.T) {
	needsRight(t)
	e := newEcho(t, "tcp4", "127.0.0.1:0")
	b := newBed(t, t.TempDir())
	b.run(t)
	type place struct {
		wire
		lane, used, dead, sends, closes bool
	}
	places := map[string]*place{
		"a lane in use":                   {lane: true, used: true, dead: true, sends: true, closes: true},
		"a lane in use without data":      {lane: true, used: true, dead: true},
		"a lane that waits":               {lane: true, dead: true, sends: true},
		"a usual tunnel":                  {used: true, dead: true, sends: true},
		"a lane whose edge does not read": {lane: true, used: true, sends: true},
	}
	for name, p := range places {
		p.wire = e.dial(t, e.Addr().String())
		node := fmt.Sprintf("edge-%d", len(name))
		of := func(event string) string {
			line := p.event(event, node, idA)
			if p.lane {
				line = inLane(line)
			}
			return line
		}
		b.write(t, of(eventSetup))
		if p.used {
			b.write(t, of(eventHandoff))
		}
	}
	for deadline := time.Now().Add(10 * time.Second); b.Stats().Tunnels < len(places); {
		if time.Sleep(50 * time.Millisecond); time.Now().After(deadline) {
			t.Fatalf("%d tunnels are in the table", b.Stats().Tunnels)
		}
	}
	began := time.Now()
	for _, p := range places {
		if p.dead {
			losePackets(t, p.Conn)
		}
		if p.sends {
			_ = p.server.SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = p.server.Write(make([]byte, 64<<20)) // more than fits into all buffers
		}
	}
	var kernel sockets.Kernel
	defer kernel.Close()
	closed := func(p *place) bool {
		_, err := kernel.Get(sockets.Plain(p.local), sockets.Plain(p.remote))
		if err != nil && !errors.Is(err, sockets.ErrGone) {
			t.Fatal(err)
		}
		return err != nil
	}
	for !closed(places["a lane in use"]) {
		if time.Sleep(100 * time.Millisecond); time.Since(began) > 30*time.Second {
			t.Fatal("a dead lane is still open")
		}
	}
	t.Logf("closed after %s", time.Since(began))
	time.Sleep(2 * usedInterval)
	for name, p := range places {
		if closed(p) != p.closes {
			t.Errorf("%s: closed is %t", name, closed(p))
		}
	}
}
