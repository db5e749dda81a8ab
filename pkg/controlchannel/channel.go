// Package controlchannel is the server side of the control channel, which is exposed to the internet. It accepts
// connections, limits them, identifies the caller by the PROXY header and the certificate, and decides which calls the
// caller may make. The input is TCP connections; the output is calls of gRPC services, each of which still authorises
// what its caller may access.
//
// Trade-offs. The limit of message sizes is decided for a whole connection, by its certificate, because gRPC has one
// limit per server: so there are three servers behind one listener. A rejected certificate does not fail the
// handshake, which would give its holder no reason, but each of its calls.
package controlchannel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/fairlead/fairlead/pkg/model"
)

// shutdownTime is longer than an enrolment takes.
const shutdownTime = 20 * time.Second

// Config configures a Channel. Methods are full names, as /package.Service/Method.
type Config struct {
	Domain model.TunnelDomain
	TLS    *tls.Config // certs.ServerTLS
	// Anonymous are the methods for callers without a certificate.
	Anonymous []string
	// Expired are the methods for callers whose leaf has expired less than the grace time ago.
	Expired []string
	// Inside are the methods that are rejected through the gateways' public port.
	Inside []string
	// EdgeConnections bounds the connections of edges, of which an edge has one. When all are in use, a connection of a
	// tunnel with fewer displaces one of the tunnel with the most. 0, or more than 40,000: 40,000.
	EdgeConnections int
	// Closing is called when the shutdown begins. It must end streams that would not end by themselves. May be nil.
	Closing func()
	// Refused is called with the address of a caller whose TLS handshake failed, and the reason. It must not block.
	// May be nil.
	Refused func(address string, why error)
	// Calls handles the statistics of each call. May be nil.
	Calls stats.Handler
	Log   *slog.Logger
}

// Channel serves services on one listener. A connection that begins with a PROXY header (version 1 or 2) has come
// through the public port of a gateway, and the address in the header replaces the caller's.
type Channel struct {
	acceptor *acceptor
	closing  func()
	figures  *figures
	rules    rules
	servers  [classes]*grpc.Server
}

// New returns a Channel without services. Register them before Serve.
func New(config Config) *Channel { return newChannel(config, defaultBounds()) }

func newChannel(config Config, b bounds) *Channel {
	if config.EdgeConnections > 0 {
		b.known = min(b.known, config.EdgeConnections)
	}
	rules := newRules(config, b)
	rules.figures = newFigures()
	c := &Channel{acceptor: newAcceptor(config, b), closing: config.Closing, figures: rules.figures, rules: rules}
	c.acceptor.figures = rules.figures
	for class := range c.servers {
		c.servers[class] = newServer(class, rules, config.Calls)
	}
	return c
}

// SetEdgeConnections sets how many connections of edges are open from now on: at most as many as New has allowed.
// Connections in excess are closed at once, of the tunnels that have most.
func (c *Channel) SetEdgeConnections(n int) { c.acceptor.known.Resize(min(c.acceptor.bounds.known, n)) }

// RegisterService implements grpc.ServiceRegistrar.
func (c *Channel) RegisterService(description *grpc.ServiceDesc, service any) {
	c.figures.register(description)
	guarded := c.rules.guard(description)
	for _, server := range c.servers {
		server.RegisterService(guarded, service)
	}
}

// Serve serves a listener until ctx ends. Then it accepts no more connections, waits at most shutdownTime for calls,
// and returns nil. If the listener fails, it returns an error. It may be called once.
func (c *Channel) Serve(ctx context.Context, listener net.Listener) error {
	var (
		parts  sync.WaitGroup
		failed = make(chan error, classes+1)
	)
	for class, server := range c.servers {
		parts.Go(func() {
			if err := server.Serve(c.acceptor.inner[class]); err != nil {
				failed <- err
			}
		})
	}
	parts.Go(func() {
		if err := c.acceptor.accept(listener); err != nil {
			failed <- err
		}
	})
	var err error
	select {
	case err = <-failed:
		err = fmt.Errorf("serving %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	c.stop(listener)
	parts.Wait()
	c.acceptor.wait()
	return err
}

// stop ends everything, within shutdownTime.
func (c *Channel) stop(listener net.Listener) {
	c.acceptor.close()
	if err := listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		c.acceptor.log.Warn("cannot close listener", "error", err)
	}
	if c.closing != nil {
		c.closing()
	}
	var all sync.WaitGroup
	for _, server := range c.servers {
		all.Go(func() {
			force := time.AfterFunc(shutdownTime, server.Stop)
			defer force.Stop()
			server.GracefulStop()
		})
	}
	all.Wait()
}
