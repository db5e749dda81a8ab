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

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// handshakeTime bounds a handshake: one round trip and a few milliseconds, if the server answers at all. Otherwise
	// the next attempt uses another address.
	handshakeTime = 4 * time.Second
	// maxRecorded bounds how much of an answer is kept, in case it is not TLS.
	maxRecorded = 256
)

// ErrNoTrust is wrapped by the error of a call if there is no CA to verify the xds-server with.
var ErrNoTrust = errors.New("no CA to verify the xds-server: neither the bootstrap file nor the state folder has one")

// credential does the TLS handshakes of a link's connections.
type credential struct{ link *link }

// Info implements credentials.TransportCredentials.
func (c credential) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials. It returns c, which is immutable.
func (c credential) Clone() credentials.TransportCredentials { return c }

// OverrideServerName implements credentials.TransportCredentials. It does nothing: the server name is always the
// domain's.
func (c credential) OverrideServerName(string) error { return nil }

// ServerHandshake implements credentials.TransportCredentials. It always returns an error.
func (c credential) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are for clients only")
}

// ClientHandshake implements credentials.TransportCredentials. It reads the trust bundle and the identity each time.
func (c credential) ClientHandshake(
	ctx context.Context, _ string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	end := c.link.takeTarget(raw)
	m := handshakeState{name: c.link.domain.Control(), where: end.String()}
	config, err := c.config(&m)
	if err != nil {
		c.link.failed(end, err)
		return nil, nil, err
	}
	received := &recorder{Conn: raw}
	conn, info, err := credentials.NewTLS(config).ClientHandshake(ctx, m.name, received)
	if err != nil {
		m.now, m.answer = time.Now(), received.first()
		err = m.explain(err)
		c.link.failed(end, err)
		return nil, nil, err
	}
	return &opening{Conn: conn, link: c.link, target: end, handshakeState: m}, info, nil
}

// Handshake opens one connection to the control channel without a certificate, for tests of a network. The error has
// the reason, like that of a call of Conn. The connection accepts HTTP/2.
func Handshake(
	ctx context.Context, d *Dialer, domain model.TunnelDomain, trust certs.TrustSource,
) (net.Conn, tls.ConnectionState, error) {
	l := &link{way: d, domain: domain, trust: trust}
	raw, err := l.dial(ctx)
	if err != nil {
		return nil, tls.ConnectionState{}, err
	}
	conn, info, err := credential{l}.ClientHandshake(ctx, "", raw)
	if err != nil {
		_ = raw.Close()
		return nil, tls.ConnectionState{}, err
	}
	return conn, info.(credentials.TLSInfo).State, nil
}

// config returns the TLS configuration of one handshake.
func (c credential) config(m *handshakeState) (*tls.Config, error) {
	if c.link.trust == nil {
		return nil, ErrNoTrust
	}
	roots, err := c.link.trust.Roots()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoTrust, err)
	}
	if roots == nil || roots.Equal(x509.NewCertPool()) {
		return nil, ErrNoTrust // with nil roots, crypto/tls would use the machine's roots
	}
	config := certs.ClientTLS(m.name, roots)
	if c.link.identity == nil {
		return config, nil
	}
	identity, err := c.link.identity.Identity()
	if err != nil {
		return nil, fmt.Errorf("reading identity for the control channel: %w", err)
	}
	m.leaf = identity.Leaf()
	certificate := identity.TLSCertificate()
	// Not Certificates: crypto/tls would not send a certificate that does not match the server's list of CAs.
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }
	return config, nil
}

// recorder keeps the first received bytes.
type recorder struct {
	net.Conn
	received atomic.Pointer[[]byte] // handshakes that end by a deadline may still read
}

// Read implements net.Conn.
func (r *recorder) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	if before := r.first(); n > 0 && len(before) < maxRecorded {
		after := append(before[:len(before):len(before)], b[:min(n, maxRecorded-len(before))]...)
		r.received.Store(&after)
	}
	return n, err
}

func (r *recorder) first() []byte {
	if received := r.received.Load(); received != nil {
		return *received
	}
	return nil
}

// opening is a connection until its first bytes: with TLS 1.3, only they show the client that the server accepted its
// certificate.
type opening struct {
	net.Conn
	link           *link
	target         target
	handshakeState handshakeState
	opened         atomic.Bool
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
	case err != nil && !errors.Is(err, net.ErrClosed): // closed by gRPC itself
		m := o.handshakeState
		m.now, m.completed = time.Now(), true
		err = m.explain(err)
		o.link.failed(o.target, err)
	}
	return n, err
}
