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
	// connectTime is how long gRPC lets one attempt take: dial, handshake and the first bytes.
	connectTime = dialTime + handshakeTime + 2*time.Second
	// redialMin and redialMax bound the wait between attempts. After an outage, however long, a connection is back within
	// seconds, and a thousand machines are spread over them.
	redialMin, redialMax = 300 * time.Millisecond, 2500 * time.Millisecond
	// pingTime is the least that gRPC allows, and more than the xds-server does: a connection that a NAT forgot is found
	// in 14 s. pingTimeout is longer than a slow uplink full of data delays an answer.
	pingTime, pingTimeout = 10 * time.Second, 4 * time.Second
	// maxMessage is room for what a gateway gets at once: 60,000 Envoy clusters of about 2 KB.
	maxMessage = 128 << 20
)

// Conn prepares a gRPC connection to the xds-server at the end of a way; it connects with the first call. Whom to take for
// the xds-server is read from trust at each handshake, whom to be from identity; nil: nobody, for enrolment. A call that
// fails because there is no connection says in its error what is in the way. So does one that waits for a connection
// until its deadline.
func Conn(w *Way, domain model.TunnelDomain, trust certs.TrustSource, identity certs.Source) (*grpc.ClientConn, error) {
	l := &link{way: w, domain: domain, trust: trust, identity: identity}
	redial := backoff.Config{BaseDelay: redialMin, Multiplier: 1.6, Jitter: 0.3, MaxDelay: redialMax}
	// passthrough: names are looked up by the way, at each attempt, and the proxy is the way's, not gRPC's.
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

// link is what a gRPC connection has beside gRPC: gRPC itself keeps no more of an error than its text.
type link struct {
	way      *Way
	domain   model.TunnelDomain
	trust    certs.TrustSource
	identity certs.Source

	mu     sync.Mutex
	conn   net.Conn // that was dialled last
	target target   // of conn
	err    error    // why there is no connection; nil: there is one, or the first attempt has not ended
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

// end returns the target of a connection that dial has returned.
func (l *link) end(conn net.Conn) target {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != conn {
		return target{} // gRPC dialled again in the meantime
	}
	l.conn = nil
	return l.target
}

func (l *link) failed(t target, err error) {
	l.way.useless(t)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

func (l *link) worked(t target) {
	l.way.worked(t)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = nil
}

// explain puts the reason why there is no connection in the place of gRPC's error, which has it in quotes or not at all.
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

func (l *link) unary(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	return l.explain(invoke(ctx, method, request, reply, conn, options...))
}

func (l *link) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := open(ctx, desc, conn, method, options...)
	return stream, l.explain(err)
}
