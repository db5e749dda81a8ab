package security

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/world"
)

// recorder is a connection without another side that stores what is written.
type recorder struct {
	net.Conn
	written []byte
}

// Write implements net.Conn.
func (r *recorder) Write(p []byte) (int, error) {
	r.written = append(r.written, p...)
	return len(p), nil
}

// Read implements net.Conn.
func (*recorder) Read([]byte) (int, error) { return 0, errors.New("nobody answers") }

// SetDeadline implements net.Conn.
func (*recorder) SetDeadline(time.Time) error { return nil }

// Close implements net.Conn.
func (*recorder) Close() error { return nil }

// clientHello returns the ClientHello of a client that requests a name.
func clientHello(t *testing.T, name string) []byte {
	t.Helper()
	r := &recorder{}
	// only its first message matters
	_ = tls.Client(r, &tls.Config{ServerName: name, InsecureSkipVerify: true}).
		HandshakeContext(context.WithoutCancel(t.Context()))
	if len(r.written) < 100 {
		t.Fatal("there is no ClientHello")
	}
	return r.written
}

// sized changes the length of the record, and the length of the message in it.
func sized(hello []byte, record, message int) []byte {
	out := append([]byte{}, hello...)
	binary.BigEndian.PutUint16(out[3:], uint16(record))
	out[6], out[7], out[8] = byte(message>>16), byte(message>>8), byte(message)
	return out
}

// hellos sends malformed TLS ClientHellos to the public port. Each connection must be closed with at most an
// alert.
func (in *installation) hellos(t *testing.T, public port) {
	name := world.Domain.Control()
	good := clientHello(t, name)
	address := "10.111.2.1" // as a server name, which our clients never send
	odd := map[string][]byte{
		"half a ClientHello":                          good[:len(good)/2],
		"a ClientHello with a length field of 64 KiB": sized(good, 0xffff, 0xffffff),
		"a ClientHello with a length field of 0":      sized(good, 0, 0),
		"64 KiB of records without a message":         append([]byte{}, strings.Repeat("\x16\x03\x01\x00\x00", 13_000)...),
		"a handshake message of another type":         append([]byte{22, 3, 1, 0, 4, 20, 0, 0, 0}, good...),
		"an IP address as SNI": []byte(
			strings.Replace(
				string(clientHello(t, "x"+strings.Repeat("y", len(address)-3)+".z")), "x"+strings.Repeat("y", len(address)-3)+".z",
				address+"!", 1,
			),
		),
		"an SNI with a null byte": []byte(strings.Replace(string(good), name, name[:len(name)-5]+"\x00test", 1)),
		"an SNI in capitals with a trailing dot": []byte(
			strings.Replace(string(clientHello(t, name+".x")), name+".x", strings.ToUpper(name)+"..", 1),
		),
		"an SSL 2 hello": {0x80, 0x2e, 1, 0, 2, 0, 0x15, 0, 0, 0, 0x10},
		"HTTP":           []byte("GET / HTTP/1.1\r\nHost: " + name + "\r\n\r\n"),
		"nothing":        nil,
	}
	attack(
		t,
		"an outsider sends a ClientHello to the public port that is too long, cut, nested or has an odd name",
		"Envoy's inspector closes what has no name of ours",
		func(t *testing.T) {
			var all sync.WaitGroup
			for what, data := range odd {
				all.Go(func() {
					// an alert of TLS has 7 bytes
					if answer := exchange(t, in.Network.Workload, public.address, data); len(answer) > 7 {
						t.Errorf("%s is answered with %d bytes", what, len(answer))
					}
				})
			}
			all.Wait()
		},
		func(t *testing.T) {
			if answer := exchange(t, in.Network.Workload, public.address, good); len(answer) < 100 {
				t.Errorf("a good one is answered with %d bytes", len(answer))
			}
		},
	)
	attack(
		t,
		"an outsider sends a ClientHello byte by byte, and keeps the connection",
		"the time for a handshake is bounded",
		func(t *testing.T) {
			slow(t, in.Network.Workload, public, good)
		},
		nil,
	)
}

// slow sends a message byte by byte until the connection is closed, which must happen long before the message ends.
func slow(t *testing.T, from *netns.Namespace, to port, message []byte) {
	t.Helper()
	conn, err := from.DialContext(t.Context(), "tcp", to.address.String())
	must(t, err)
	defer func() { _ = conn.Close() }()
	began := time.Now()
	for _, b := range message {
		if _, err := conn.Write([]byte{b}); err != nil {
			break
		}
		_ = conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		if _, err := conn.Read(make([]byte, 1)); err != nil && !isTimeout(err) {
			break
		}
		if time.Since(began) > patience {
			t.Fatalf("the connection is still open after %s", patience)
		}
	}
	measured("slow_hello_closed_s", time.Since(began).Seconds())
}
