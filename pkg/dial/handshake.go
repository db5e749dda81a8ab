package dial

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
)

const (
	// handshakeTime bounds a handshake: one round trip and a few milliseconds, where somebody answers at all. If nobody does,
	// the next attempt goes to another address.
	handshakeTime = 4 * time.Second
	// maxHeard is what is kept of an answer, in case that it is no TLS.
	maxHeard = 256
)

// ErrNoTrust is wrapped by the error of a call when there is no CA by which to know the xds-server.
var ErrNoTrust = errors.New("there is no CA by which to know the xds-server: the bootstrap file has none, or none was stored")

// credential makes TLS of a link's connections.
type credential struct{ link *link }

// Info implements credentials.TransportCredentials.
func (c credential) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials. There is nothing that a copy could change.
func (c credential) Clone() credentials.TransportCredentials { return c }

// OverrideServerName implements credentials.TransportCredentials. The name is the domain's, always.
func (c credential) OverrideServerName(string) error { return nil }

// ServerHandshake implements credentials.TransportCredentials.
func (c credential) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are a client's")
}

// ClientHandshake implements credentials.TransportCredentials. Trust bundle and identity are those of this moment.
func (c credential) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	end := c.link.end(raw)
	m := meeting{name: c.link.domain.Control(), where: end.String()}
	config, err := c.config(&m)
	if err != nil {
		c.link.failed(end, err)
		return nil, nil, err
	}
	heard := &recorder{Conn: raw}
	conn, info, err := credentials.NewTLS(config).ClientHandshake(ctx, m.name, heard)
	if err != nil {
		m.now, m.answer = time.Now(), heard.first()
		err = m.explain(err)
		c.link.failed(end, err)
		return nil, nil, err
	}
	return &opening{Conn: conn, link: c.link, target: end, meeting: m}, info, nil
}

// config is the TLS of one handshake.
func (c credential) config(m *meeting) (*tls.Config, error) {
	if c.link.trust == nil {
		return nil, ErrNoTrust
	}
	roots, err := c.link.trust.Roots()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoTrust, err)
	}
	if roots == nil || roots.Equal(x509.NewCertPool()) {
		return nil, ErrNoTrust // crypto/tls would take the machine's roots for none
	}
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots}
	if c.link.identity == nil {
		return config, nil
	}
	identity, err := c.link.identity.Identity()
	if err != nil {
		return nil, fmt.Errorf("reading identity for the control channel: %w", err)
	}
	m.leaf = identity.Leaf()
	certificate := identity.TLSCertificate()
	// Not Certificates: crypto/tls would hold back one that the server's list of CAs seems not to fit.
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }
	return config, nil
}

// recorder keeps the first bytes that come.
type recorder struct {
	net.Conn
	heard atomic.Pointer[[]byte] // handshakes that end by a deadline may still read
}

// Read implements net.Conn.
func (r *recorder) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	if before := r.first(); n > 0 && len(before) < maxHeard {
		after := append(before[:len(before):len(before)], b[:min(n, maxHeard-len(before))]...)
		r.heard.Store(&after)
	}
	return n, err
}

func (r *recorder) first() []byte {
	if heard := r.heard.Load(); heard != nil {
		return *heard
	}
	return nil
}

// opening is a connection until its first bytes: in TLS 1.3 a client learns only by them whether the server took its
// certificate.
type opening struct {
	net.Conn
	link    *link
	target  target
	meeting meeting
	opened  atomic.Bool
}

// Read implements net.Conn.
func (o *opening) Read(b []byte) (int, error) {
	n, err := o.Conn.Read(b)
	if o.opened.Load() {
		return n, err
	}
	switch {
	case n > 0:
		o.opened.Store(true)
		o.link.worked(o.target)
	case err != nil && !errors.Is(err, net.ErrClosed): // closed: by gRPC itself
		m := o.meeting
		m.now, m.greeted = time.Now(), true
		err = m.explain(err)
		o.link.failed(o.target, err)
	}
	return n, err
}
