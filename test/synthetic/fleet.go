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
	// tunnelsPerGateway, streams, streamWindow and connectionWindow are the values of pkg/envoy.
	tunnelsPerGateway = 2
	streams           = 512
	streamWindow      = 2 << 20
	connectionWindow  = streams * streamWindow

	// dialling bounds how many edges dial at the same time. Real edges have no such bound, but more would only wait
	// outside of the gateway's kernel, which queues 1,024 connections.
	dialling = 1_200
	// dialTime and answerTime bound an attempt, as in Envoy.
	dialTime, answerTime = 5 * time.Second, 15 * time.Second
)

// Options configure all edges of a fleet.
type Options struct {
	Domain  model.TunnelDomain
	Gateway string // the gateway's name: gateway-0
	// Dial connects to the public port. The connection must be a *net.TCPConn.
	Dial  func(ctx context.Context) (net.Conn, error)
	Roots *x509.CertPool // of the installation
	// Tunnels is how many tunnels each edge keeps; 0: the number of Envoy's edges.
	Tunnels int
	// Dialling is how many edges may dial at the same time; 0: the default bound.
	Dialling int
	// Resume makes edges resume the gateway's TLS sessions, as Envoy does by default.
	Resume bool
	// API answers the requests in the tunnels; it may be nil if there are none.
	API *API
}

// Fleet is the edges of one installation. The caller must close it.
type Fleet struct {
	options Options
	outer   *tls.Config   // without a certificate
	inner   *tls.Config   // without a certificate
	server  *http2.Server //nolint:staticcheck // net/http can serve a listener, but not a single open connection
	poll    *poller
	slots   chan struct{}
	// working holds a slot for each handshake that computes. Real edges are separate machines, but these share a few
	// cores with the clients. The slots keep clients from waiting behind the computation of all edges.
	working chan struct{}
	stats   counters

	ctx   context.Context // ends with the fleet
	close context.CancelFunc

	mu    sync.Mutex
	edges []*Edge
	conns map[net.Conn]struct{} // all open connections
}

// Stats are the figures of a fleet since its start.
type Stats struct {
	Up      int64 // open tunnels
	Dials   int64 // attempts
	Failed  int64 // attempts without a connection, or closed before the gateway's answer
	Refused int64 // attempts with another answer than 200
	Lost    int64 // ended tunnels
	Pings   int64 // RPINGs answered
	Used    int64 // tunnels with an inner TLS handshake
	Resumed int64 // resumed outer TLS sessions
	Streams int64 // CONNECT streams
	Broken  int64 // failed inner handshakes
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
		options: options, poll: poll, slots: make(chan struct{}, options.Dialling), working: make(chan struct{},
			2*runtime.GOMAXPROCS(0)), conns: map[net.Conn]struct{}{},
		outer: &tls.Config{
			RootCAs:    options.Roots,
			ServerName: options.Domain.GatewayReplica(options.Gateway),
			MinVersion: tls.VersionTLS13,
		},
		inner: &tls.Config{
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: options.Roots, NextProtos: []string{"h2"},
			MinVersion: tls.VersionTLS13,
			VerifyConnection: func(state tls.ConnectionState) error {
				return state.PeerCertificates[0].VerifyHostname(options.Domain.Gateway())
			},
			SessionTicketsDisabled: true,
		},
		server: &http2.Server{ //nolint:staticcheck // see the field
			MaxConcurrentStreams: streams, MaxUploadBufferPerStream: streamWindow,
			MaxUploadBufferPerConnection: connectionWindow, //nolint:staticcheck // see the field
		},
	}
	f.ctx, f.close = context.WithCancel(context.Background())
	go f.poll.run()
	return f, nil
}

// Add adds an edge, which dials when Start is called.
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

// Edges returns all edges in the order of Add.
func (f *Fleet) Edges() []*Edge {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]*Edge{}, f.edges...)
}

// Stats returns the figures so far.
func (f *Fleet) Stats() Stats {
	c := &f.stats
	return Stats{
		Up: c.up.Load(), Dials: c.dials.Load(), Failed: c.failed.Load(), Refused: c.refused.Load(), Lost: c.lost.Load(),
		Pings: c.pings.Load(),
		Used:  c.used.Load(), Resumed: c.resumed.Load(), Streams: c.streams.Load(), Broken: c.broken.Load(),
	}
}

// WaitUp waits until at least the given number of tunnels are open at the same time, and returns how long that took.
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

// Close closes all tunnels.
func (f *Fleet) Close() error {
	f.close()
	f.mu.Lock()
	for conn := range f.conns {
		_ = conn.Close()
	}
	f.mu.Unlock()
	return f.poll.close()
}

// track registers a connection, which Close then closes. It returns false if the fleet is closed already.
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

// serve serves HTTP/2 in a tunnel until it ends.
func (f *Fleet) serve(conn *tls.Conn, handler http.Handler) {
	//nolint:staticcheck // see the field
	f.server.ServeConn(conn, &http2.ServeConnOpts{Context: f.ctx, Handler: handler})
}
