package pods

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// spdyAnswer accepts an upgrade to SPDY.
const spdyAnswer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\n" +
	"X-Stream-Protocol-Version: v5.channel.k8s.io\r\n\r\n"

// clientOf returns a client of an apiserver that does something with each upgraded connection, and then closes it.
func clientOf(t *testing.T, do func(conn net.Conn)) *Client {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, spdyAnswer); err != nil {
			t.Error(err)
		}
		do(conn)
	}))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	c, err := NewClient(config, "pod", "main")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAnExecEndsWithItsConnection(t *testing.T) {
	for name, do := range map[string]func(net.Conn){
		"before its first stream": func(net.Conn) {},
		// client-go would wait for the answer to the stream for 30 s.
		"while it opens a stream": func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)) },
	} {
		t.Run(name, func(t *testing.T) {
			err := clientOf(t, do).RunWithin(t.Context(), 20*time.Second)
			if err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the exec ended with %v", err)
			}
		})
	}
}
