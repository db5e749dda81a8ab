package synthetic

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// ping is what a gateway sends on an idle tunnel, below TLS, and expects as the answer.
const ping = "RPING"

// tunnel is one reverse tunnel.
type tunnel struct {
	edge *Edge
	conn *net.TCPConn
	nth  int // of its edge
	once sync.Once
	slot int32 // in the poller

	used    atomic.Bool // TLS has begun in it
	streams atomic.Int32
}

// idle waits for the first bytes without a goroutine.
func (t *tunnel) idle() {
	if err := t.edge.fleet.poll.watch(t); err != nil {
		t.end()
	}
}

// notify is called when there is data to read, or when the connection has ended. It returns when the tunnel is idle
// again or has ended.
func (t *tunnel) notify() {
	f := t.edge.fleet
	first := make([]byte, len(ping))
	_ = t.conn.SetReadDeadline(time.Now().Add(answerTime))
	if _, err := io.ReadFull(t.conn, first); err != nil {
		t.end()
		return
	}
	_ = t.conn.SetReadDeadline(time.Time{})
	if string(first) == ping {
		f.stats.pings.Add(1)
		if _, err := t.conn.Write(first); err != nil {
			t.end()
			return
		}
		if err := f.poll.rearm(t); err != nil {
			t.end()
		}
		return
	}
	f.poll.remove(t)
	t.use(first)
	t.end()
}

// use does the TLS handshake as the server, and serves streams until the tunnel ends.
func (t *tunnel) use(first []byte) {
	f := t.edge.fleet
	t.used.Store(true)
	if t.fault(-1) == RefuseTLS {
		return
	}
	config := f.inner.Clone()
	config.Certificates = []tls.Certificate{*t.edge.Certificate}
	secure := tls.Server(&replayed{Conn: t.conn, first: first}, config)
	_ = t.conn.SetDeadline(time.Now().Add(answerTime))
	if err := secure.HandshakeContext(f.ctx); err != nil {
		f.stats.broken.Add(1)
		return
	}
	_ = t.conn.SetDeadline(time.Time{})
	f.stats.used.Add(1)
	f.serve(secure, http.HandlerFunc(t.stream))
}

func (t *tunnel) fault(stream int) Fault {
	if t.edge.Fault == nil {
		return None
	}
	return t.edge.Fault(Moment{Tunnel: t.nth, Stream: stream})
}

// stream serves one request of a gateway.
func (t *tunnel) stream(w http.ResponseWriter, r *http.Request) {
	f := t.edge.fleet
	f.stats.streams.Add(1)
	switch t.fault(int(t.streams.Add(1)) - 1) {
	case CloseTunnel:
		_ = t.conn.SetLinger(0)
		_ = t.conn.Close()
		return
	case ResetStream:
		panic(http.ErrAbortHandler)
	}
	if r.Method != http.MethodConnect || f.options.API == nil {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	w.WriteHeader(http.StatusOK)
	if http.NewResponseController(w).Flush() == nil {
		f.options.API.take(w, r, t.edge)
	}
}

// end closes the tunnel, and makes the edge dial another one.
func (t *tunnel) end() {
	t.once.Do(func() {
		e := t.edge
		e.fleet.poll.remove(t)
		e.fleet.forget(t.conn)
		_ = t.conn.Close()
		e.mu.Lock()
		delete(e.tunnels, t)
		e.mu.Unlock()
		e.fleet.stats.up.Add(-1)
		e.fleet.stats.lost.Add(1)
		e.missing(false)
	})
}

// replayed is a connection with some bytes that were read already.
type replayed struct {
	net.Conn
	first []byte
}

// Read implements net.Conn.
func (r *replayed) Read(p []byte) (int, error) {
	if len(r.first) == 0 {
		return r.Conn.Read(p)
	}
	n := copy(p, r.first)
	r.first = r.first[n:]
	return n, nil
}
