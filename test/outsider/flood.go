package outsider

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// floodSenders share the rate of a Flood.
const floodSenders = 8

// Flood opens connections to a gateway's public port and sends a TLS ClientHello on each, which costs an attacker
// nothing.
type Flood struct {
	dial     func(context.Context) (net.Conn, error)
	message  []byte
	begin    time.Time
	stop     context.CancelFunc
	all      sync.WaitGroup
	sent     atomic.Int64
	admitted atomic.Int64
}

// Flooded is the outcome of a Flood.
type Flooded struct {
	Sent      int     // connections opened
	Admitted  int     // connections on which the gateway continued TLS
	PerSecond float64 // connections opened per second
}

// StartFlood opens up to perSecond connections per second until Stop is called; a slow machine opens fewer. The
// ClientHello contains a server name.
func StartFlood(
	ctx context.Context, dial func(context.Context) (net.Conn, error), name string, perSecond int,
) (*Flood, error) {
	message, err := firstMessage(name)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	f := &Flood{dial: dial, message: message, begin: time.Now(), stop: stop}
	for range floodSenders {
		f.all.Go(func() { f.send(ctx, floodSenders*time.Second/time.Duration(perSecond)) })
	}
	return f, nil
}

// Stop ends the flood and waits until its connections are closed.
func (f *Flood) Stop() Flooded {
	f.stop()
	took := time.Since(f.begin)
	f.all.Wait()
	return Flooded{
		Sent:      int(f.sent.Load()),
		Admitted:  int(f.admitted.Load()),
		PerSecond: float64(f.sent.Load()) / took.Seconds(),
	}
}

func (f *Flood) send(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for ctx.Err() == nil {
		if conn, err := f.dial(ctx); err == nil {
			f.sent.Add(1)
			f.all.Go(func() { f.knock(conn) })
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (f *Flood) knock(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write(f.message); err != nil {
		return
	}
	if admitted(conn) {
		f.admitted.Add(1)
	}
}

// admitted reports whether the gateway sends data and leaves the connection open until its deadline. Envoy answers a
// ClientHello even while it decides whether to admit the connection, so an answer alone is no proof.
func admitted(conn net.Conn) bool {
	buffer, answered := make([]byte, 4096), false
	for {
		n, err := conn.Read(buffer)
		answered = answered || n > 0
		if err != nil {
			return answered && errors.Is(err, os.ErrDeadlineExceeded)
		}
	}
}

// firstMessage returns a TLS ClientHello for a server name.
func firstMessage(name string) ([]byte, error) {
	ours, theirs := net.Pipe()
	defer func() { _, _ = ours.Close(), theirs.Close() }()
	go func() {
		_ = tls.Client(theirs, &tls.Config{ServerName: name, MinVersion: tls.VersionTLS13}).Handshake()
	}()
	buffer := make([]byte, 8<<10)
	n, err := ours.Read(buffer)
	if err != nil {
		return nil, fmt.Errorf("making the first message of TLS: %w", err)
	}
	return buffer[:n], nil
}
