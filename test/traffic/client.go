// Package traffic simulates clients of workload clusters in the end-to-end proofs: single requests without retries,
// streams that are checked at every tick, and loads of both. It sends requests to the stand-ins of test/world, and
// knows nothing of what is proven.
package traffic

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

	"github.com/fairlead/fairlead/test/lab/netns"
)

// Path is a client's path to a workload cluster: through one of the gateways, by SNI or CONNECT.
type Path struct {
	From       *netns.Namespace
	Gateway    int
	Family     netns.Family // of the lab's addresses
	Connect    bool
	Hostname   string // the tunnel hostname
	ServerName string // in the serving certificate
	Roots      *x509.CertPool
	Identity   *tls.Certificate // of the client; nil: none
	// Unverified accepts every certificate, for tests that find out which apiserver answers.
	Unverified bool
}

// String describes the path.
func (p Path) String() string {
	route := "sni"
	if p.Connect {
		route = "connect"
	}
	return fmt.Sprintf("%s by %s through gateway-%d", p.Hostname, route, p.Gateway)
}

// Raw opens a new connection that leads to the apiserver, without TLS. It does not retry. A deadline of ctx bounds only
// the opening.
func (p Path) Raw(ctx context.Context) (net.Conn, error) {
	port := netns.APIServerPort
	if p.Connect {
		port = netns.ConnectPort
	}
	address := p.Family.First(netns.InsideAddress(p.Gateway))
	raw, err := p.From.DialContext(ctx, "tcp", netip.AddrPortFrom(address, uint16(port)).String())
	if err != nil {
		return nil, err
	}
	if !p.Connect {
		return raw, nil
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = raw.SetDeadline(deadline)
	}
	if err := connect(raw, p.Hostname); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	_ = raw.SetDeadline(time.Time{})
	return raw, nil
}

// Dial opens a new connection with TLS to the apiserver. It does not retry.
func (p Path) Dial(ctx context.Context) (*tls.Conn, error) {
	raw, err := p.Raw(ctx)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = raw.SetDeadline(deadline)
	}
	config := &tls.Config{
		RootCAs: p.Roots, ServerName: p.ServerName, InsecureSkipVerify: p.Unverified, MinVersion: tls.VersionTLS12,
	}
	if !p.Connect {
		config.ServerName = p.Hostname
	}
	if p.Identity != nil {
		config.Certificates = []tls.Certificate{*p.Identity}
	}
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	_ = raw.SetDeadline(time.Time{})
	return conn, nil
}

// connect requests a connection from a gateway's connect listener.
func connect(conn net.Conn, hostname string) error {
	authority := net.JoinHostPort(hostname, strconv.Itoa(netns.APIServerPort))
	if _, err := fmt.Fprintf(conn, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", authority); err != nil {
		return err
	}
	// One byte at a time, because everything after the answer belongs to TLS.
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

// Session is a connection for sequential requests without retries.
type Session struct {
	conn   *tls.Conn
	reader *bufio.Reader
}

// Open opens a new connection.
func (p Path) Open(ctx context.Context) (*Session, error) {
	conn, err := p.Dial(ctx)
	if err != nil {
		return nil, err
	}
	return &Session{conn, bufio.NewReader(conn)}, nil
}

// Close closes the connection. It is safe for nil.
func (s *Session) Close() {
	if s != nil {
		_ = s.conn.Close()
	}
}

// Leaf returns the serving certificate of the apiserver.
func (s *Session) Leaf() *x509.Certificate { return s.conn.ConnectionState().PeerCertificates[0] }

// Ask requests a path and reads nothing of the answer.
func (s *Session) Ask(target string) error {
	_, err := fmt.Fprintf(s.conn, "GET %s HTTP/1.1\r\nHost: kubernetes\r\n\r\n", target)
	return err
}

// Get requests a path and returns the body of the answer, whose status must be 200.
func (s *Session) Get(ctx context.Context, target string) (string, error) {
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

// Lines requests a stream of lines and calls a function for each. It returns when the stream ends, when the session is
// closed, and when no line arrives for as long as silence.
func (s *Session) Lines(target string, silence time.Duration, each func(line string)) error {
	_ = s.conn.SetDeadline(time.Now().Add(silence))
	response, err := s.send(target)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	for lines := bufio.NewReader(response.Body); ; {
		_ = s.conn.SetReadDeadline(time.Now().Add(silence))
		line, err := lines.ReadString('\n')
		if err != nil {
			return err
		}
		each(line)
	}
}

func (s *Session) send(target string) (*http.Response, error) {
	if err := s.Ask(target); err != nil {
		return nil, err
	}
	response, err := http.ReadResponse(s.reader, nil)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.Join(fmt.Errorf("GET %s: %s", target, response.Status), response.Body.Close())
	}
	return response, err
}

// RequestTimeout is how long a client waits for an answer.
const RequestTimeout = 5 * time.Second

// Get sends one request on a new connection.
func (p Path) Get(ctx context.Context, target string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	s, err := p.Open(ctx)
	if err != nil {
		return "", fmt.Errorf("%s: %w", p, err)
	}
	defer s.Close()
	body, err := s.Get(ctx, target)
	if err != nil {
		return "", fmt.Errorf("%s: %w", p, err)
	}
	return body, nil
}

// Follower follows a stream of a stand-in.
type Follower struct {
	Path Path
	Name string // of the stand-in that answers
	Edge string // address of the edge that carries the stream
	conn *tls.Conn
	last atomic.Int64 // when the last tick arrived, in ns since 1970
	done chan struct{}
	err  error // why the stream ended; set before done is closed
}

// Silence is how long a stream may send nothing before it counts as broken: more ticks than a busy machine delays.
const Silence = 5 * time.Second

// Follow opens a stream, and checks every tick until the stream ends or Close is called.
func (p Path) Follow(ctx context.Context) (*Follower, error) {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	s, err := p.Open(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p, err)
	}
	_ = s.conn.SetDeadline(time.Now().Add(RequestTimeout))
	response, err := s.send("/stream")
	if err != nil {
		return nil, errors.Join(err, s.conn.Close())
	}
	lines := bufio.NewReader(response.Body)
	answer, err := lines.ReadString('\n')
	if err != nil {
		return nil, errors.Join(err, s.conn.Close())
	}
	f := &Follower{Path: p, conn: s.conn, done: make(chan struct{})}
	f.Name, f.Edge, _ = strings.Cut(strings.TrimSpace(answer), " ")
	f.last.Store(time.Now().UnixNano())
	go f.run(lines)
	return f, nil
}

func (f *Follower) run(lines *bufio.Reader) {
	defer close(f.done)
	for want := 0; ; want++ {
		_ = f.conn.SetReadDeadline(time.Now().Add(Silence))
		line, err := lines.ReadString('\n')
		if err != nil {
			f.err = fmt.Errorf("stream %s broke after %d ticks: %w", f.Path, want, err)
			return
		}
		if strings.TrimSpace(line) != strconv.Itoa(want) {
			f.err = fmt.Errorf("stream %s sent %q, want %d", f.Path, line, want)
			return
		}
		f.last.Store(time.Now().UnixNano())
	}
}

// Done returns a channel that is closed when the stream has ended.
func (f *Follower) Done() <-chan struct{} { return f.done }

// Alive returns nil while the stream continues.
func (f *Follower) Alive() error {
	select {
	case <-f.done:
		return f.err
	default:
	}
	if quiet := time.Since(f.Last()); quiet > Silence {
		return fmt.Errorf("stream %s has been silent for %s", f.Path, quiet)
	}
	return nil
}

// Last returns when the last tick arrived.
func (f *Follower) Last() time.Time { return time.Unix(0, f.last.Load()) }

// Close closes the stream.
func (f *Follower) Close() {
	_ = f.conn.Close()
	<-f.done
}
