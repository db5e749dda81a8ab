package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/netutil"
)

const (
	// maxConnections bounds the connections to apiservers. kubectl uses one or two for each command.
	maxConnections = 256
	// maxPending bounds further connections, whose requests are not served yet.
	maxPending = 64
	// headerTime bounds the request of a client.
	headerTime = 10 * time.Second
	// maxHeader bounds the size of a request.
	maxHeader = 8 << 10
	// idleTime closes a connection that has transferred nothing. client-go sends a ping every 30 s.
	idleTime = time.Hour
	// halfTime bounds how long one direction stays open after the other one has ended.
	halfTime = 10 * time.Second
	// endTime bounds the wait for connections at the end.
	endTime = 5 * time.Second
	// maxReason bounds the text of a rejection.
	maxReason = 400
)

// server is an HTTP proxy that accepts CONNECT to names of tunnels, and nothing else.
type server struct {
	names    *names
	gateways *gateways
	errors   io.Writer     // one line for each connection that fails
	slots    chan struct{} // one for each connection
}

func newServer(n *names, g *gateways, errs io.Writer) *server {
	return &server{names: n, gateways: g, errors: errs, slots: make(chan struct{}, maxConnections)}
}

// run serves a listener until ctx ends. It closes the listener and, when it returns, all connections.
func (s *server) run(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTime, IdleTimeout: headerTime, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(netutil.LimitListener(listener, maxConnections+maxPending)) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serving %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	_ = server.Close()
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving %s: %w", listener.Addr(), err)
	}
	// Connections end with ctx. When every slot is taken here, none is left.
	late := time.After(endTime)
	for range maxConnections {
		select {
		case s.slots <- struct{}{}:
		case <-late:
			return errors.New("ending the proxy: connections are still open")
		}
	}
	return nil
}

// ServeHTTP serves one request of a client.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		http.Error(w, "fairlead proxy accepts only CONNECT to names of tunnels", http.StatusMethodNotAllowed)
		return
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		s.reject(w, http.StatusServiceUnavailable, fmt.Errorf("fairlead proxy has %d connections", maxConnections))
		return
	}
	host, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		s.reject(w, http.StatusBadRequest, errors.New("the request names no host and port"))
		return
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	known, err := s.names.has(r.Context(), host)
	switch {
	case err != nil:
		s.reject(w, http.StatusBadGateway, err)
		return
	case !known:
		s.reject(w, http.StatusForbidden, fmt.Errorf("%q is no name of a Tunnel that fairlead proxy serves", host))
		return
	}
	remote, err := s.gateways.connect(r.Context(), net.JoinHostPort(host, port))
	if err != nil {
		code := http.StatusBadGateway
		if d := (*denial)(nil); errors.As(err, &d) {
			code = d.code
		}
		s.reject(w, code, err)
		return
	}
	defer func() { _ = remote.Close() }()
	local, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = local.Close() }()
	if _, err := io.WriteString(local, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	relay(r.Context(), local, buffered.Reader, remote)
}

// reject writes an error as the reason phrase of the response, which is what kubectl prints about it.
func (s *server) reject(w http.ResponseWriter, code int, err error) {
	text := printable(err.Error())
	_, _ = fmt.Fprintln(s.errors, text)
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	_ = conn.SetDeadline(time.Now().Add(headerTime))
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", code, text)
	_ = conn.Close()
}

// printable returns a text on one line, in ASCII, with a bounded length.
func printable(text string) string {
	line := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, text)
	line = strings.Join(strings.Fields(line), " ")
	return line[:min(len(line), maxReason)]
}

// relay copies in both directions until both have ended, ctx ends or nothing was transferred for idleTime.
func relay(ctx context.Context, local net.Conn, fromLocal *bufio.Reader, remote *upstream) {
	end := func() { _ = local.Close(); _ = remote.Close() }
	stop := context.AfterFunc(ctx, end)
	defer stop()
	idle := time.AfterFunc(idleTime, end)
	defer idle.Stop()
	done := make(chan struct{}, 2)
	go func() {
		_, _ = io.Copy(remote.Conn, alive{fromLocal, idle})
		_ = remote.CloseWrite()
		done <- struct{}{}
	}()
	go func() {
		_, _ = io.Copy(local, alive{remote, idle})
		if half, ok := local.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
		done <- struct{}{}
	}()
	<-done
	late := time.AfterFunc(halfTime, end)
	defer late.Stop()
	<-done
}

// alive postpones the end of an idle connection with each read.
type alive struct {
	io.Reader
	idle *time.Timer
}

// Read reads, and postpones the end.
func (a alive) Read(p []byte) (int, error) {
	n, err := a.Reader.Read(p)
	if n > 0 {
		a.idle.Reset(idleTime)
	}
	return n, err
}
