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

// tick is the interval of a stand-in's stream.
const tick = 50 * time.Millisecond

// StandIn simulates a workload apiserver for clients that only need to know whether it is reachable, through which
// edge, and whether a stream continues. Its Cluster and its certificate are like those of a real one.
type StandIn struct {
	*kube.APIServer
	certificate tls.Certificate

	Roots     *x509.CertPool
	server    atomic.Pointer[http.Server]
	Unhealthy atomic.Bool // /readyz answers 500
	Hung      atomic.Bool // it hangs: connections are accepted and never answered
	// OnRequest is called with the address of the edge for each request of a client; nil: nothing is.
	OnRequest atomic.Pointer[func(edge string)]
	t         *testing.T
}

// Version is the version that a stand-in reports.
const Version = "v1.99.0-standin"

// NewStandIn returns a stand-in at an address of a namespace, with additional names in its certificate, and starts it.
func NewStandIn(
	t *testing.T, name string, in *netns.Namespace, address netip.AddrPort, authority *pki.Authority, names ...string,
) *StandIn {
	t.Helper()
	pair, err := authority.Issue(pki.LeafSpec{
		CommonName: "kube-apiserver", Names: append([]string{"kubernetes", address.Addr().String()}, names...),
		Usage: x509.ExtKeyUsageServerAuth,
	})
	promise.Must(t, err)
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	promise.Must(t, err)
	admin, err := authority.Issue(
		pki.LeafSpec{
			CommonName:    "kubernetes-admin",
			Organizations: []string{"system:masters"},
			Usage:         x509.ExtKeyUsageClientAuth,
		},
	)
	promise.Must(t, err)
	s := &StandIn{
		APIServer: &kube.APIServer{Name: name, CA: authority, Namespace: in, Endpoint: address, Admin: admin},
		Roots:     x509.NewCertPool(),
		t:         t,
	}
	s.Roots.AppendCertsFromPEM(authority.CertPEM)
	s.certificate = certificate
	s.Start()
	t.Cleanup(s.Stop)
	return s
}

// Start starts the stand-in, also after Stop.
func (s *StandIn) Start() {
	listener, err := s.Namespace.Listen(s.t.Context(), s.Endpoint.String())
	promise.Must(s.t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"major": "1", "minor": "99", "gitVersion": Version})
	})
	mux.HandleFunc("GET /whoami", func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(s.whoami(r)))
	})
	mux.HandleFunc("GET /stream", s.stream)
	mux.HandleFunc("GET /bytes/{n}", func(w http.ResponseWriter, r *http.Request) {
		s.whoami(r)
		bulk(w, r)
	})
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: promise.Patience, ErrorLog: log.New(nothing{}, "", 0),
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{s.certificate},
			NextProtos:   []string{"http/1.1"},
			MinVersion:   tls.VersionTLS12,
		},
	}
	s.server.Store(server)
	go func() { _ = server.ServeTLS(mutable{listener, s.t.Context(), &s.Hung}, "", "") }()
}

// Stop stops the stand-in and closes every connection, after it has answered the requests in flight.
func (s *StandIn) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second/2)
	defer cancel()
	_ = s.server.Load().Shutdown(ctx)
	_ = s.server.Load().Close()
}

func (s *StandIn) readyz(w http.ResponseWriter, r *http.Request) {
	if s.Hung.Load() {
		<-r.Context().Done()
		return
	}
	if s.Unhealthy.Load() {
		http.Error(w, "[-]etcd failed", http.StatusInternalServerError)
		return
	}
	_, _ = w.Write([]byte("ok"))
}

// whoami returns the name of the stand-in and the address of the client, which is the edge.
func (s *StandIn) whoami(r *http.Request) string {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	if call := s.OnRequest.Load(); call != nil {
		(*call)(host)
	}
	return s.Name + " " + host
}

// stream counts, one number per line, until the client disconnects. The first line is the same as that of /whoami.
func (s *StandIn) stream(w http.ResponseWriter, r *http.Request) {
	flusher := http.NewResponseController(w)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	line := s.whoami(r)
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

// bulk answers with as many bytes as requested.
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

// mutable is a listener whose connections are not served while it is mute.
type mutable struct {
	net.Listener
	ctx  context.Context // of the test; closes the connections that are not served
	mute *atomic.Bool
}

func (m mutable) Accept() (net.Conn, error) {
	for {
		conn, err := m.Listener.Accept()
		if err != nil || !m.mute.Load() {
			return conn, err
		}
		// The connection stays open and is never read, like on a machine that hangs.
		context.AfterFunc(m.ctx, func() { _ = conn.Close() })
	}
}

// nothing discards what a server logs about clients that disconnect.
type nothing struct{}

func (nothing) Write(p []byte) (int, error) { return len(p), nil }
