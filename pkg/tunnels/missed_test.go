package tunnels

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/eventually"
)

// counted is a bed with an Envoy that counts, and a tunnel that shows where they come in.
func counted(t *testing.T, e *echo, others *atomic.Int32) *bed {
	t.Helper()
	b := newBed(t, t.TempDir())
	b.countEvery = 20 * time.Millisecond
	b.config.Others = func(context.Context) (int, error) {
		if n := others.Load(); n >= 0 {
			return int(n), nil
		}
		return 0, errors.New("Envoy does not answer")
	}
	b.run(t)
	w := e.dial(t, e.Addr().String())
	b.write(t, w.event(eventSetup, "edge-1", idA))
	b.has(t, map[string]string{w.remote.String(): "edge-1"})
	t.Cleanup(func() {
		if err := w.answers(); err != nil {
			t.Errorf("a tunnel that is in the table: %v", err)
		}
	})
	return b
}

func TestTunnelsThatAreMissingAreCounted(t *testing.T) {
	needsRight(t)
	var others atomic.Int32
	others.Store(2)
	e := newEcho(t, "tcp", "127.0.0.1:0")
	b := counted(t, e, &others)
	var wires []wire
	missing := func(want int) {
		t.Helper()
		eventually.True(t, patience, "they are counted", func() error {
			if got := b.Stats().Missed; got != want {
				return fmt.Errorf("%d are missing, want %d", got, want)
			}
			return nil
		})
	}
	for range 3 { // two of them are passed on, the events of one were lost
		wires = append(wires, e.dial(t, e.Addr().String()))
	}
	missing(1)
	for range 2 {
		wires = append(wires, e.dial(t, e.Addr().String()))
	}
	missing(3)
	if b.log.count("tunnels are missing in the table") == 0 {
		t.Error("it does not say so")
	}
	for _, w := range wires {
		if err := w.answers(); err != nil {
			t.Errorf("one was cut, though nobody knows which is a tunnel: %v", err)
		}
		b.write(t, w.event(eventHandoff, "edge-2", idA)) // they are used
	}
	others.Store(0)
	missing(0)
}

func TestTunnelsThatAreMissingAreCutIfTheyAreAllThereIs(t *testing.T) {
	needsRight(t)
	var others atomic.Int32
	e := newEcho(t, "tcp", "127.0.0.1:0")
	b := counted(t, e, &others)
	elsewhere := newEcho(t, "tcp", "127.0.0.1:0")
	spared := elsewhere.dial(t, elsewhere.Addr().String())
	lost := e.dial(t, e.Addr().String())
	eventually.True(t, patience, "it is cut", func() error {
		_ = lost.SetDeadline(time.Now().Add(time.Second))
		if err := lost.answers(); err == nil || isTimeout(err) {
			return errors.New("it is there still")
		}
		return nil
	})
	if err := spared.answers(); err != nil {
		t.Errorf("a connection of another port: %v", err)
	}
	if n := b.log.count("cut a tunnel whose events were lost"); n != 1 {
		t.Errorf("it says so %d times", n)
	}
}

// TestTheSamePortOfAnotherAddressIsSomebodyElses has another program listen there, in the network namespace of the gateway.
func TestTheSamePortOfAnotherAddressIsSomebodyElses(t *testing.T) {
	needsRight(t)
	var others atomic.Int32
	e := newEcho(t, "tcp", "127.0.0.1:0")
	b := counted(t, e, &others)
	neighbour := newEcho(t, "tcp", fmt.Sprintf("127.0.0.2:%d", e.Addr().(*net.TCPAddr).Port))
	spared := neighbour.dial(t, neighbour.Addr().String())
	others.Store(1) // nothing is cut, what is counted can be seen
	counted, lost := e.dial(t, e.Addr().String()), e.dial(t, e.Addr().String())
	eventually.True(t, patience, "the lost one is counted", func() error {
		if got := b.Stats().Missed; got != 1 {
			return fmt.Errorf("%d are missing", got)
		}
		return nil
	})
	others.Store(0)
	eventually.True(t, patience, "they are cut", func() error {
		for _, w := range []wire{counted, lost} {
			_ = w.SetDeadline(time.Now().Add(time.Second))
			if err := w.answers(); err == nil || isTimeout(err) {
				return errors.New("one is there still")
			}
		}
		return nil
	})
	eventually.True(t, patience, "nothing is missing", func() error {
		if got := b.Stats().Missed; got != 0 {
			return fmt.Errorf("%d are", got)
		}
		return nil
	})
	if err := spared.answers(); err != nil {
		t.Errorf("a connection of somebody else was cut: %v", err)
	}
}

func TestNothingIsMissingWhileEnvoyDoesNotSay(t *testing.T) {
	needsRight(t)
	b, k := newBed(t, t.TempDir()), kernel{}
	defer k.close()
	e := newEcho(t, "tcp", "127.0.0.1:0")
	w := e.dial(t, e.Addr().String())
	b.locals[w.local] = true
	said := []error{nil, nil, errors.New("it is busy"), nil, nil, nil, nil, nil, nil}
	b.config.Others = func(context.Context) (int, error) {
		err := said[0]
		said = said[1:]
		return 0, err
	}
	m := &missed{}
	defer m.kernel.close()
	for i, want := range []int{0, 0, 0, 1, 2} { // the first of each row only learns what is there
		b.look(t.Context(), m)
		if n := len(m.found); n != want {
			t.Fatalf("after %d looks %d have found it, want %d", i+1, n, want)
		}
	}
	if err := w.answers(); err != nil {
		t.Errorf("it was cut too early: %v", err)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// TestEnvoyCountsWhatIsNoTunnel has the table know but one of four tunnels of a real Envoy.
func TestEnvoyCountsWhatIsNoTunnel(t *testing.T) {
	needsRight(t)
	l := newLab(t, "127.0.0.1", "127.0.0.1", false)
	whole, stop := l.table(t)
	waitForTunnels(t, whole, map[string]int{"edge-1": 2, "edge-2": 2})
	used := l.client(t, l.Tunnels[1])
	stop()

	b := newBed(t, t.TempDir())
	b.countEvery = 300 * time.Millisecond
	b.config.Others = func(ctx context.Context) (n int, err error) {
		for _, state := range []string{"pre_cx", "cx"} {
			var answer string
			answer, err = l.gateway.Admin(ctx, http.MethodGet, fmt.Sprintf("/stats?filter=^listener.127.0.0.1_%d.downstream_%s_active$", l.Public, state))
			var one int
			_, scanErr := fmt.Sscan(answer[strings.LastIndexByte(answer, ':')+1:], &one)
			n, err = n+one, errors.Join(err, scanErr)
		}
		return n, err
	}
	known, _ := whole.Snapshot()
	peer, local, _ := strings.Cut(known[0].Key, ">")
	silent, err := net.Dial("tcp", l.address())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	b.write(t, line(eventSetup, peer, local, known[0].Node, known[0].ID, noon))
	b.run(t)
	eventually.True(t, patience, "three are missing", func() error {
		if n := b.Stats().Missed; n != 3 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	if err := used.answers(); err != nil {
		t.Errorf("one was cut while a connection could be one: %v", err)
	}
	_ = silent.Close()
	eventually.True(t, patience, "they are cut", func() error {
		if n := b.log.count("cut a tunnel whose events were lost"); n < 3 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
}

func (l *lab) address() string { return net.JoinHostPort(l.Address, strconv.Itoa(l.Public)) }
