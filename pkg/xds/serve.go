package xds

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/fairlead/fairlead/pkg/certs"
)

const (
	// maxStreams bounds what one connection can ask for at a time: an Envoy has one stream, an agent one call.
	maxStreams = 16
	// maxMessage is room for the first request of a gateway that comes back: the name and the version of each Envoy cluster
	// that it has, about 130 bytes each, so 60,000 of them.
	maxMessage = 8 << 20
	// maxHeaders is far more than Envoy and gRPC send.
	maxHeaders = 16 << 10
	// handshakeTime bounds how long somebody who says nothing holds a connection.
	handshakeTime = 10 * time.Second
	// idleTime ends connections without a stream. Every Envoy has one all the time.
	idleTime = 5 * time.Minute
	// pingTime and pingTimeout find Envoys that went away without a word.
	pingTime, pingTimeout = 30 * time.Second, 10 * time.Second
	// minPing is far below the interval in which Envoys ping: who pings more often is cut off.
	minPing = 5 * time.Second
	// shutdownTime is longer than an enrolment takes that has begun.
	shutdownTime = 20 * time.Second
)

// NewGRPC returns a gRPC server for services of the control channel, with every limit that they share. Its TLS must be
// certs.ServerTLS. A connection ends with the leaf that it was opened with, because nothing else in it tells the holder to
// come back with the leaf that it has by then.
func NewGRPC(config *tls.Config) *grpc.Server {
	return grpc.NewServer(
		grpc.Creds(expiring{credentials.NewTLS(config)}),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTime, Time: pingTime, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	)
}

// Register adds ADS to a gRPC server.
func (s *Server) Register(g grpc.ServiceRegistrar) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, s)
}

// Serve serves a listener until ctx ends. Then it ends all ADS streams, which would never end by themselves, waits for the
// other calls for a while, and returns nil. After that no stream is opened again.
func (s *Server) Serve(ctx context.Context, g *grpc.Server, listener net.Listener) error {
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serving %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	s.close()
	force := time.AfterFunc(shutdownTime, g.Stop)
	defer force.Stop()
	g.GracefulStop()
	if err := <-ended; err != nil {
		return fmt.Errorf("serving %s: %w", listener.Addr(), err)
	}
	return nil
}

// expiring closes each connection when the leaf of its client ends.
type expiring struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (c expiring) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, auth, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	info, _ := auth.(credentials.TLSInfo)
	now := time.Now()
	leaf, err := certs.VerifyNow(info.State, now)
	if err != nil {
		return conn, auth, nil // enrols, or renews what has expired: short calls
	}
	timer := time.AfterFunc(leaf.NotAfter.Sub(now), func() { _ = conn.Close() })
	return &timedConn{conn, timer}, auth, nil
}

// Clone implements credentials.TransportCredentials.
func (c expiring) Clone() credentials.TransportCredentials {
	return expiring{c.TransportCredentials.Clone()}
}

// timedConn is a connection that a timer closes.
type timedConn struct {
	net.Conn
	timer *time.Timer
}

// Close implements net.Conn.
func (c *timedConn) Close() error {
	c.timer.Stop()
	return c.Conn.Close()
}

// logf is the adapter for go-control-plane, which formats its messages.
func logf(log *slog.Logger, level slog.Level, format string, args []any) {
	log.Log(context.Background(), level, "trouble in go-control-plane", "error", fmt.Sprintf(format, args...))
}
