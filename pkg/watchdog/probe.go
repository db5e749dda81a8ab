package watchdog

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// redial is the time between attempts to connect to the loop listener.
const redial = 500 * time.Millisecond

// ErrUnknownProcess means that no process of Envoy is known: there is none, or it is in another process id namespace.
var ErrUnknownProcess = errors.New("the process of Envoy is not visible here")

// Probe probes the Envoys that run one after the other in the same directory. It is safe for concurrent use.
type Probe struct {
	loop    string                          // path of the socket of the loop listener
	admin   string                          // path of the socket of the admin interface
	ask     func(ctx context.Context) error // returns nil for any answer of the admin interface
	main    atomic.Uint64                   // number of answers
	workers []*worker

	mu      sync.Mutex
	process *process // the Envoy that listens; nil: unknown
}

// worker is a connection that one of Envoy's workers answers.
type worker struct {
	known   atomic.Bool
	answers atomic.Uint64
}

// NewProbe returns a Probe of an Envoy with this number of workers that listens on the sockets loop and admin. ask
// sends one request to the main thread, and must have its own timeout.
func NewProbe(loop, admin string, workers int, ask func(ctx context.Context) error) *Probe {
	p := &Probe{loop: loop, admin: admin, ask: ask}
	for range workers {
		p.workers = append(p.workers, &worker{})
	}
	return p
}

// Run probes until ctx ends.
func (p *Probe) Run(ctx context.Context) {
	var group errgroup.Group
	group.Go(func() error { p.probeMain(ctx); return nil })
	for _, w := range p.workers {
		group.Go(func() error { p.probeWorker(ctx, w); return nil })
	}
	_ = group.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

func (p *Probe) probeMain(ctx context.Context) {
	for ctx.Err() == nil {
		if !p.Running() {
			p.findStarting(ctx)
		}
		if p.ask(ctx) == nil {
			p.main.Add(1)
		}
		pause(ctx, Interval)
	}
}

// findStarting records the process of an Envoy that reads its configuration: it listens on the admin interface long
// before it listens on the loop.
func (p *Probe) findStarting(ctx context.Context) {
	conn, err := (&net.Dialer{Timeout: redial}).DialContext(ctx, "unix", p.admin)
	if err != nil {
		return
	}
	defer conn.Close()
	p.setProcess(conn, p.admin)
}

// probeWorker keeps a connection to a worker. It sends a byte and waits, without a limit, until it is echoed.
func (p *Probe) probeWorker(ctx context.Context, w *worker) {
	for ctx.Err() == nil {
		conn, err := (&net.Dialer{Timeout: redial}).DialContext(ctx, "unix", p.loop)
		if err == nil {
			p.setProcess(conn, p.loop)
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			w.echo(ctx, conn)
			stop()
			_ = conn.Close()
			w.known.Store(false) // the next one to answer may be another Envoy
		}
		pause(ctx, redial)
	}
}

func (w *worker) echo(ctx context.Context, conn net.Conn) {
	answer := make([]byte, 1)
	for ctx.Err() == nil {
		if _, err := conn.Write([]byte{'.'}); err != nil {
			return
		}
		if _, err := io.ReadFull(conn, answer); err != nil {
			return
		}
		w.answers.Add(1)
		w.known.Store(true)
		pause(ctx, redial)
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// setProcess records which process listens on a socket, by a connection to it. The kernel reports it even if Envoy is
// frozen: see SO_PEERCRED in unix(7).
func (p *Probe) setProcess(conn net.Conn, socket string) {
	pid, err := listener(conn)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process != nil && p.process.pid == pid && p.process.alive() {
		return
	}
	p.clear()
	if pid == 0 {
		return // in another process id namespace
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	// The process id could have been reused for another process before pidfd_open.
	again, err := net.DialTimeout("unix", socket, redial)
	if err != nil {
		_ = unix.Close(fd)
		return
	}
	defer again.Close()
	if now, err := listener(again); err != nil || now != pid {
		_ = unix.Close(fd)
		return
	}
	p.process = &process{pid: pid, fd: fd}
}

// Running reports whether there is an Envoy, frozen or not.
func (p *Probe) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.process != nil && p.process.alive()
}

// clear releases the process. The caller holds the lock.
func (p *Probe) clear() {
	if p.process != nil {
		_ = unix.Close(p.process.fd)
		p.process = nil
	}
}

// Kill kills the Envoy that listens, frozen or not, and returns its process id. If the process is unknown, it returns
// ErrUnknownProcess.
func (p *Probe) Kill() (pid int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process == nil {
		return 0, ErrUnknownProcess
	}
	return p.process.pid, os.NewSyscallError("pidfd_send_signal", unix.PidfdSendSignal(p.process.fd, unix.SIGKILL, nil, 0))
}

// listener returns the process that listens at the other end of a Unix socket.
func listener(conn net.Conn) (int, error) {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var peerErr error
	err = raw.Control(func(fd uintptr) {
		peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, peerErr); err != nil {
		return 0, err
	}
	return int(peer.Pid), nil
}
