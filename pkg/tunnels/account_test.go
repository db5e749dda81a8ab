package tunnels

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/tunnels/ledger"
)

// accounted returns a bed whose record is compared with the sockets of a listener.
func accounted(t *testing.T, e *echo, writes func() (Writes, error)) *bed {
	t.Helper()
	needsRight(t)
	b := newBed(t, t.TempDir())
	b.accountEvery = 150 * time.Millisecond
	b.config.Public = e.Addr().(*net.TCPAddr).AddrPort()
	b.config.Writes = writesOf(writes)
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

func writesOf(writes func() (Writes, error)) func(context.Context) (Writes, error) {
	return func(context.Context) (Writes, error) { return writes() }
}

func good() (Writes, error) { return Writes{}, nil }

func (b *bed) completes(t *testing.T) {
	t.Helper()
	eventually.True(t, patience, "the record is complete", func() error {
		if why := b.Stats().Incomplete; why != "" {
			return errors.New(why)
		}
		return nil
	})
}

func (b *bed) isIncomplete(t *testing.T, logLimit string) {
	t.Helper()
	eventually.True(t, patience, "the record is incomplete", func() error {
		if why := b.Stats().Incomplete; !strings.Contains(why, logLimit) {
			return fmt.Errorf("got %q", why)
		}
		return nil
	})
}

// own writes the record of a connection that Envoy forwards.
func (b *bed) own(t *testing.T, w wire, connection int) {
	t.Helper()
	b.write(t, passed("relay", eventStart, w.remote.String(), w.local.String(), connection))
}

func isClosed(t *testing.T, w wire) {
	t.Helper()
	eventually.True(t, patience, "it is closed", func() error {
		_ = w.SetDeadline(time.Now().Add(time.Second))
		if err := w.answers(); err == nil || isTimeout(err) {
			return errors.New("it is there still")
		}
		return nil
	})
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

func TestOnlyConnectionsWithoutAnOwnerAreClosed(t *testing.T) {
	e := newEcho(t, "tcp", "127.0.0.1:0")
	b := accounted(t, e, good)
	elsewhere := newEcho(t, "tcp", "127.0.0.1:0")
	tunnel, relay, other := e.dial(t, e.Addr().String()), e.dial(
		t, e.Addr().String(),
	), elsewhere.dial(t, elsewhere.Addr().String())
	b.write(t, tunnel.event(eventSetup, "edge-1", idA))
	b.own(t, relay, 1)
	unknown := e.dial(t, e.Addr().String())
	isClosed(t, unknown)
	for name, w := range map[string]wire{"a tunnel": tunnel, "a relay": relay, "a connection to another port": other} {
		if err := w.answers(); err != nil {
			t.Errorf("%s is closed: %v", name, err)
		}
	}
	// the peer sees the close before the program has counted it
	eventually.True(t, patience, "one is counted as closed", func() error {
		if n := b.Stats().Closed; n != 1 {
			return fmt.Errorf("%d are closed", n)
		}
		return nil
	})
	b.completes(t)
	// Envoy has closed it, the kernel has it
	b.write(t, passed("relay", eventEnd, relay.remote.String(), relay.local.String(), 1))
	isClosed(t, relay)
}

// TestTheSamePortOfAnotherAddressHasAnotherListener has another program listen at the same port of another address, in
// the network namespace of the gateway.
func TestTheSamePortOfAnotherAddressHasAnotherListener(t *testing.T) {
	e := newEcho(t, "tcp", "127.0.0.1:0")
	port := e.Addr().(*net.TCPAddr).Port
	neighbour := newEcho(t, "tcp", fmt.Sprintf("127.0.0.2:%d", port))
	b := accounted(t, e, good)
	spared := neighbour.dial(t, neighbour.Addr().String())
	isClosed(t, e.dial(t, e.Addr().String()))
	if err := spared.answers(); err != nil {
		t.Errorf("a connection of another program is closed: %v", err)
	}
	b.completes(t)
}

func TestNoConnectionIsClosedWhileTheRecordIsIncomplete(t *testing.T) {
	var failed, silent atomic.Int32
	e := newEcho(t, "tcp", "127.0.0.1:0")
	b := accounted(t, e, func() (Writes, error) {
		if silent.Load() > 0 {
			return Writes{}, errors.New("no answer")
		}
		return Writes{Failed: int(failed.Load())}, nil
	})
	for name, tt := range map[string]struct {
		begin, end func()
		logLimit   string
	}{
		"a line that is no record": {func() { b.write(t, "nonsense\n") }, func() {}, "1 connections to the public port may " +
			"be tunnels"},
		"a write that failed": {func() { failed.Add(1) }, func() {}, "lost lines"},
		"an Envoy that hangs": {func() { silent.Store(1) }, func() { silent.Store(0) }, "Envoy does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			b.completes(t)
			closedBefore := b.Stats().Closed
			w := e.dial(t, e.Addr().String())
			tt.begin()
			b.isIncomplete(t, tt.logLimit)
			time.Sleep(2 * ledger.Comparisons * b.accountEvery) // the test is that nothing happens
			if err := w.answers(); err != nil || b.Stats().Closed != closedBefore {
				t.Errorf("a connection is closed: %v", err)
			}
			if p := b.Prove(t.Context(), model.EdgeRef{Node: "edge-1", ID: idA}); p.Incomplete == "" {
				t.Error("a question is answered as if it were complete")
			}
			b.own(t, w, 1)
			tt.end()
			b.completes(t)
			if err := w.answers(); err != nil {
				t.Error(err)
			}
			_ = w.Close()
		})
	}
}

// TestOnlyALongSilenceOfEnvoyIsAnError has an Envoy that does not answer while it starts, and one that hangs.
func TestOnlyALongSilenceOfEnvoyIsAnError(t *testing.T) {
	for name, tt := range map[string]struct {
		every time.Duration
		logs  bool
	}{"an Envoy that starts": {every: patience}, "an Envoy that hangs": {every: 50 * time.Millisecond, logs: true}} {
		t.Run(name, func(t *testing.T) {
			var answers atomic.Bool
			b := newBed(t, t.TempDir())
			b.accountEvery = tt.every
			b.config.Public = newEcho(t, "tcp", "127.0.0.1:0").Addr().(*net.TCPAddr).AddrPort()
			b.config.Writes = writesOf(func() (Writes, error) {
				if answers.Load() {
					return Writes{}, nil
				}
				return Writes{}, errors.New("no answer")
			})
			if err := errors.Join(b.Fresh(), b.open(t.Context())); err != nil {
				t.Fatal(err)
			}
			b.run(t)
			b.isIncomplete(t, "Envoy does not answer")
			if tt.logs {
				eventually.True(t, patience, "an error is logged", func() error {
					if b.log.Count("is incomplete", "Envoy does not answer") == 0 {
						return errors.New(b.log.String())
					}
					return nil
				})
			}
			answers.Store(true)
			b.completes(t)
			if n := b.log.Count("is incomplete"); !tt.logs && n > 0 {
				t.Errorf("%d errors are logged:\n%s", n, b.log)
			}
		})
	}
}

// TestAnEnvoyThatDoesNotRecordKeepsItsConnections has an xds-server of an older version, and restarts the agent
// meanwhile.
func TestAnEnvoyThatDoesNotRecordKeepsItsConnections(t *testing.T) {
	e := newEcho(t, "tcp", "127.0.0.1:0")
	b := accounted(t, e, good)
	b.Unrecorded("an older listener")
	b.isIncomplete(t, "an older listener")
	w := e.dial(t, e.Addr().String())
	time.Sleep(2 * ledger.Comparisons * b.accountEvery) // the test is that nothing happens
	if err := w.answers(); err != nil {
		t.Errorf("a connection that could not be recorded is closed: %v", err)
	}
	if state, err := b.loadState(); err != nil || state.Unrecorded == "" {
		t.Errorf("the next agent does not know: %+v, %v", state, err)
	}
	b.Unrecorded("")
	b.isIncomplete(t, "1 connections")
	_ = w.Close()
	b.completes(t)
}

func TestProve(t *testing.T) {
	e := newEcho(t, "tcp", "127.0.0.1:0")
	b := accounted(t, e, good)
	edge := model.EdgeRef{Node: "edge-1", ID: idA}
	first, second, other := e.dial(t, e.Addr().String()), e.dial(t, e.Addr().String()), e.dial(t, e.Addr().String())
	b.write(
		t, first.event(eventSetup, "edge-1", idA), second.event(eventSetup, "edge-1", idA),
		other.event(eventSetup, "edge-2", idA),
	)
	if p := b.Prove(t.Context(), edge); p != (Proof{Open: 2}) {
		t.Errorf("before: %+v", p)
	}
	b.Deny(model.Denied{Edges: []model.EdgeRef{edge}})
	eventually.True(t, patience, "they are closed", func() error {
		if p := b.Prove(t.Context(), edge); p != (Proof{Denied: true, Closed: 2}) {
			return fmt.Errorf("got %+v", p)
		}
		return nil
	})
	if p := b.Prove(t.Context(), model.EdgeRef{Node: "edge-2", ID: idA}); p != (Proof{Open: 1}) {
		t.Errorf("the other edge: %+v", p)
	}
	b.Deny(model.Denied{})
	if len(b.cuts) != 0 {
		t.Errorf("counts of edges that are not denied are kept: %v", b.cuts)
	}
}

// TestEnvoyAccountsForItsConnections removes the records of one tunnel of a real Envoy: that tunnel is closed, and
// nothing else.
func TestEnvoyAccountsForItsConnections(t *testing.T) {
	needsRight(t)
	l := newLab(t, "127.0.0.1", "127.0.0.1", false)
	whole, stop := l.table(t)
	waitForTunnels(t, whole, map[string]int{"edge-1": 2, "edge-2": 2})
	used := l.client(t, l.Tunnels[1])
	stop()

	b := newBed(t, t.TempDir())
	if err := b.Fresh(); err != nil {
		t.Fatal(err)
	}
	if err := b.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.accountEvery = 300 * time.Millisecond
	b.config.Public = netip.MustParseAddrPort(l.address())
	b.config.Writes = func(ctx context.Context) (w Writes, err error) {
		_, err = l.gateway.Admin(ctx, http.MethodGet, "/ready")
		return w, err
	}
	kept := map[string]bool{}
	for text := range strings.Lines(read(t, filepath.Join(l.dir, "tunnels.log"))) {
		if strings.Contains(text, "CN=edge-2") {
			b.write(t, text)
			kept["edge-2"] = true
		}
	}
	b.run(t)
	eventually.True(t, patience, "the tunnels without a record are closed", func() error {
		if n := b.Stats().Closed; n < 2 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	if err := used.answers(); err != nil || !kept["edge-2"] {
		t.Errorf("a tunnel with a record is closed: %v", err)
	}
}

func (l *lab) address() string { return net.JoinHostPort(l.Address, strconv.Itoa(l.Public)) }
