package envoy_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fairlead/fairlead/internal/conntest"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

// fakeAPIServer is a fake apiserver that can fail in several ways and recover. It is a TLS server behind its own
// listener, whose connections it can silence.
type fakeAPIServer struct {
	at       model.Endpoint
	server   *httptest.Server
	ready    atomic.Int32 // the status of /readyz
	requests atomic.Int64 // number of requests of /readyz

	mu       sync.Mutex
	listener net.Listener
	conns    []net.Conn
	silent   atomic.Bool // all bytes are discarded, in either direction
}

func newFakeAPIServer(t *testing.T, name string, ca authority, hostname string) *fakeAPIServer {
	t.Helper()
	s := &fakeAPIServer{at: freeport.Endpoint(t)}
	s.ready.Store(http.StatusOK)
	s.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			s.requests.Add(1)
			w.WriteHeader(int(s.ready.Load()))
			return
		}
		fmt.Fprint(w, name)
	}))
	s.server.TLS = serverConfig(ca.leaf(t, certs.Leaf{CommonName: name, DNSNames: []string{hostname}, Server: true}))
	s.server.TLS.MinVersion = tls.VersionTLS13
	s.server.Config.ErrorLog = log.New(io.Discard, "", 0) // errors of connections that were cut
	s.server.StartTLS()
	t.Cleanup(func() {
		s.cut()
		s.server.Close()
	})
	s.live(t)
	return s
}

// live starts serving again after any failure.
func (s *fakeAPIServer) live(t *testing.T) {
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

func (s *fakeAPIServer) accept(listener net.Listener) {
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

// pass copies until one of the two is closed. While the server is silent, bytes are discarded.
func (s *fakeAPIServer) pass(to, from net.Conn) {
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
func (s *fakeAPIServer) cut() {
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

// vanish simulates a machine that is gone: open connections are silent, and SYNs are not answered.
func (s *fakeAPIServer) vanish(t *testing.T) {
	t.Helper()
	s.silent.Store(true)
	s.mu.Lock()
	_ = s.listener.Close()
	s.listener = nil
	s.mu.Unlock()
	hole := conntest.BlackHole(t, s.at.String())
	s.mu.Lock()
	s.listener = hole
	s.mu.Unlock()
}
