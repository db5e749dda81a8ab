package controlchannel_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/controlchannel"
	"github.com/fairlead/fairlead/pkg/model"
)

// header returns a PROXY header of version 2 with a body of any length.
func header(command, family byte, body []byte) []byte {
	h := append(slices.Clone(proxyproto.SIGV2), command, family)
	return append(binary.BigEndian.AppendUint16(h, uint16(len(body))), body...)
}

func TestProxyHeader(t *testing.T) {
	b := newTestbed(t, controlchannel.Bounds{Handshake: 2 * time.Second})
	ipv4 := []byte{203, 0, 113, 7, 192, 0, 2, 1, 0x30, 0x39, 0x01, 0xbb}
	tests := map[string]struct {
		in []byte
		ok bool // TLS succeeds after it
	}{
		"none":                        {ok: true},
		"TCP over IPv4":               {in: header(0x21, 0x11, ipv4), ok: true},
		"TCP over IPv6":               {in: header(0x21, 0x21, make([]byte, 36)), ok: true},
		"with more information":       {in: header(0x21, 0x11, append(slices.Clone(ipv4), 0x04, 0, 1, 0)), ok: true},
		"of the proxy itself":         {in: header(0x20, 0x00, nil), ok: true},
		"version 1":                   {in: []byte("PROXY TCP4 203.0.113.7 192.0.2.1 12345 443\r\n"), ok: true},
		"an address that is cut off":  {in: header(0x21, 0x11, ipv4[:6])},
		"a command that is none":      {in: header(0x2f, 0x11, ipv4)},
		"a family that is none":       {in: header(0x21, 0x99, ipv4)},
		"64 KiB long":                 {in: header(0x21, 0x11, make([]byte, 65535))},
		"twice, the first one forged": {in: append(header(0x21, 0x11, ipv4), header(0x21, 0x11, ipv4)...)},
		"a signature alone":           {in: proxyproto.SIGV2},
		"version 1 without an end":    {in: []byte("PROXY TCP4 " + strings.Repeat("1", 200))},
		"half of a signature":         {in: proxyproto.SIGV2[:6]},
		"text":                        {in: []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := b.raw(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Write(tc.in); err != nil && tc.ok {
				t.Fatal(err)
			}
			err = tls.Client(conn, b.clientTLS(t, nil)).HandshakeContext(t.Context())
			if (err == nil) != tc.ok {
				t.Errorf("TLS after it: %v", err)
			}
			if errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
				t.Error("the connection is still open")
			}
		})
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

func TestRequiredTLS(t *testing.T) {
	b := newTestbed(t, controlchannel.Bounds{})
	old, http1, other, none := b.clientTLS(t, nil), b.clientTLS(t, nil), b.clientTLS(t, nil), b.clientTLS(t, nil)
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	http1.NextProtos, other.NextProtos, none.NextProtos = []string{"http/1.1"}, []string{"x"}, nil
	tests := map[string]struct {
		config *tls.Config
		alert  string // that the client receives; empty: the connection is closed without one
	}{
		"TLS 1.2":            {config: old, alert: "protocol version not supported"},
		"HTTP/1.1":           {config: http1},
		"another protocol":   {config: other, alert: "no application protocol"},
		"no protocol at all": {config: none},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			raw, err := b.raw(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer raw.Close()
			conn := tls.Client(raw, tc.config)
			if err = conn.HandshakeContext(t.Context()); err == nil {
				_, err = io.ReadFull(conn, make([]byte, 64)) // more than there is
			}
			if err == nil || !strings.Contains(err.Error(), tc.alert) {
				t.Errorf("got %v, want %q", err, tc.alert)
			}
		})
	}
}

// ended waits until the other end closes a connection, and returns how long that took.
func ended(t *testing.T, conn net.Conn) time.Duration {
	t.Helper()
	begin := time.Now()
	if err := conn.SetReadDeadline(begin.Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); isTimeout(err) {
		t.Error("the connection is still open")
	}
	return time.Since(begin)
}

func TestASilentClientIsDisconnected(t *testing.T) {
	b := newTestbed(t, controlchannel.Bounds{Handshake: time.Second, Unauthenticated: 2 * time.Second})
	hello := clientHello(t)
	for name, in := range map[string][]byte{
		"nothing":                       nil,
		"half a PROXY header":           header(0x21, 0x11, nil)[:13],
		"half a ClientHello":            hello[:len(hello)/2],
		"only a ClientHello":            hello,
		"a record that never ends":      {0x16, 3, 1, 0x40, 0},
		"a header and half a handshake": append(header(0x20, 0, nil), hello[:20]...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := b.raw(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write(in); err != nil {
				t.Fatal(err)
			}
			if took := ended(t, conn); took > 8*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
	t.Run("an unauthenticated call that never ends", func(t *testing.T) {
		t.Parallel()
		raw, err := b.raw(t.Context(), "203.0.113.1:1")
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		conn := tls.Client(raw, b.clientTLS(t, nil))
		if _, err := conn.Write(openStreams(t, 1)); err != nil {
			t.Fatal(err)
		}
		if took := ended(t, conn); took < time.Second || took > 10*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// clientHello returns the first message of a TLS client.
func clientHello(t testing.TB) []byte {
	t.Helper()
	near, far := net.Pipe()
	defer near.Close()
	go func() {
		_ = tls.Client(far, &tls.Config{
			ServerName: domain.Control(), MinVersion: tls.VersionTLS13,
			NextProtos: []string{"h2"},
		}).
			HandshakeContext(t.Context())
	}()
	p := make([]byte, 16<<10)
	n, err := near.Read(p)
	if err != nil {
		t.Fatal(err)
	}
	return p[:n]
}

// silence opens connections that do nothing after their PROXY header and ClientHello, as many as are accepted.
func (b *testbed) silence(t *testing.T, n int, from func(i int) string) {
	t.Helper()
	hello := clientHello(t)
	for i := range n {
		conn, err := b.raw(t.Context(), from(i))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := conn.Write(hello); err != nil {
			t.Logf("connection %d: %v", i, err) // rejected by now
		}
	}
}

func TestOneAddressDoesNotTakeAllConnections(t *testing.T) {
	b := newTestbed(t, controlchannel.Bounds{Public: 64, PerAddress: 8})
	b.silence(t, 200, func(i int) string { return fmt.Sprintf("203.0.113.1:%d", 1000+i) })
	b.silence(t, 200, func(i int) string { return fmt.Sprintf("[2001:db8::%x]:1", i) }) // one machine, one /64
	begin := time.Now()
	b.alive(t)
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("others waited for %s", took)
	}
	if held := b.Held(); held > 16+8 {
		t.Errorf("two addresses hold %d connections", held)
	}
}

func TestAFloodFromManyAddressesLeavesTheInsideAlone(t *testing.T) {
	b := newTestbed(t, controlchannel.Bounds{Public: 32, Handshake: 3 * time.Second})
	b.silence(t, 300, func(i int) string { return fmt.Sprintf("10.%d.%d.1:1", i/200, i%200) })
	begin := time.Now()
	conn := b.dial(t, ptr(b.identity(t, gateway, time.Hour)), "")
	if err := fetch(t, conn, gateway); err != nil {
		t.Errorf("a gateway: %v", err)
	}
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("a gateway waited for %s", took)
	}
	if held := b.Held(); held > 40 {
		t.Errorf("%d connections are held", held)
	}
	b.alive(t) // and after the flood, all other callers are served
}

func TestOneCertificateDoesNotTakeAllConnections(t *testing.T) {
	b := newTestbed(t, controlchannel.Bounds{PerNode: 4})
	greedy := ptr(b.identity(t, edge, time.Hour))
	served := 0
	for range 8 {
		if fetch(t, b.dial(t, greedy, ""), edge) == nil {
			served++
		}
	}
	if served != 4 {
		t.Errorf("%d of its connections were served, want 4", served)
	}
	other := model.Subject{Role: model.RoleEdge, Node: "edge-b", ID: c1.ID}
	if err := fetch(t, b.dial(t, ptr(b.identity(t, other, time.Hour)), ""), other); err != nil {
		t.Errorf("another edge: %v", err)
	}
}

func TestConnectionsAreCountedNoLongerThanTheyLast(t *testing.T) {
	b := newTestbed(t, controlchannel.Bounds{})
	for range 50 {
		conn, err := b.raw(t.Context(), "203.0.113.1:1")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(bytes.Repeat([]byte{0x16}, 20)); err != nil {
			t.Log(err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		_ = b.dial(t, nil, "").Close()
	}
	eventually.True(t, patience, "all connections being given back", func() error {
		if held := b.Held(); held > 0 {
			return fmt.Errorf("%d are still counted", held)
		}
		return nil
	})
}
