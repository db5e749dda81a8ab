package dial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/retry"
)

const (
	// maxForwarded is room for 8 enrolments with 4 tunnels to each of 16 gateways, and as many that are just being replaced.
	maxForwarded = 1024
	// forwardBuffer is what waits in here on its way out. A slow uplink would else fill megabytes of buffers with downloads,
	// behind which every other request waits (as Envoy's own settings for tunnels have it).
	forwardBuffer = 64 << 10
	// notSent is how much of it may be in the kernel beyond what is on the wire.
	notSent = 16 << 10
	// farewellTime is how long the other end may take to acknowledge the last that Envoy said. For a connection in which
	// nothing waits to be acknowledged there is TCP's keepalive.
	farewellTime = 15 * time.Second
	// acceptPause is how long no connection is accepted after an error that passes by.
	acceptPause = 100 * time.Millisecond
)

// Forward accepts connections on a loopback listener, for an Envoy that can't speak to the proxy itself, and joins each with
// one to the way's end, until ctx ends. Then all are closed, and it returns nil. It logs each reason why one could not be
// joined once.
func (w *Way) Forward(ctx context.Context, listener net.Listener, log *slog.Logger) error {
	if !isLoopback(listener.Addr()) {
		return fmt.Errorf("forwarding from %s: it is not this machine's loopback, so others could use it", listener.Addr())
	}
	ctx, cancel := context.WithCancel(ctx)
	f := &forwarder{way: w, log: log, slots: make(chan struct{}, maxForwarded)}
	defer f.running.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	for {
		conn, err := listener.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case err != nil:
			if err := f.pause(ctx, err); err != nil {
				return fmt.Errorf("forwarding from %s: %w", listener.Addr(), err)
			}
		default:
			f.accept(ctx, conn)
		}
	}
}

// forwarder is one run of Forward.
type forwarder struct {
	way     *Way
	log     *slog.Logger
	slots   chan struct{}
	running sync.WaitGroup

	mu      sync.Mutex
	reasons retry.Reasons
}

// pause waits a moment after an error of accept that passes by, such as too many open files, and returns any other.
func (f *forwarder) pause(ctx context.Context, err error) error {
	for _, passing := range []error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED} {
		if errors.Is(err, passing) {
			f.report(err)
			_ = retry.Sleep(ctx, acceptPause)
			return nil
		}
	}
	return err
}

func (f *forwarder) accept(ctx context.Context, conn net.Conn) {
	client, ok := conn.(*net.TCPConn)
	if !ok || !isLoopback(conn.RemoteAddr()) {
		_ = conn.Close()
		return
	}
	select {
	case f.slots <- struct{}{}:
	default:
		f.report(fmt.Errorf("there are %d connections already", maxForwarded))
		reset(client)
		return
	}
	f.running.Go(func() {
		defer func() { <-f.slots }()
		if err := f.join(ctx, client); err != nil {
			f.report(err)
			reset(client)
		}
	})
}

// report logs a reason that is new.
func (f *forwarder) report(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reasons.New(err) {
		f.log.Warn("connection is not forwarded", "proxy", f.way.Proxy.String(), "error", err)
	}
}

// join dials for a client, and returns when both have ended.
func (f *forwarder) join(ctx context.Context, client *net.TCPConn) error {
	_ = client.SetReadBuffer(forwardBuffer)
	up, end, err := f.way.dial(ctx)
	if err != nil {
		if ctx.Err() != nil {
			reset(client)
			return nil
		}
		return err
	}
	setOption(up, unix.TCP_NOTSENT_LOWAT, notSent)
	defer context.AfterFunc(ctx, func() { reset(client); reset(up) })()
	var sent, received int64
	var halves sync.WaitGroup
	halves.Go(func() {
		sent = pipe(up, client)
		setOption(up, unix.TCP_USER_TIMEOUT, int(farewellTime.Milliseconds()))
	})
	halves.Go(func() { received = pipe(client, up) })
	halves.Wait()
	_ = client.Close()
	_ = up.Close()
	if sent > 0 && received == 0 && ctx.Err() == nil {
		f.way.useless(end)
	}
	return nil
}

// pipe copies until the source ends, and hands the end on: one side may still be read when the other has nothing more to
// say. An error ends both. Between two TCP connections the kernel copies.
func pipe(to, from net.Conn) int64 {
	n, err := io.Copy(to, from)
	closer, ok := to.(interface{ CloseWrite() error })
	if err != nil || !ok || closer.CloseWrite() != nil {
		reset(from)
		reset(to)
	}
	return n
}

// reset closes a connection so that the other end knows that it was cut.
func reset(conn net.Conn) {
	if tcp := tcpOf(conn); tcp != nil {
		_ = tcp.SetLinger(0)
		_ = tcp.Close()
	}
	_ = conn.Close()
}

// tcpOf is the TCP connection below TLS with a proxy, or the connection itself.
func tcpOf(conn net.Conn) *net.TCPConn {
	if secure, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secure.NetConn()
	}
	tcp, _ := conn.(*net.TCPConn)
	return tcp
}

// setOption sets an option of TCP. Without it a connection works too, so errors are of no interest.
func setOption(conn net.Conn, option, value int) {
	tcp := tcpOf(conn)
	if tcp == nil {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, option, value) })
	}
}

func isLoopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
