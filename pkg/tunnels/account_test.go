package tunnels

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/model"
)

// accounted is a bed whose record is compared with the sockets of a listener.
func accounted(t *testing.T, e *echo, writes func() (Writes, error)) *bed {
	t.Helper()
	needsRight(t)
	b := newBed(t, t.TempDir())
	b.accountEvery = 150 * time.Millisecond
	b.config.Public = e.Addr().(*net.TCPAddr).AddrPort()
	b.config.Writes = func(context.Context) (Writes, error) { return writes() }
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

func (b *bed) isIncomplete(t *testing.T, words string) {
	t.Helper()
	eventually.True(t, patience, "the record is incomplete", func() error {
		if why := b.Stats().Incomplete; !strings.Contains(why, words) {
			return fmt.Errorf("it says %q", why)
		}
		return nil
	})
}

// own writes the record of a connection that Envoy passes on.
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
	tunnel, relay, other := e.dial(t, e.Addr().String()), e.dial(t, e.Addr().String()), elsewhere.dial(t, elsewhere.Addr().String())
	b.write(t, tunnel.event(eventSetup, "edge-1", idA))
	b.own(t, relay, 1)
	unknown := e.dial(t, e.Addr().String())
	isClosed(t, unknown)
	for name, w := range map[string]wire{"a tunnel": tunnel, "a relay": relay, "a connection to another port": other} {
		if err := w.answers(); err != nil {
			t.Errorf("%s is closed: %v", name, err)
		}
	}
	if n := b.Stats().Closed; n != 1 {
		t.Errorf("%d are closed", n)
	}
	b.completes(t)
	b.write(t, passed("relay", eventEnd, relay.remote.String(), relay.local.String(), 1)) // Envoy has it no more, the kernel does
	isClosed(t, relay)
}

// TestTheSamePortOfAnotherAddressHasAnotherListener has another program listen there, in the network namespace of the gateway.
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

func TestNothingIsClosedWhileTheRecordIsIncomplete(t *testing.T) {
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
		words      string
	}{
		"a line that is no record": {func() { b.write(t, "nonsense\n") }, func() {}, "1 connections to the public port may be tunnels"},
		"a write that failed":      {func() { failed.Add(1) }, func() {}, "could not write"},
		"an Envoy that hangs":      {func() { silent.Store(1) }, func() { silent.Store(0) }, "Envoy does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			b.completes(t)
			closedBefore := b.Stats().Closed
			w := e.dial(t, e.Addr().String())
			tt.begin()
			b.isIncomplete(t, tt.words)
			time.Sleep(2 * unownedLooks * b.accountEvery) //nolint:forbidigo // nothing happens, and that is what is tested
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

func TestProve(t *testing.T) {
	e := newEcho(t, "tcp", "127.0.0.1:0")
	b := accounted(t, e, good)
	edge := model.EdgeRef{Node: "edge-1", ID: idA}
	first, second, other := e.dial(t, e.Addr().String()), e.dial(t, e.Addr().String()), e.dial(t, e.Addr().String())
	b.write(t, first.event(eventSetup, "edge-1", idA), second.event(eventSetup, "edge-1", idA), other.event(eventSetup, "edge-2", idA))
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

// outsider dials the gateway with an edge's own key, and says what it wants.
func (l *lab) outsider(t *testing.T, headers string) (*http.Response, net.Conn) {
	t.Helper()
	dir := t.TempDir()
	l.credentials(t, dir, model.Subject{Role: model.RoleEdge, Node: "edge-3", ID: idC})
	certificate, err := tls.LoadX509KeyPair(filepath.Join(dir, "leaf.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(l.ca.CertPEM())
	raw, err := net.Dial("tcp", l.address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	_ = raw.SetDeadline(time.Now().Add(envoytest.Patience))
	conn := tls.Client(raw, &tls.Config{RootCAs: roots, ServerName: domain.GatewayReplica("gateway-0"), Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13})
	_, err = fmt.Fprintf(conn, "GET /reverse_connections/request HTTP/1.1\r\nHost: gateway\r\nx-envoy-reverse-tunnel-node-id: CN=edge-3\r\n"+
		"x-envoy-reverse-tunnel-cluster-id: %s\r\n%s\r\n", domain.TunnelID(idC), headers)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return nil, raw
	}
	return response, raw
}

func tenant(s string) string { return "x-envoy-reverse-tunnel-tenant-id: " + s + "\r\n" }

// TestHeadersOfAnEdgeAreNotInTheRecord sends a real Envoy whatever headers an edge can send with its own key.
func TestHeadersOfAnEdgeAreNotInTheRecord(t *testing.T) {
	needsRight(t)
	l := newLab(t, "127.0.0.1", "127.0.0.1", false)
	table, _ := l.table(t)
	path := filepath.Join(l.dir, "tunnels.log")
	waitForTunnels(t, table, map[string]int{"edge-1": 2, "edge-2": 2})
	tunnels, outer := 0, t
	for name, tt := range map[string]struct {
		headers string
		status  int // 0: the connection is closed
	}{
		"20 KiB in the tenant id":     {tenant(strings.Repeat("t", 20<<10)), 200},
		"50 KiB in the tenant id":     {tenant(strings.Repeat("t", 50<<10)), 200},
		"50 KiB in the worker's name": {tenant("fairlead") + "x-envoy-reverse-tunnel-worker-id: " + strings.Repeat("w", 50<<10) + "\r\n", 200},
		"more than Envoy takes":       {tenant(strings.Repeat("t", 70<<10)), 431},
		"bytes that are no UTF-8":     {tenant("a\x80\xff\xc3"), 200},
		"quotes and a record":         {tenant(`","owner":"relay","peer":"192.0.2.9:1","local":"192.0.2.1:443"}` + `{"owner":"tunnel"`), 200},
		"a control character":         {tenant("a\x01b"), 400},
		"a second header each": {tenant("fairlead") + tenant("again") + "x-envoy-reverse-tunnel-node-id: CN=edge-1\r\nx-envoy-reverse-tunnel-cluster-id: " + domain.TunnelID(idA) + "\r\n",
			200},
		"another party's address": {tenant("fairlead") + "x-forwarded-for: 192.0.2.9\r\nx-envoy-external-address: 192.0.2.9\r\nforwarded: for=192.0.2.9\r\n", 200},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(read(t, path))
			response, conn := l.outsider(outer, tt.headers)
			if got := statusOf(response); got != tt.status {
				t.Fatalf("Envoy answers %d, want %d", got, tt.status)
			}
			if tt.status == http.StatusOK {
				tunnels++
			}
			eventually.True(t, envoytest.Patience, "the tunnel is in the table", func() error {
				if n, _ := table.Counts(model.EdgeRef{Node: "edge-3", ID: idC}); n != tunnels {
					return fmt.Errorf("%d are, want %d", n, tunnels)
				}
				return nil
			})
			for range 100 { // Envoy has an event for each, of 5 bytes
				_, _ = conn.Write([]byte("RPING"))
				time.Sleep(time.Millisecond) //nolint:forbidigo // so that they are not read as one
			}
			peer := conn.LocalAddr().String()
			grown := read(t, path)[before:]
			if len(grown) > 512 {
				t.Errorf("the log has grown by %d bytes: %.600s", len(grown), grown)
			}
			for line := range strings.Lines(grown) {
				var fields map[string]any
				if err := json.Unmarshal([]byte(line), &fields); err != nil || len(fields) != 9 || fields["peer"] != peer || fields["owner"] != "tunnel" || fields["node"] != "CN=edge-3" {
					t.Errorf("%v: %s", err, line)
				}
			}
		})
	}
	if table.Stats().BadLines != 0 {
		t.Errorf("%d lines can't be read", table.Stats().BadLines)
	}
	table.Deny(model.Denied{Edges: []model.EdgeRef{{Node: "edge-3", ID: idC}}})
	eventually.True(t, envoytest.Patience, "its tunnels are closed", func() error {
		if n, _ := table.Counts(model.EdgeRef{Node: "edge-3", ID: idC}); n != 0 || int(table.Stats().Cut) < tunnels {
			return fmt.Errorf("%d are left, %d are cut", n, table.Stats().Cut)
		}
		return nil
	})
}

// TestTheWholeMetadataIsNoRecord shows what named fields are for: with the whole metadata an edge's header makes a line that is longer than
// any record, and the tunnel is not in the table. At least the record says so.
func TestTheWholeMetadataIsNoRecord(t *testing.T) {
	needsRight(t)
	l := (&lab{Address: "127.0.0.1", Dials: "127.0.0.1", Workers: 1, Count: 2, Whole: true}).start(t)
	table, _ := l.table(t)
	path := filepath.Join(l.dir, "tunnels.log")
	response, _ := l.outsider(t, tenant(strings.Repeat("t", 50<<10)))
	if statusOf(response) != http.StatusOK {
		t.Fatalf("Envoy answers %d", statusOf(response))
	}
	eventually.True(t, envoytest.Patience, "the line is read", func() error {
		if len(read(t, path)) < 50<<10 || table.Stats().BadLines == 0 {
			return fmt.Errorf("%d bytes are written, %d bad lines are read", len(read(t, path)), table.Stats().BadLines)
		}
		return nil
	})
	if n, _ := table.Counts(model.EdgeRef{Node: "edge-3", ID: idC}); n != 0 {
		t.Errorf("%d tunnels are in the table: named fields are not necessary", n)
	}
	table.mu.Lock()
	defer table.mu.Unlock()
	if table.ledger.why() == "" {
		t.Error("the record has no gap")
	}
}

func statusOf(r *http.Response) int {
	if r == nil {
		return 0
	}
	return r.StatusCode
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestEnvoyAccountsForItsConnections takes the records of one tunnel of a real Envoy away: it is closed, and nothing else is.
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
