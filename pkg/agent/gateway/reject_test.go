package gateway

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestClientsOfUnreachableClustersAreRejected sends requests as Envoy does.
func TestClientsOfUnreachableClustersAreRejected(t *testing.T) {
	socket, err := net.Listen("unix", filepath.Join(envoytest.Dir(t), "dark.sock"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	rejected := make(chan string, 2)
	go func() { ended <- serveUnreachable(ctx, socket, func(name string) { rejected <- name }) }()
	ask := func(headers string) (net.Conn, *http.Response) {
		conn, err := net.Dial("unix", socket.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(envoytest.Patience))
		if _, err := io.WriteString(conn, "CONNECT c1.prod.example.com:6443 HTTP/1.1\r\nhost: "+
			"c1.prod.example.com:6443\r\n"+headers+"\r\n"); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
		if err != nil {
			t.Fatal(err)
		}
		return conn, response
	}
	if _, response := ask("x-request-id: 1\r\n"); response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("who came by CONNECT gets %d, want 503", response.StatusCode)
	}
	conn, response := ask("")
	for range 2 {
		if name := <-rejected; name != "c1.prod.example.com" {
			t.Errorf("a client of %q is counted", name)
		}
	}
	if response.StatusCode != http.StatusOK {
		t.Fatalf("who came by SNI gets %d, want 200", response.StatusCode)
	}
	err = tls.Client(conn, &tls.Config{ServerName: "c1.prod.example.com", MinVersion: tls.VersionTLS12}).
		HandshakeContext(t.Context())
	if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("TLS ends with %v", err)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("client-go tries again after %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
