package path

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// link is a network between two places: its delay and rate in each direction. The zero value is the loopback,
// unchanged.
type link struct {
	delay time.Duration // in one direction: half of a round trip
	rate  float64       // bytes/s of all connections together; 0: unlimited
}

const (
	// inFlight is how many bytes of one connection may be in transit: 200 MB/s for 200 ms, rounded up.
	inFlight = 64 << 20
	// routerBuffer is how many bytes of each connection wait in front of a slow link, as in a router.
	routerBuffer = 64 << 10
)

// relay forwards connections over a link.
type relay struct {
	net.Listener
	link   link
	to     string
	passed atomic.Int64 // bytes, in both directions
	pacers [2]pacer
	cancel context.CancelFunc
}

// newRelay listens on 127.0.0.1 until it is closed.
func newRelay(l link, to string) (*relay, error) {
	config := net.ListenConfig{}
	if l.rate > 0 {
		config.Control = smallBuffers
	}
	listener, err := config.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &relay{Listener: listener, link: l, to: to, cancel: cancel}
	r.pacers[0].rate, r.pacers[1].rate = l.rate, l.rate
	go r.accept(ctx)
	return r, nil
}

// Close also closes the connections that it forwards.
func (r *relay) Close() error {
	r.cancel()
	return r.Listener.Close()
}

// smallBuffers makes the kernel's buffers small, so that what a slow link has not accepted waits at the sender.
func smallBuffers(_, _ string, conn syscall.RawConn) error {
	var failed error
	err := conn.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(
			int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, routerBuffer/2,
		) // the kernel doubles it
	})
	if err != nil {
		return err
	}
	return failed
}

func (r *relay) accept(ctx context.Context) {
	for {
		from, err := r.Accept()
		if err != nil {
			return
		}
		go func() {
			dialer := net.Dialer{Timeout: patience}
			if r.link.rate > 0 {
				dialer.Control = smallBuffers
			}
			to, err := dialer.DialContext(ctx, "tcp", r.to)
			if err != nil {
				_ = from.Close()
				return
			}
			stop := context.AfterFunc(ctx, func() { _, _ = from.Close(), to.Close() })
			defer stop()
			r.handshake()
			var both sync.WaitGroup
			both.Go(func() { r.pass(to, from, &r.pacers[0]) })
			both.Go(func() { r.pass(from, to, &r.pacers[1]) })
			both.Wait()
			_, _ = from.Close(), to.Close()
		}()
	}
}

// handshake returns after the round trip that a TCP connection over the link needs before its first data: the kernel
// connects to the relay at once.
func (r *relay) handshake() {
	const segment = 60 // bytes of a SYN
	for i := range r.pacers {
		r.pacers[i].wait(segment)
		time.Sleep(r.link.delay)
	}
}

// piece is some bytes and the time of their arrival.
type piece struct {
	data []byte
	at   time.Time
}

// pass copies one direction until its end.
func (r *relay) pass(to, from net.Conn, p *pacer) {
	size := 64 << 10
	if r.link.rate > 0 {
		size = 4 << 10
	}
	pieces := make(chan piece, inFlight/size)
	var free sync.Pool
	free.New = func() any { return make([]byte, size) }
	go func() {
		defer close(pieces)
		for {
			buffer := free.Get().([]byte) //nolint:forcetypeassert // see free
			n, err := from.Read(buffer)
			if n > 0 {
				p.wait(n)
				pieces <- piece{buffer[:n], time.Now().Add(r.link.delay)}
			}
			if err != nil {
				return
			}
		}
	}()
	for next := range pieces {
		if wait := time.Until(next.at); wait > 0 {
			time.Sleep(wait)
		}
		n, err := to.Write(next.data)
		r.passed.Add(int64(n))
		free.Put(next.data[:cap(next.data)]) //nolint:staticcheck // 64 KB each: the header is negligible
		if err != nil {
			_ = from.Close()
			_, _ = io.Copy(io.Discard, from)
			for range pieces { // until the reader has ended
			}
			return
		}
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// pacer assigns the time of a link, in the order of the calls.
type pacer struct {
	rate float64
	mu   sync.Mutex
	free time.Time // when the link has sent everything that was assigned
}

// wait returns when n bytes have passed the link.
func (p *pacer) wait(n int) {
	if p.rate == 0 {
		return
	}
	p.mu.Lock()
	begin := time.Now()
	if p.free.After(begin) {
		begin = p.free
	}
	p.free = begin.Add(time.Duration(float64(n) / p.rate * float64(time.Second)))
	until := p.free
	p.mu.Unlock()
	time.Sleep(time.Until(until))
}
