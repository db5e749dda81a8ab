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

// caller is the peer of a connection. It is the connection's remote address, so that it is in the context of every
// call.
type caller struct {
	net.Addr          // the client's own address
	public     bool   // connected through the public port
	class      int    // of the server that serves it
	named      bool   // has presented an accepted certificate
	node       string // subject of that certificate, for limits
	id         string // tunnel id of an edge, or of the Envoy beside an apiserver
	expired    bool   // the certificate has expired, less than the grace time ago
	rejection  error  // gRPC status for every call; nil: none
	disconnect func() // closes the connection soon; may be called more than once
}

// conn is a connection whose handshake is finished.
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

// onClose registers a function for when the connection is closed. If it is closed already, it calls end at once.
func (c *conn) onClose(end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		end()
		return
	}
	c.ends = append(c.ends, end)
}

// closeAfter closes the connection after d, which may be negative.
func (c *conn) closeAfter(d time.Duration) {
	timer := time.AfterFunc(d, func() { _ = c.Close() })
	c.onClose(func() { timer.Stop() })
}

// closeSoon closes the connection after the last answer has had time to arrive.
func (c *conn) closeSoon() {
	time.AfterFunc(lingerTime, func() { _ = c.Close() })
}

// buffered is a connection whose first bytes were already read.
type buffered struct {
	net.Conn
	reader *bufio.Reader // nil: its bytes were consumed
}

// Read implements net.Conn.
func (b *buffered) Read(p []byte) (int, error) {
	if b.reader == nil {
		return b.Conn.Read(p)
	}
	if b.reader.Buffered() == 0 {
		b.reader = nil // also releases its buffer
		return b.Conn.Read(p)
	}
	return b.reader.Read(p)
}

// finished are credentials for connections whose handshake is finished.
type finished struct{}

var errNotOurs = errors.New("the connection was not accepted by this server's listener")

// ServerHandshake implements credentials.TransportCredentials.
func (finished) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := raw.(*conn)
	if !ok {
		return nil, nil, errNotOurs
	}
	return c, c.auth, nil
}

// ClientHandshake implements credentials.TransportCredentials. It always returns an error.
func (finished) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.ErrUnsupported
}

// Info implements credentials.TransportCredentials.
func (finished) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (finished) Clone() credentials.TransportCredentials { return finished{} }

// OverrideServerName implements credentials.TransportCredentials.
func (finished) OverrideServerName(string) error { return errors.ErrUnsupported }

// inner is the listener of one gRPC server. The acceptor delivers connections to it.
type inner struct {
	address net.Addr
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

func newInner(name string) *inner {
	return &inner{
		address: &net.UnixAddr{Net: "channel", Name: name},
		conns:   make(chan net.Conn),
		closed:  make(chan struct{}),
	}
}

// deliver passes a connection to the server, or closes it if the listener is closed.
func (l *inner) deliver(c net.Conn) {
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
