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
	// maxForwarded bounds what other programs of the machine can open here, and must not bound an edge. With the default
	// lanes and 6 workers an edge has 6,336 reverse tunnels to 16 gateways, with the most lanes 9,252 to 3 gateways. The
	// rest is for further enrolments and for replacements. The ports of loopback suffice for all.
	maxForwarded = 16 << 10
	// forwardBuffer bounds the data that waits here to be sent. Otherwise downloads would fill megabytes of buffers on
	// a slow uplink, and every other request would wait behind them. Envoy's settings for reverse tunnels have the
	// same purpose.
	forwardBuffer = 64 << 10
	// notSent bounds the unsent data in the kernel.
	notSent = 16 << 10
	// lastAckTime bounds the time until the other end acknowledges the last data from Envoy. TCP's keepalive covers
	// connections without unacknowledged data.
	lastAckTime = 15 * time.Second
	// acceptPause is the wait after a temporary error of accept.
	acceptPause = 100 * time.Millisecond
)

// Forward accepts connections on a loopback listener and joins each with a new connection to the way's end, until ctx
// ends. It is for an Envoy that cannot use the proxy itself. When ctx ends it closes all connections and returns nil.
// It logs each distinct reason for which a connection could not be joined, once. It returns an error if the listener
// is not on loopback or fails permanently.
func (d *Dialer) Forward(ctx context.Context, listener net.Listener, log *slog.Logger) error {
	if !isLoopback(listener.Addr()) {
		return fmt.Errorf("forwarding from %s: it is not a loopback address, so other machines could use it", listener.Addr())
	}
	ctx, cancel := context.WithCancel(ctx)
	f := &forwarder{way: d, log: log, slots: make(chan struct{}, maxForwarded)}
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

// forwarder is the state of one call of Forward.
type forwarder struct {
	way     *Dialer
	log     *slog.Logger
	slots   chan struct{}
	running sync.WaitGroup

	mu      sync.Mutex
	reasons retry.Reasons
}

// pause waits after a temporary error of accept, such as too many open files, and returns any other error.
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
		f.report(fmt.Errorf("%d connections are open, the maximum", maxForwarded))
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

// report logs a new reason.
func (f *forwarder) report(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reasons.New(err) {
		f.log.Warn("cannot forward connection", "proxy", f.way.Proxy.String(), "error", err)
	}
}

// join dials for a client, and returns when both connections have ended.
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
		setOption(up, unix.TCP_USER_TIMEOUT, int(lastAckTime.Milliseconds()))
	})
	halves.Go(func() { received = pipe(client, up) })
	halves.Wait()
	_ = client.Close()
	_ = up.Close()
	if sent > 0 && received == 0 && ctx.Err() == nil {
		f.way.markUnusable(end)
	}
	return nil
}

// pipe copies until the source ends, and then closes the destination for writing: the other direction may continue. An
// error resets both connections. Between two TCP connections the kernel copies.
func pipe(to, from net.Conn) int64 {
	n, err := io.Copy(to, from)
	closer, ok := to.(interface{ CloseWrite() error })
	if err != nil || !ok || closer.CloseWrite() != nil {
		reset(from)
		reset(to)
	}
	return n
}

// reset closes a connection with RST, so that the other end notices the error.
func reset(conn net.Conn) {
	if tcp := tcpOf(conn); tcp != nil {
		_ = tcp.SetLinger(0)
		_ = tcp.Close()
	}
	_ = conn.Close()
}

// tcpOf returns the TCP connection below the TLS connection to a proxy, or conn itself, or nil if it is neither.
func tcpOf(conn net.Conn) *net.TCPConn {
	if secure, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secure.NetConn()
	}
	tcp, _ := conn.(*net.TCPConn)
	return tcp
}

// setOption sets an option of TCP. It ignores errors, because the connection also works without the option.
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
