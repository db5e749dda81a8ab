package security

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/world"
)

// claim requests a tunnel on a connection like Envoy.
func claim(conn net.Conn, s model.Subject) error {
	if _, err := fmt.Fprintf(conn, "GET /reverse_connections/request HTTP/1.1\r\nHost: gateway\r\nConnection: "+
		"Upgrade\r\nUpgrade: reverse-tunnel\r\n"+
		"x-envoy-reverse-tunnel-node-id: %s\r\nx-envoy-reverse-tunnel-cluster-id: %s\r\nx-envoy-reverse-tunnel-tenant-id: "+
		"%s\r\n\r\n",
		s.NodeID(), world.Domain.TunnelID(s.ID), model.TenantID); err != nil {
		return err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the gateway answers %s", response.Status)
	}
	return nil
}

// flood sends TLS ClientHellos from a source, up to floodRate per second, until stop is called. stop returns how many
// connections were sent and how many were admitted. It fails the test if the flood was too slow.
func flood(t *testing.T, g target, name string) (stop func(t *testing.T) (connections, admitted int)) {
	t.Helper()
	f, err := outsider.StartFlood(t.Context(), g.dial, name, floodRate)
	must(t, err)
	time.Sleep(time.Second) // the burst is over
	return func(t *testing.T) (connections, admitted int) {
		t.Helper()
		done := f.Stop()
		t.Logf("the flood sent %d connections, %.0f in a second; %d were admitted", done.Sent, done.PerSecond, done.Admitted)
		measured("handshakes_flood_per_second", done.PerSecond)
		if done.PerSecond < 2*bucketRate {
			t.Errorf("the flood had %.0f connections in a second, which proves nothing", done.PerSecond)
		}
		return done.Sent, done.Admitted
	}
}

// tunnels are an attacker's open connections.
type tunnels struct {
	mu    sync.Mutex
	conns []net.Conn
}

// hold requests n tunnels, and keeps the ones that are opened.
func (g target) hold(t *testing.T, leaf outsider.Stolen, n int) *tunnels {
	t.Helper()
	held, failed := &tunnels{}, map[string]int{}
	slots := make(chan struct{}, 32)
	var all sync.WaitGroup
	for range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			conn, err := g.ask(t.Context(), leaf)
			held.mu.Lock()
			defer held.mu.Unlock()
			if err != nil {
				failed[reasonOf(err)]++
				return
			}
			held.conns = append(held.conns, conn)
		})
	}
	all.Wait()
	t.Logf("of %d tunnels %d were opened; the others: %v", n, len(held.conns), failed)
	return held
}

// reasonOf returns an error's text without addresses.
func reasonOf(err error) string {
	if network := (*net.OpError)(nil); errors.As(err, &network) {
		return network.Err.Error()
	}
	return err.Error()
}

// open returns how many of them the gateway has not closed.
func (h *tunnels) open() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	var left []net.Conn
	for _, conn := range h.conns {
		if isOpen(conn) {
			left = append(left, conn)
		} else {
			_ = conn.Close()
		}
	}
	h.conns = left
	return len(left)
}

func (h *tunnels) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, conn := range h.conns {
		_ = conn.Close()
	}
}

// isOpen reports whether the other side has not closed a connection.
func isOpen(conn net.Conn) bool {
	_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := conn.Read(make([]byte, 512))
	timeout, ok := err.(net.Error) //nolint:errorlint // package net returns it unwrapped
	return err == nil || ok && timeout.Timeout()
}

// silence opens connections and returns how many are open after 4 s. After 5 s Envoy closes all of them.
func (g target) silence(t *testing.T) int {
	t.Helper()
	begin, held := time.Now(), &tunnels{}
	defer held.close()
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range silentCount / 16 {
				if conn, err := g.dial(t.Context()); err == nil {
					held.mu.Lock()
					held.conns = append(held.conns, conn)
					held.mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d connections are opened after %s", len(held.conns), time.Since(begin))
	time.Sleep(time.Until(begin.Add(4200 * time.Millisecond)))
	held.mu.Lock()
	defer held.mu.Unlock()
	var open atomic.Int64
	for _, conn := range held.conns {
		all.Go(func() {
			if isOpen(conn) {
				open.Add(1)
			}
		})
	}
	all.Wait()
	return int(open.Load())
}
