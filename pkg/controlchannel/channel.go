// Package controlchannel is the server side of the control channel, which faces the internet: it accepts connections, bounds them,
// reads who is at the other end from the PROXY header and the certificate, and decides which calls may be made. In go TCP
// connections, out come calls to gRPC services, each of which still decides itself what its caller may have.
//
// Trade-offs. Who may send large messages is decided for a whole connection, by its certificate, because gRPC has one limit
// for a server: so there are three servers behind one listener. A certificate that is not accepted does not break the
// handshake, which would tell its holder nothing, but each of its calls.
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

// shutdownTime is longer than an enrolment takes that has begun.
const shutdownTime = 20 * time.Second

// Config is what a Channel stands on. Methods are full names, as /package.Service/Method.
type Config struct {
	Domain model.TunnelDomain
	TLS    *tls.Config // certs.ServerTLS
	// Anonymous are the methods for callers that show no certificate.
	Anonymous []string
	// Expired are the methods for callers whose leaf has expired, but less than the grace time ago.
	Expired []string
	// Inside are the methods that can't be called through the gateways' public port.
	Inside []string
	// Closing is called when the end begins: it must end what would not end by itself, such as streams. May be nil.
	Closing func()
	// Refused is told of a caller with whom the TLS handshake has failed, and why; nil: nobody is. It must not block.
	Refused func(address string, why error)
	// Calls is told of each call that is let in, as of all that goes on in it; nil: nobody is.
	Calls stats.Handler
	Log   *slog.Logger
}

// Channel serves services on one listener. Connections that begin with a PROXY header (version 1 or 2) have come through
// the public port of a gateway; the address in it is the caller's from then on.
type Channel struct {
	door    *door
	closing func()
	figures *figures
	servers [classes]*grpc.Server
}

// New returns a channel that serves nothing yet.
func New(config Config) *Channel { return newChannel(config, defaultBounds()) }

func newChannel(config Config, b bounds) *Channel {
	rules := newRules(config, b)
	rules.figures = newFigures()
	c := &Channel{door: newDoor(config, b), closing: config.Closing, figures: rules.figures}
	c.door.figures = rules.figures
	for class := range c.servers {
		c.servers[class] = newServer(class, rules, config.Calls)
	}
	return c
}

// RegisterService implements grpc.ServiceRegistrar.
func (c *Channel) RegisterService(description *grpc.ServiceDesc, service any) {
	c.figures.learn(description)
	for _, server := range c.servers {
		server.RegisterService(description, service)
	}
}

// Serve serves a listener until ctx ends. Then it lets no more connections in, waits for calls for a while, and returns
// nil. It can be called once.
func (c *Channel) Serve(ctx context.Context, listener net.Listener) error {
	var (
		parts  sync.WaitGroup
		failed = make(chan error, classes+1)
	)
	for class, server := range c.servers {
		parts.Go(func() {
			if err := server.Serve(c.door.inner[class]); err != nil {
				failed <- err
			}
		})
	}
	parts.Go(func() {
		if err := c.door.accept(listener); err != nil {
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
	c.door.wait()
	return err
}

// stop ends everything, at the latest after shutdownTime.
func (c *Channel) stop(listener net.Listener) {
	c.door.close()
	if err := listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		c.door.log.Warn("listener not closed", "error", err)
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
