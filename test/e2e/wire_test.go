package e2e

import (
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/promise"
)

// Texts that would prove that an observer on the path could read a tunnel, and therefore inject streams into it.
const (
	preface       = "PRI * HTTP/2.0"
	connectMethod = "CONNECT"
)

// wire proves that tunnels are encrypted during their whole life, not only during the handshake.
func (w *world) wire(t *testing.T) {
	between := startCapture(t, w.Network.Gateways[0], "work0", preface, connectMethod)
	inside := startCapture(t, w.Network.Gateways[0], "mgmt0", preface, connectMethod)

	// New tunnels, and new connections through each of them.
	for _, m := range w.members() {
		must(t, m.edge.KillEnvoy())
		w.brokenNow()
	}
	eventually(t, w.allWork)
	for range 10 {
		must(t, w.allWork(t.Context()))
	}
	// This proves that the capture finds texts: kubectl's CONNECT goes to the gateway in plaintext, and so does this
	// preface.
	must(t, w.sendPreface(t.Context()))

	between.end(t)
	inside.end(t)
	promise.That(t, "traffic between edge and gateway contains no HTTP/2 preface and no CONNECT", func(t *testing.T) {
		if between.found[preface] > 0 || between.found[connectMethod] > 0 {
			t.Errorf("found %v", between.found)
		}
	})
	promise.That(t, "the capture finds an HTTP/2 preface in plain text", func(t *testing.T) {
		if inside.found[preface] == 0 || inside.found[connectMethod] == 0 {
			t.Errorf("found only %v in the management network", inside.found)
		}
		for direction, seen := range between.bytes {
			if seen < 50_000 {
				t.Errorf("looked at only %d bytes from %s", seen, direction)
			}
		}
		if len(between.bytes) != 2 {
			t.Errorf("looked at bytes from %v, want gateway and edges", between.bytes)
		}
	})
}

// sendPreface sends an HTTP/2 preface in plaintext to the gateway's connect listener.
func (w *world) sendPreface(ctx context.Context) error {
	conn, err := w.Network.Management.DialContext(ctx, "tcp", hostPort(netns.GatewayName, netns.ConnectPort))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, preface+"\r\n\r\nSM\r\n\r\n"); err != nil {
		return fmt.Errorf("sending: %w", err)
	}
	_, err = conn.Read(make([]byte, 1)) // the gateway has received it
	if err != nil && err != io.EOF {    //nolint:errorlint // package net does not wrap it
		return err
	}
	return nil
}
