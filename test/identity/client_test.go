package identity

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fairlead/fairlead/test/lab"
)

// path is one way of a client to a workload cluster: through one of the gateways, by SNI or CONNECT.
type path struct {
	from       *lab.Namespace
	gateway    int
	connect    bool
	hostname   string // the tunnel hostname
	serverName string // in the serving certificate
	roots      *x509.CertPool
	identity   *tls.Certificate // of the client; nil: none
}

func (p path) String() string {
	route := "sni"
	if p.connect {
		route = "connect"
	}
	return fmt.Sprintf("%s by %s through gateway-%d", p.hostname, route, p.gateway)
}

// dial opens a connection of its own, with TLS to the apiserver. It tries once.
func (p path) dial(ctx context.Context) (*tls.Conn, error) {
	port := lab.APIServerPort
	if p.connect {
		port = lab.ConnectPort
	}
	raw, err := p.from.DialContext(ctx, "tcp", netip.AddrPortFrom(lab.InsideAddress(p.gateway), uint16(port)).String())
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = raw.SetDeadline(deadline)
	}
	config := &tls.Config{RootCAs: p.roots, ServerName: p.serverName, MinVersion: tls.VersionTLS12}
	if p.connect {
		err = connect(raw, p.hostname)
	} else {
		config.ServerName = p.hostname
	}
	if p.identity != nil {
		config.Certificates = []tls.Certificate{*p.identity}
	}
	conn := tls.Client(raw, config)
	if err == nil {
		err = conn.HandshakeContext(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	_ = raw.SetDeadline(time.Time{})
	return conn, nil
}

// connect asks a gateway's connect listener for a tunnel.
func connect(conn net.Conn, hostname string) error {
	authority := net.JoinHostPort(hostname, strconv.Itoa(lab.APIServerPort))
	if _, err := fmt.Fprintf(conn, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", authority); err != nil {
		return err
	}
	// One byte at a time: what follows the answer belongs to TLS.
	response, err := http.ReadResponse(bufio.NewReaderSize(oneByte{conn}, 16), &http.Request{Method: http.MethodConnect})
	if err != nil {
		return fmt.Errorf("reading the answer to CONNECT: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("answer to CONNECT is %s", response.Status)
	}
	return nil
}

type oneByte struct{ io.Reader }

func (o oneByte) Read(p []byte) (int, error) { return o.Reader.Read(p[:1]) }

// session is a connection on which requests are made one after the other, none of them twice.
type session struct {
	conn   *tls.Conn
	reader *bufio.Reader
}

func (p path) open(ctx context.Context) (*session, error) {
	conn, err := p.dial(ctx)
	if err != nil {
		return nil, err
	}
	return &session{conn, bufio.NewReader(conn)}, nil
}

// close is safe for nil.
func (s *session) close() {
	if s != nil {
		_ = s.conn.Close()
	}
}

// get asks for a path and returns the answer, which must be 200.
func (s *session) get(ctx context.Context, target string) (string, error) {
	if deadline, ok := ctx.Deadline(); ok {
		_ = s.conn.SetDeadline(deadline)
	}
	response, err := s.send(target)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(response.Body)
	return string(body), errors.Join(err, response.Body.Close())
}

func (s *session) send(target string) (*http.Response, error) {
	if _, err := fmt.Fprintf(s.conn, "GET %s HTTP/1.1\r\nHost: kubernetes\r\n\r\n", target); err != nil {
		return nil, err
	}
	response, err := http.ReadResponse(s.reader, nil)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.Join(fmt.Errorf("GET %s: %s", target, response.Status), response.Body.Close())
	}
	return response, err
}

// requestTimeout is how long a client waits for an answer.
const requestTimeout = 5 * time.Second

// get makes one request on a connection of its own.
func (p path) get(ctx context.Context, target string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s, err := p.open(ctx)
	if err != nil {
		return "", fmt.Errorf("%s: %w", p, err)
	}
	defer s.close()
	body, err := s.get(ctx, target)
	if err != nil {
		return "", fmt.Errorf("%s: %w", p, err)
	}
	return body, nil
}

// follower follows a stream of a stand-in.
type follower struct {
	path path
	edge string // address of the edge that carries it
	conn *tls.Conn
	last atomic.Int64 // when the newest tick came, in ns since 1970
	done chan struct{}
	err  error // why it ended; set before done is closed
}

// silence is how long a stream may say nothing before it counts as broken: some ticks more than a busy machine loses.
const silence = 5 * time.Second

// follow opens a stream, and checks every tick of it until it ends or close is called.
func (p path) follow(ctx context.Context) (*follower, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s, err := p.open(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p, err)
	}
	_ = s.conn.SetDeadline(time.Now().Add(requestTimeout))
	response, err := s.send("/stream")
	if err != nil {
		return nil, errors.Join(err, s.conn.Close())
	}
	lines := bufio.NewReader(response.Body)
	who, err := lines.ReadString('\n')
	if err != nil {
		return nil, errors.Join(err, s.conn.Close())
	}
	f := &follower{path: p, edge: strings.TrimSpace(who), conn: s.conn, done: make(chan struct{})}
	f.last.Store(time.Now().UnixNano())
	go f.run(lines)
	return f, nil
}

func (f *follower) run(lines *bufio.Reader) {
	defer close(f.done)
	for want := 0; ; want++ {
		_ = f.conn.SetReadDeadline(time.Now().Add(silence))
		line, err := lines.ReadString('\n')
		if err != nil {
			f.err = fmt.Errorf("stream %s broke after %d ticks: %w", f.path, want, err)
			return
		}
		if strings.TrimSpace(line) != strconv.Itoa(want) {
			f.err = fmt.Errorf("stream %s said %q, want %d", f.path, line, want)
			return
		}
		f.last.Store(time.Now().UnixNano())
	}
}

// alive is no error while the stream goes on.
func (f *follower) alive() error {
	select {
	case <-f.done:
		return f.err
	default:
	}
	if quiet := time.Since(time.Unix(0, f.last.Load())); quiet > silence {
		return fmt.Errorf("stream %s has said nothing for %s", f.path, quiet)
	}
	return nil
}

func (f *follower) close() {
	_ = f.conn.Close()
	<-f.done
}
