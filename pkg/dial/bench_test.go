package dial_test

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"
)

// BenchmarkForward compares forwarded connections with direct ones.
func BenchmarkForward(b *testing.B) {
	to := answering(b, "127.0.0.1:0", serveBenchmark)
	forwarded, _, _ := forwarding(b, direct(to))
	for name, address := range map[string]string{"direct": to.String(), "forwarded": forwarded} {
		b.Run(fmt.Sprintf("receive/%s", name), func(b *testing.B) {
			conn := dialTCP(b, address)
			_, _ = conn.Write([]byte("d"))
			b.SetBytes(1 << 20)
			_ = conn.SetDeadline(time.Time{})
			for b.Loop() {
				if _, err := io.CopyN(io.Discard, conn, 1<<20); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("send/%s", name), func(b *testing.B) {
			conn := dialTCP(b, address)
			_, _ = conn.Write([]byte("u"))
			b.SetBytes(1 << 20)
			_ = conn.SetDeadline(time.Time{})
			chunk := make([]byte, 1<<20)
			for b.Loop() {
				if _, err := conn.Write(chunk); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("round trip/%s", name), func(b *testing.B) {
			conn := dialTCP(b, address)
			_ = conn.SetDeadline(time.Time{})
			for one := []byte("e"); b.Loop(); {
				_, _ = conn.Write(one)
				if _, err := io.ReadFull(conn, one); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("connect/%s", name), func(b *testing.B) {
			for b.Loop() {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					b.Fatal(err)
				}
				_, _ = conn.Write([]byte("e"))
				_, _ = io.ReadFull(conn, make([]byte, 1))
				_ = conn.Close()
			}
		})
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// serveBenchmark sends, receives or echoes, depending on the first byte.
func serveBenchmark(conn net.Conn) {
	kind := make([]byte, 1)
	_, _ = conn.Read(kind)
	if kind[0] == 'd' { // send
		_, _ = io.Copy(conn, endless{})
		return
	}
	if kind[0] == 'u' { // receive
		_, _ = io.Copy(io.Discard, conn)
		return
	}
	_, _ = conn.Write(kind)
	echo(conn)
}
