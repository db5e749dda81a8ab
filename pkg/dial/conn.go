package dial

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// connectTime bounds one attempt of gRPC: dial, handshake and the first bytes.
	connectTime = dialTime + handshakeTime + 2*time.Second
	// redialMin and redialMax bound the wait between attempts. After an outage, however long, a connection is back
	// within seconds, and a thousand machines are spread over these seconds.
	redialMin, redialMax = 300 * time.Millisecond, 2500 * time.Millisecond
	// pingTime is the minimum that gRPC allows, and more than the minimum that the xds-server enforces: a connection
	// that a NAT has dropped is detected within 14 s. pingTimeout is longer than the delay of an answer on a slow,
	// congested uplink.
	pingTime, pingTimeout = 10 * time.Second, 4 * time.Second
	// maxMessage leaves room for the largest response of an xds-server: resources of 64 MiB (pkg/xds), and the names of
	// removed ones.
	maxMessage = 128 << 20
)

// Conn prepares a gRPC connection to the xds-server at the end of a way; it connects with the first call. Each
// handshake reads the CAs of the xds-server from trust and the client certificate from identity. A nil identity
// presents no certificate, for enrolment. If there is no connection, the error of a call contains the reason. This
// includes a call that waits for a connection until its deadline.
func Conn(
	d *Dialer, domain model.TunnelDomain, trust certs.TrustSource, identity certs.Source,
) (*grpc.ClientConn, error) {
	l := &link{way: d, domain: domain, trust: trust, identity: identity}
	redial := backoff.Config{BaseDelay: redialMin, Multiplier: 1.6, Jitter: 0.3, MaxDelay: redialMax}
	// passthrough: the way resolves names at each attempt, and connects through its own proxy instead of gRPC's.
	conn, err := grpc.NewClient("passthrough:///"+domain.Control(),
		grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.dial(ctx) }),
		grpc.WithTransportCredentials(credential{l}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingTime, Timeout: pingTimeout, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: redial, MinConnectTimeout: connectTime}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithUnaryInterceptor(l.unary), grpc.WithStreamInterceptor(l.stream),
		grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return nil, fmt.Errorf("preparing the control channel: %w", err)
	}
	return conn, nil
}

// link is the state of a gRPC connection that gRPC does not keep: gRPC keeps only the text of an error.
type link struct {
	way      *Dialer
	domain   model.TunnelDomain
	trust    certs.TrustSource
	identity certs.Source

	mu     sync.Mutex
	conn   net.Conn // the connection that was dialled last
	target target   // of conn
	err    error    // why there is no connection; nil while there is one, or before the first attempt has ended
}

func (l *link) dial(ctx context.Context) (net.Conn, error) {
	conn, t, err := l.way.dial(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.err = err
		return nil, err
	}
	l.conn, l.target = conn, t
	return conn, nil
}

// takeTarget returns the target of a connection that dial has returned, once.
func (l *link) takeTarget(conn net.Conn) target {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != conn {
		return target{} // gRPC has dialled again in the meantime
	}
	l.conn = nil
	return l.target
}

func (l *link) failed(t target, err error) {
	l.way.markUnusable(t)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

func (l *link) worked(t target) {
	l.way.markWorked(t)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = nil
}

// explain replaces gRPC's error by the reason why there is no connection, which gRPC quotes or omits.
func (l *link) explain(err error) error {
	code := status.Code(err)
	if code != codes.Unavailable && code != codes.DeadlineExceeded {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		return err
	}
	return status.Error(code, l.err.Error())
}

func (l *link) unary(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption,
) error {
	return l.explain(invoke(ctx, method, request, reply, conn, options...))
}

func (l *link) stream(
	ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer,
	options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	stream, err := open(ctx, desc, conn, method, options...)
	return stream, l.explain(err)
}
