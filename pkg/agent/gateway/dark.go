package gateway

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/fairlead/fairlead/pkg/envoy"
)

const (
	// darkTime bounds one answer on the dark socket, darkCallers how many are given at the same time.
	darkTime    = 5 * time.Second
	darkCallers = 256
)

// tlsAlert is a fatal unrecognized_name in TLS: nobody is there by that name. A connection that only ends would be tried again by
// client-go, ten times with a second between, for as long as its caller has patience.
var tlsAlert = []byte{21, 3, 3, 0, 2, 2, 112}

// sayNo serves the dark socket. An agent without one goes on: then Envoy itself says no, later.
func (g *Gateway) sayNo(ctx context.Context) error {
	socket, err := g.deps.Listen(filepath.Join(g.deps.RuntimeDir, envoy.DarkSocket))
	if err != nil {
		g.deps.Log.Error("cannot reject clients of unreachable clusters at once: they wait longer for their error", "error", err)
		return nil
	}
	return serveDark(ctx, socket)
}

// serveDark says no to clients of workload clusters that have no tunnel, until ctx ends. Envoy asks by CONNECT, for them: its
// TCP proxy, where they came by SNI, gives a request no id, and its HTTP connection manager, where they came by CONNECT, gives one.
func serveDark(ctx context.Context, socket net.Listener) error {
	defer context.AfterFunc(ctx, func() { _ = socket.Close() })()
	callers := make(chan struct{}, darkCallers)
	for {
		conn, err := socket.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Second / 10): // such as too many files
			}
			continue
		}
		callers <- struct{}{}
		go func() {
			defer func() { <-callers }()
			answerDark(conn)
		}()
	}
}

// answerDark answers one CONNECT.
func answerDark(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(darkTime))
	reader := bufio.NewReader(conn)
	request, err := http.ReadRequest(reader)
	if err != nil {
		return
	}
	if request.Header.Get("X-Request-Id") != "" {
		_, _ = io.WriteString(conn, "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")
		return
	}
	if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	if _, err := reader.ReadByte(); err != nil { // a client takes no answer for one before it has asked
		return
	}
	_, _ = conn.Write(tlsAlert)
	if c, ok := conn.(*net.UnixConn); ok {
		_ = c.CloseWrite()
	}
	_, _ = io.Copy(io.Discard, conn) // what the client has said: else the end might overtake the alert
}
