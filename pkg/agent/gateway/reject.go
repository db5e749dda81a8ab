package gateway

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/fairlead/fairlead/pkg/envoy"
)

const (
	// rejectTime bounds one answer on the socket for unreachable clusters; rejectCallers bounds the number of simultaneous
	// answers.
	rejectTime    = 5 * time.Second
	rejectCallers = 256
)

// tlsAlert is the fatal TLS alert unrecognized_name. Without an alert, client-go would retry a closed connection ten
// times, once a second, within the timeout of its caller.
var tlsAlert = []byte{21, 3, 3, 0, 2, 2, 112}

// rejectUnreachable serves the socket for unreachable clusters. If the agent cannot listen on it, it logs that and
// continues: Envoy itself then rejects clients, later.
func (g *Gateway) rejectUnreachable(ctx context.Context) error {
	socket, err := g.deps.Listen(filepath.Join(g.deps.RuntimeDir, envoy.UnreachableSocket))
	if err != nil {
		g.deps.Log.Error(
			"cannot reject clients of unreachable clusters at once: they wait longer for their error", "error", err,
		)
		return nil
	}
	return serveUnreachable(ctx, socket, g.tenants.reject)
}

// serveUnreachable rejects clients of workload clusters that have no tunnel until ctx ends. Envoy sends a CONNECT for
// each. The request of its TCP proxy, for clients that came by SNI, has no request id; that of its HTTP connection
// manager, for clients that came by CONNECT, has one. rejected is called with the name of the workload cluster of each.
func serveUnreachable(ctx context.Context, socket net.Listener, rejected func(name string)) error {
	defer context.AfterFunc(ctx, func() { _ = socket.Close() })()
	callers := make(chan struct{}, rejectCallers)
	for {
		conn, err := socket.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Second / 10): // for example after an error about too many open files
			}
			continue
		}
		callers <- struct{}{}
		go func() {
			defer func() { <-callers }()
			answerUnreachable(conn, rejected)
		}()
	}
}

// answerUnreachable answers one CONNECT.
func answerUnreachable(conn net.Conn, rejected func(name string)) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(rejectTime))
	reader := bufio.NewReader(conn)
	request, err := http.ReadRequest(reader)
	if err != nil {
		return
	}
	name, _, _ := strings.Cut(request.Host, ":")
	rejected(name)
	if request.Header.Get("X-Request-Id") != "" {
		_, _ = io.WriteString(conn, "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")
		return
	}
	if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	if _, err := reader.ReadByte(); err != nil { // a client accepts an answer only after it has sent something
		return
	}
	_, _ = conn.Write(tlsAlert)
	if c, ok := conn.(*net.UnixConn); ok {
		_ = c.CloseWrite()
	}
	_, _ = io.Copy(io.Discard, conn) // reads the rest of the client's data, because a reset might overtake the alert
}
