package controlchannel

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// caller is who is at the other end of a connection. It is the connection's remote address, so that it is in the context
// of every call.
type caller struct {
	net.Addr        // the real one
	public   bool   // it came through the public port
	class    int    // of the server that serves it
	named    bool   // it has shown a certificate that is accepted
	node     string // of that certificate: what it is counted by
	id       string // of its tunnel, of an edge
	expired  bool   // which has expired, less than the grace time ago
	refusal  error  // of every call, a gRPC status; nil: none
	hangUp   func() // ends the connection soon; may be called more than once
}

// conn is a connection whose handshake is done.
type conn struct {
	*tls.Conn
	caller *caller
	auth   credentials.TLSInfo

	mu     sync.Mutex
	closed bool
	ends   []func() // called when it is closed
}

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return c.caller }

// Close implements net.Conn.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	ends := c.ends
	c.closed, c.ends = true, nil
	c.mu.Unlock()
	for _, end := range ends {
		end()
	}
	return err
}

// atEnd has something done when the connection is closed; at once, if it is.
func (c *conn) atEnd(end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		end()
		return
	}
	c.ends = append(c.ends, end)
}

// closeAfter closes the connection after some time, which may be over already.
func (c *conn) closeAfter(d time.Duration) {
	timer := time.AfterFunc(d, func() { _ = c.Close() })
	c.atEnd(func() { timer.Stop() })
}

// closeSoon ends the connection when what was said last has arrived.
func (c *conn) closeSoon() {
	time.AfterFunc(hangUpTime, func() { _ = c.Close() })
}

// buffered is a connection of which some bytes were read already.
type buffered struct {
	net.Conn
	reader *bufio.Reader // nil: they were read
}

// Read implements net.Conn.
func (b *buffered) Read(p []byte) (int, error) {
	if b.reader == nil {
		return b.Conn.Read(p)
	}
	if b.reader.Buffered() == 0 {
		b.reader = nil // and its buffer with it
		return b.Conn.Read(p)
	}
	return b.reader.Read(p)
}

// done are credentials for connections whose handshake is done.
type done struct{}

var errNotOurs = errors.New("the connection did not come through the door")

// ServerHandshake implements credentials.TransportCredentials.
func (done) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := raw.(*conn)
	if !ok {
		return nil, nil, errNotOurs
	}
	return c, c.auth, nil
}

// ClientHandshake implements credentials.TransportCredentials: there is no client here.
func (done) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.ErrUnsupported
}

// Info implements credentials.TransportCredentials.
func (done) Info() credentials.ProtocolInfo { return credentials.ProtocolInfo{SecurityProtocol: "tls"} }

// Clone implements credentials.TransportCredentials.
func (done) Clone() credentials.TransportCredentials { return done{} }

// OverrideServerName implements credentials.TransportCredentials.
func (done) OverrideServerName(string) error { return errors.ErrUnsupported }

// inner is the listener of one gRPC server: the door hands connections to it.
type inner struct {
	address net.Addr
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

func newInner(name string) *inner {
	return &inner{address: &net.UnixAddr{Net: "channel", Name: name}, conns: make(chan net.Conn), closed: make(chan struct{})}
}

// hand gives a connection to the server, or closes it when that accepts no more.
func (l *inner) hand(c net.Conn) {
	select {
	case l.conns <- c:
	case <-l.closed:
		_ = c.Close()
	}
}

// Accept implements net.Listener.
func (l *inner) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *inner) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *inner) Addr() net.Addr { return l.address }
