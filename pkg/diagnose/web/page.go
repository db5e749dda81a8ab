// Package web serves a status page of the fleet to browsers: a table of all Clusters, and one page for each with the
// hops of pkg/diagnose/check. Its input is Clusters, Tunnels and RemoteNetworks of the management cluster; its
// output is static files, JSON, and changes as server-sent events (HTML Living Standard, section 9.2). It only
// reads, and stores one row per Cluster and only a cursor per reader.
package web

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/pkg/diagnose/summary"
	"github.com/fairlead/fairlead/pkg/model"
)

// Bounds on the resources that readers take from a server on which every edge depends.
const (
	maxConnections = 256
	maxRequests    = 32 // concurrent, without streams
	maxStreams     = 128
	maxWatched     = 16 // Clusters whose pages are open concurrently
	maxHeader      = 16 << 10
	headerTime     = 5 * time.Second
	idleTime       = 90 * time.Second
	closeTime      = 5 * time.Second
)

// Config holds the dependencies and settings of a Page.
type Config struct {
	Domain model.TunnelDomain // which the page shows as the name of the installation
	// Objects reads single Clusters and Tunnels, and the RemoteNetworks of a namespace, whole and without a cache.
	Objects client.Reader
	// Check checks one Cluster. nil: the page shows no hops.
	Check func(ctx context.Context, key client.ObjectKey) check.Report
	// Live returns the open tunnels of the given Tunnel.spec.ids, or all. If Live is nil or returns nil, the page shows
	// only the content of the objects.
	Live func(ctx context.Context, ids ...string) *summary.Live
	// Reviewer authorizes readers by their bearer tokens. nil: all requests to a loopback name are allowed.
	Reviewer Reviewer
	Log      *slog.Logger
	Now      func() time.Time // nil: time.Now
	// Timing is for tests; zero values select the defaults.
	Timing Timing
}

// Timing has the intervals of a page.
type Timing struct {
	Gather  time.Duration // changes within it form one event; 250 ms
	Beat    time.Duration // the longest time without an event; 15 s
	Write   time.Duration // of one event: a reader that takes nothing for this long is disconnected; 10 s
	Stream  time.Duration // the duration of a stream, after which its reader is reviewed again; 10 min
	Check   time.Duration // between two checks of a Cluster whose page is open; 15 s
	Request time.Duration // for a request that is not a stream; 30 s
}

// Page is the page's server. It is safe for concurrent use.
type Page struct {
	Config
	fleet     *fleet
	files     map[string]file
	requests  chan struct{}
	streams   chan struct{}
	making    sync.Mutex     // held while a row is created
	following atomic.Int32   // readers of the table
	first     chan struct{}  // capacity 1: signals the first reader of the table
	reviews   sync.WaitGroup // readers that check Clusters with open pages

	mu      sync.Mutex
	read    bool // all objects have been read once
	watched map[model.Key]*watched
	payload payload
	live    *summary.Live // as of the last time that a reader followed the fleet
}

// New returns a page without rows; Watch adds them.
func New(c Config) (*Page, error) {
	files, err := readFiles()
	if err != nil {
		return nil, err
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	for _, d := range []struct {
		value *time.Duration
		usual time.Duration
	}{
		{&c.Timing.Gather, 250 * time.Millisecond},
		{&c.Timing.Beat, 15 * time.Second},
		{&c.Timing.Write, 10 * time.Second},
		{&c.Timing.Stream, 10 * time.Minute},
		{&c.Timing.Check, 15 * time.Second},
		{&c.Timing.Request, 30 * time.Second},
	} {
		if *d.value <= 0 {
			*d.value = d.usual
		}
	}
	return &Page{
		Config: c, fleet: newFleet(), files: files, watched: map[model.Key]*watched{},
		requests: make(chan struct{}, maxRequests), streams: make(chan struct{}, maxStreams), first: make(chan struct{}, 1),
	}, nil
}

// Handler serves the page. All of its links are relative, so that a proxy may serve it below any path.
func (p *Page) Handler() http.Handler {
	mux := http.NewServeMux()
	for path := range p.files {
		mux.HandleFunc("GET "+path, bounded(p.requests, "requests", p.serveFile))
	}
	mux.HandleFunc("GET /api/fleet", bounded(p.requests, "requests", p.serveFleet))
	mux.HandleFunc("GET /api/fleet/events", bounded(p.streams, "open pages", p.streamFleet))
	mux.HandleFunc("GET /api/cluster/events", bounded(p.streams, "open pages", p.streamCluster))
	var handler http.Handler = mux
	if p.Reviewer != nil {
		handler = reviewed(p.Reviewer, p.Log, handler)
	} else {
		handler = local(handler)
	}
	return secured(ownOnly(handler))
}

// bounded answers with 503 when all slots are in use.
func bounded(places chan struct{}, what string, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
			next(w, r)
		default:
			w.Header().Set("Retry-After", "5")
			http.Error(
				w, fmt.Sprintf("it has %d %s already, which is as many as it serves at the same time", cap(places), what),
				http.StatusServiceUnavailable,
			)
		}
	}
}

// Serve serves on a listener, which it closes, until ctx ends; without TLS if secure is nil.
func (p *Page) Serve(ctx context.Context, listener net.Listener, secure *tls.Config) error {
	listener = netutil.LimitListener(listener, maxConnections)
	if secure != nil {
		listener = tls.NewListener(listener, secure) // outermost, otherwise net/http would not detect HTTP/2
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := &http.Server{
		Handler:           p.Handler(),
		ReadHeaderTimeout: headerTime, ReadTimeout: p.Timing.Request, WriteTimeout: p.Timing.Request, IdleTimeout: idleTime,
		MaxHeaderBytes: maxHeader,
		BaseContext:    func(net.Listener) context.Context { return ctx }, // streams end with ctx
		ErrorLog:       log.New(quiet{p.Log}, "", 0),
	}
	var parts errgroup.Group
	parts.Go(func() error {
		defer cancel()
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving the page: %w", err)
		}
		return nil
	})
	parts.Go(func() error {
		<-ctx.Done()
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
		defer cancel()
		if err := server.Shutdown(ending); err != nil {
			return server.Close()
		}
		return nil
	})
	err := parts.Wait()
	p.reviews.Wait()
	return err
}

// quiet receives net/http's messages about broken connections, which concern only the readers.
type quiet struct{ log *slog.Logger }

func (q quiet) Write(line []byte) (int, error) {
	q.log.Debug("connection of a reader", "error", string(line))
	return len(line), nil
}
