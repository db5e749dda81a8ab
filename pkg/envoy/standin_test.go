package envoy_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

// standIn plays an apiserver that can die in several ways and come back. It is a TLS server behind a listener of its own, whose
// connections it can silence.
type standIn struct {
	at     model.Endpoint
	server *httptest.Server
	ready  atomic.Int32 // the status of /readyz
	asked  atomic.Int64 // how often that was asked

	mu       sync.Mutex
	listener net.Listener
	conns    []net.Conn
	silent   atomic.Bool // nothing passes, in either direction
}

func newStandIn(t *testing.T, name string, ca authority, hostname string) *standIn {
	t.Helper()
	s := &standIn{at: freePort(t)}
	s.ready.Store(http.StatusOK)
	s.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			s.asked.Add(1)
			w.WriteHeader(int(s.ready.Load()))
			return
		}
		fmt.Fprint(w, name)
	}))
	s.server.TLS = serverConfig(ca.leaf(t, certs.Leaf{CommonName: name, DNSNames: []string{hostname}, Server: true}))
	s.server.TLS.MinVersion = tls.VersionTLS13
	s.server.Config.ErrorLog = log.New(io.Discard, "", 0) // those that were cut
	s.server.StartTLS()
	t.Cleanup(func() {
		s.cut()
		s.server.Close()
	})
	s.live(t)
	return s
}

// live serves, whatever was before.
func (s *standIn) live(t *testing.T) {
	t.Helper()
	s.cut()
	s.ready.Store(http.StatusOK)
	s.silent.Store(false)
	listener, err := net.Listen("tcp", s.at.String())
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.listener = listener
	s.mu.Unlock()
	go s.accept(listener)
}

func (s *standIn) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", s.server.Listener.Addr().String())
		if err != nil {
			_ = conn.Close()
			continue
		}
		s.mu.Lock()
		s.conns = append(s.conns, conn, to)
		s.mu.Unlock()
		go s.pass(conn, to)
		go s.pass(to, conn)
	}
}

// pass copies until one of the two is closed; what comes while there is silence is lost.
func (s *standIn) pass(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if s.silent.Load() {
			if err != nil {
				return
			}
			continue
		}
		if _, failed := to.Write(buffer[:n]); err != nil || failed != nil {
			_, _ = to.Close(), from.Close()
			return
		}
	}
}

// cut closes the listener and every connection, as the end of a process does.
func (s *standIn) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil {
		_ = s.listener.Close()
	}
	for _, conn := range s.conns {
		_ = conn.Close()
	}
	s.listener, s.conns = nil, nil
}

// vanish plays a machine that is gone: nothing is said on open connections, and nobody answers a SYN.
func (s *standIn) vanish(t *testing.T) {
	t.Helper()
	s.silent.Store(true)
	s.mu.Lock()
	_ = s.listener.Close()
	s.listener = nil
	s.mu.Unlock()
	hole := newBlackHole(t, s.at)
	s.mu.Lock()
	s.listener = hole
	s.mu.Unlock()
}

// newBlackHole answers no SYN at an address: the kernel drops them while there is no room in the queue of those to accept.
func newBlackHole(t *testing.T, at model.Endpoint) net.Listener {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	hole := &blackHole{fd: fd}
	t.Cleanup(func() { _ = hole.Close() })
	address := &syscall.SockaddrInet4{Port: int(at.Port), Addr: [4]byte(net.ParseIP(at.Host).To4())}
	_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	if err := errors.Join(syscall.Bind(fd, address), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		conn, err := net.DialTimeout("tcp", at.String(), 100*time.Millisecond)
		if err != nil {
			return hole
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	t.Fatal("the queue does not fill")
	return nil
}

// blackHole is a listening socket from which nobody accepts.
type blackHole struct {
	fd   int
	once sync.Once
}

// Accept implements net.Listener.
func (*blackHole) Accept() (net.Conn, error) { return nil, io.EOF }

// Addr implements net.Listener.
func (*blackHole) Addr() net.Addr { return nil }

// Close implements net.Listener.
func (h *blackHole) Close() (err error) {
	h.once.Do(func() { err = syscall.Close(h.fd) })
	return err
}
