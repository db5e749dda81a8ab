package synthetic

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// tunnelsPerGateway, streams, streamWindow and connectionWindow are those of pkg/envoy.
	tunnelsPerGateway = 2
	streams           = 512
	streamWindow      = 2 << 20
	connectionWindow  = streams * streamWindow

	// dialling bounds how many dial at a time. Real edges know no bound, but more than this would only wait outside of the gateway's
	// kernel, which lets 1,024 wait to be accepted.
	dialling = 1_200
	// dialTime and answerTime bound an attempt, as those of Envoy do.
	dialTime, answerTime = 5 * time.Second, 15 * time.Second
)

// Options say how all edges of a fleet are.
type Options struct {
	Domain  model.TunnelDomain
	Gateway string // its name: gateway-0
	// Dial reaches the public port. The connection must be a *net.TCPConn.
	Dial  func(ctx context.Context) (net.Conn, error)
	Roots *x509.CertPool // of the installation
	// Tunnels are how many each edge keeps; 0: as many as Envoy's edges do.
	Tunnels int
	// Dialling is how many dial at a time at most; 0: any number, within reason.
	Dialling int
	// Resume has edges resume TLS sessions of the gateway, as Envoy does by default.
	Resume bool
	// API answers what comes through the tunnels; it may be nil where nothing does.
	API *API
}

// Fleet are edges of one installation. It must be closed.
type Fleet struct {
	options Options
	outer   *tls.Config   // without a certificate
	inner   *tls.Config   // likewise
	server  *http2.Server //nolint:staticcheck // net/http can serve a listener, but not one connection that is there already
	poll    *poller
	slots   chan struct{}
	// working is held by who computes for a handshake. Edges are machines of their own, and here share few cores with clients: so few
	// compute at a time that nobody has to wait behind all of them.
	working chan struct{}
	stats   counters

	ctx   context.Context // ends with the fleet
	close context.CancelFunc

	mu    sync.Mutex
	edges []*Edge
	conns map[net.Conn]struct{} // all that are open
}

// Stats are figures of a fleet, since its start.
type Stats struct {
	Up      int64 // tunnels that are open
	Dials   int64 // attempts
	Failed  int64 // of those: could not connect, or were closed before the gateway's answer
	Refused int64 // of those: the gateway answered, but not with 200
	Lost    int64 // tunnels that ended
	Pings   int64 // RPINGs that were answered
	Used    int64 // tunnels in which TLS was done
	Resumed int64 // outer sessions of TLS that were resumed
	Streams int64 // CONNECT streams
	Broken  int64 // inner handshakes that failed
}

type counters struct {
	up, dials, failed, refused, lost, pings, used, resumed, streams, broken atomic.Int64
}

// New returns a fleet without edges.
func New(options Options) (*Fleet, error) {
	poll, err := newPoller()
	if err != nil {
		return nil, err
	}
	options.Tunnels, options.Dialling = cmp.Or(options.Tunnels, tunnelsPerGateway), cmp.Or(options.Dialling, dialling)
	f := &Fleet{
		options: options, poll: poll, slots: make(chan struct{}, options.Dialling), working: make(chan struct{}, 2*runtime.GOMAXPROCS(0)), conns: map[net.Conn]struct{}{},
		outer: &tls.Config{RootCAs: options.Roots, ServerName: options.Domain.GatewayReplica(options.Gateway), MinVersion: tls.VersionTLS13},
		inner: &tls.Config{
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: options.Roots, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13,
			VerifyConnection: func(state tls.ConnectionState) error {
				return state.PeerCertificates[0].VerifyHostname(options.Domain.Gateway())
			},
			SessionTicketsDisabled: true,
		},
		server: &http2.Server{ //nolint:staticcheck // see the field
			//nolint:staticcheck // see the field
			MaxConcurrentStreams: streams, MaxUploadBufferPerStream: streamWindow, MaxUploadBufferPerConnection: connectionWindow,
		},
	}
	f.ctx, f.close = context.WithCancel(context.Background())
	go f.poll.run()
	return f, nil
}

// Add adds an edge, which dials as soon as Start is called.
func (f *Fleet) Add(spec Spec) *Edge {
	e := &Edge{Spec: spec, fleet: f}
	if f.options.Resume {
		e.sessions = tls.NewLRUClientSessionCache(1)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.edges = append(f.edges, e)
	return e
}

// Edges are all, in the order in which they were added.
func (f *Fleet) Edges() []*Edge {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]*Edge{}, f.edges...)
}

// Stats are the figures so far.
func (f *Fleet) Stats() Stats {
	c := &f.stats
	return Stats{
		Up: c.up.Load(), Dials: c.dials.Load(), Failed: c.failed.Load(), Refused: c.refused.Load(), Lost: c.lost.Load(), Pings: c.pings.Load(),
		Used: c.used.Load(), Resumed: c.resumed.Load(), Streams: c.streams.Load(), Broken: c.broken.Load(),
	}
}

// WaitUp waits until so many tunnels are open at once, and returns how long it took.
func (f *Fleet) WaitUp(ctx context.Context, tunnels int64) (time.Duration, error) {
	begin := time.Now()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for f.stats.up.Load() < tunnels {
		select {
		case <-ctx.Done():
			return time.Since(begin), ctx.Err()
		case <-tick.C:
		}
	}
	return time.Since(begin), nil
}

// Close ends all tunnels.
func (f *Fleet) Close() error {
	f.close()
	f.mu.Lock()
	for conn := range f.conns {
		_ = conn.Close()
	}
	f.mu.Unlock()
	return f.poll.close()
}

// track has Close close a connection. It says false when the fleet is closed already.
func (f *Fleet) track(conn net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() != nil {
		return false
	}
	f.conns[conn] = struct{}{}
	return true
}

func (f *Fleet) forget(conn net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, conn)
}

var errNotTCP = errors.New("the connection to the gateway is none of TCP")

// serve speaks HTTP/2 in a tunnel until it ends.
func (f *Fleet) serve(conn *tls.Conn, handler http.Handler) {
	//nolint:staticcheck // see the field
	f.server.ServeConn(conn, &http2.ServeConnOpts{Context: f.ctx, Handler: handler})
}
