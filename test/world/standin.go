package world

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/promise"
)

// tick is how often a stream of a stand-in says something.
const tick = 50 * time.Millisecond

// StandIn plays a workload apiserver to clients that only want to know whether it is reached, by whom, and whether a
// stream goes on. Its Cluster and its certificate are like those of a real one.
type StandIn struct {
	*kube.APIServer
	certificate tls.Certificate

	Roots  *x509.CertPool
	server atomic.Pointer[http.Server]
	Sick   atomic.Bool // /readyz answers 500
	Mute   atomic.Bool // it hangs: connections are accepted and never answered
	t      *testing.T
}

// Version is what a stand-in says of itself.
const Version = "v1.99.0-standin"

// NewStandIn makes one at an address of a namespace, with further names in its certificate, and starts it.
func NewStandIn(t *testing.T, name string, in *netns.Namespace, address netip.AddrPort, authority *pki.Authority, names ...string) *StandIn {
	t.Helper()
	pair, err := authority.Issue(pki.LeafSpec{
		CommonName: "kube-apiserver", Names: append([]string{"kubernetes", address.Addr().String()}, names...), Usage: x509.ExtKeyUsageServerAuth,
	})
	promise.Must(t, err)
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	promise.Must(t, err)
	admin, err := authority.Issue(pki.LeafSpec{CommonName: "kubernetes-admin", Organizations: []string{"system:masters"}, Usage: x509.ExtKeyUsageClientAuth})
	promise.Must(t, err)
	s := &StandIn{APIServer: &kube.APIServer{Name: name, CA: authority, Namespace: in, Endpoint: address, Admin: admin}, Roots: x509.NewCertPool(), t: t}
	s.Roots.AppendCertsFromPEM(authority.CertPEM)
	s.certificate = certificate
	s.Start()
	t.Cleanup(s.Stop)
	return s
}

// Start starts it, also after stop.
func (s *StandIn) Start() {
	listener, err := s.Namespace.Listen(s.t.Context(), s.Endpoint.String())
	promise.Must(s.t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"major": "1", "minor": "99", "gitVersion": Version})
	})
	mux.HandleFunc("GET /whoami", func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		_, _ = fmt.Fprintf(w, "%s %s", s.Name, host)
	})
	mux.HandleFunc("GET /stream", stream)
	mux.HandleFunc("GET /bytes/{n}", bulk)
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: promise.Patience, ErrorLog: log.New(nothing{}, "", 0),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{s.certificate}, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12},
	}
	s.server.Store(server)
	go func() { _ = server.ServeTLS(mutable{listener, s.t.Context(), &s.Mute}, "", "") }()
}

// Stop ends the stand-in and every connection to it, after it has answered what it was asked already.
func (s *StandIn) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second/2)
	defer cancel()
	_ = s.server.Load().Shutdown(ctx)
	_ = s.server.Load().Close()
}

func (s *StandIn) readyz(w http.ResponseWriter, r *http.Request) {
	if s.Mute.Load() {
		<-r.Context().Done()
		return
	}
	if s.Sick.Load() {
		http.Error(w, "[-]etcd failed", http.StatusInternalServerError)
		return
	}
	_, _ = w.Write([]byte("ok"))
}

// stream counts, one number a line, until the client goes away. The first line says to whom.
func stream(w http.ResponseWriter, r *http.Request) {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	flusher := http.NewResponseController(w)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	line := host
	for i := 0; ; i++ {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return
		}
		if err := flusher.Flush(); err != nil {
			return
		}
		line = strconv.Itoa(i)
		select {
		case <-ticker.C:
		case <-r.Context().Done():
			return
		}
	}
}

// bulk answers as many bytes as it is asked for.
func bulk(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.ParseInt(r.PathValue("n"), 10, 64)
	if err != nil {
		http.Error(w, "give a number of bytes", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	for chunk := make([]byte, 32<<10); n > 0; n -= int64(len(chunk)) {
		chunk = chunk[:min(n, int64(len(chunk)))]
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}

// mutable is a listener whose connections, while it is mute, nobody serves.
type mutable struct {
	net.Listener
	ctx  context.Context // of the test: ends what nobody serves
	mute *atomic.Bool
}

func (m mutable) Accept() (net.Conn, error) {
	for {
		conn, err := m.Listener.Accept()
		if err != nil || !m.mute.Load() {
			return conn, err
		}
		// Open and never read: that is what a machine looks like that hangs.
		context.AfterFunc(m.ctx, func() { _ = conn.Close() })
	}
}

// nothing swallows what a server logs about clients that go away.
type nothing struct{}

func (nothing) Write(p []byte) (int, error) { return len(p), nil }
