package e2e

import (
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/promise"
)

// Texts that would show that somebody on the path could read a tunnel, and so inject streams into it.
const (
	preface       = "PRI * HTTP/2.0"
	connectMethod = "CONNECT"
)

// wire proves that tunnels are encrypted all of their life, not only during the handshake: point 9.
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
	// What the capture would have seen: kubectl's CONNECT goes to the gateway in the clear, and so does this.
	must(t, w.sayPreface(t.Context()))

	between.end(t)
	inside.end(t)
	promise.That(t, "the bytes between edge and gateway hold neither an HTTP/2 preface nor a CONNECT", func(t *testing.T) {
		if between.found[preface] > 0 || between.found[connectMethod] > 0 {
			t.Errorf("found %v", between.found)
		}
	})
	promise.That(t, "the capture sees such texts where they are", func(t *testing.T) {
		if inside.found[preface] == 0 || inside.found[connectMethod] == 0 {
			t.Errorf("found only %v in the management network", inside.found)
		}
		for who, seen := range between.bytes {
			if seen < 50_000 {
				t.Errorf("looked at only %d bytes from %s", seen, who)
			}
		}
		if len(between.bytes) != 2 {
			t.Errorf("looked at bytes from %v, want gateway and edges", between.bytes)
		}
	})
}

// sayPreface sends an HTTP/2 preface in the clear to the gateway's connect listener.
func (w *world) sayPreface(ctx context.Context) error {
	conn, err := w.Network.Management.DialContext(ctx, "tcp", hostPort(netns.GatewayName, netns.ConnectPort))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, preface+"\r\n\r\nSM\r\n\r\n"); err != nil {
		return fmt.Errorf("sending: %w", err)
	}
	_, err = conn.Read(make([]byte, 1)) // the gateway has seen it
	if err != nil && err != io.EOF {    //nolint:errorlint // never wrapped by net
		return err
	}
	return nil
}
