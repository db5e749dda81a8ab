package e2e

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/promise"
)

const (
	filesPort    = 9443
	downloadSize = 200 << 20
	echoSize     = 20 << 20
)

// files is a Cluster whose apiserver is a file server in the workload network.
type files struct {
	lab   *world
	roots *x509.CertPool
	sum   []byte // SHA-256 of the file
}

// download proves that large transfers arrive complete, over both HTTP versions and both routes.
func (w *world) download(t *testing.T) {
	f := w.startFiles(t)
	for _, route := range []string{"sni", "connect"} {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			promise.That(
				t, fmt.Sprintf("a download of 200 MB completes over %s through %s", proto, route),
				func(t *testing.T) { f.download(t, route, proto) },
			)
			promise.That(
				t, fmt.Sprintf("an echo of 20 MB is unchanged over %s through %s", proto, route),
				func(t *testing.T) { f.echo(t, route, proto) },
			)
		}
	}
}

// startFiles starts the file server, a Cluster and its edge, and waits until the Cluster is reachable.
func (w *world) startFiles(t *testing.T) *files {
	t.Helper()
	authority, err := pki.NewAuthority("files")
	must(t, err)
	pair, err := authority.Issue(
		pki.LeafSpec{CommonName: "files", Names: []string{hostname("files")}, Usage: x509.ExtKeyUsageServerAuth},
	)
	must(t, err)
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	must(t, err)
	f := &files{lab: w, roots: x509.NewCertPool(), sum: sha256.New().Sum(nil)}
	f.roots.AppendCertsFromPEM(authority.CertPEM)
	f.serve(t, certificate)

	address := w.SNI.Endpoint.Addr().String()
	cluster := w.bareCluster(t, lab.ClusterSpec{Name: "files"})
	must(
		t,
		cluster.PatchTunnel(t.Context(), map[string]any{"apiServer": map[string]any{"address": address, "port": filesPort}}),
	)
	bootstrap, err := cluster.Bootstrap(t.Context())
	must(t, err)
	_, err = w.StartEdge("edge-files", bootstrap)
	must(t, err)
	eventually(t, f.reached)
	return f
}

func (f *files) serve(t *testing.T, certificate tls.Certificate) {
	t.Helper()
	listener, err := f.lab.Network.Workload.Listen(
		t.Context(), net.JoinHostPort(f.lab.SNI.Endpoint.Addr().String(), strconv.Itoa(filesPort)),
	)
	must(t, err)
	digest := sha256.New()
	_, err = io.Copy(digest, content(downloadSize))
	must(t, err)
	f.sum = digest.Sum(nil)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /file", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.Copy(w, content(downloadSize)) })
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) {
		// without it, HTTP/1.1 reads the whole request before it writes
		_ = http.NewResponseController(w).EnableFullDuplex()
		_, _ = io.Copy(w, r.Body)
	})
	server := &http.Server{
		Handler:           mux,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2", "http/1.1"}},
		ReadHeaderTimeout: patience,
	}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = server.Close() })
}

// content returns a stream of bytes without repetition, the same at each call.
func content(size int64) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{1}), size)
}

// client returns an HTTP client in the management network that uses one route and one HTTP version.
func (f *files) client(route, proto string) *http.Client {
	management := f.lab.Network.Management
	transport := &http.Transport{
		DialContext:     management.DialContext,
		TLSClientConfig: &tls.Config{RootCAs: f.roots, ServerName: hostname("files"), NextProtos: []string{"http/1.1"}},
		// An apiserver too leaves it to its clients to close. docs/decisions/0025-last-bytes.md states what is lost when a
		// server closes first.
		IdleConnTimeout: time.Second,
	}
	if proto == "HTTP/2.0" {
		transport.TLSClientConfig.NextProtos, transport.ForceAttemptHTTP2 = nil, true
	}
	if route == "connect" {
		transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: hostPort(netns.GatewayName, netns.ConnectPort)})
	} else {
		transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return management.DialContext(ctx, network, hostPort(netns.GatewayName, netns.APIServerPort))
		}
	}
	return &http.Client{Transport: transport, Timeout: patience}
}

func (f *files) do(ctx context.Context, route, proto, path string, body io.Reader) (*http.Response, error) {
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
	}
	request, err := http.NewRequestWithContext(
		ctx, method, "https://"+hostPort(hostname("files"), netns.APIServerPort)+path, body,
	)
	if err != nil {
		return nil, err
	}
	response, err := f.client(route, proto).Do(request)
	if err != nil {
		return nil, err
	}
	if response.Proto != proto {
		return nil, errors.Join(fmt.Errorf("answer is %s, want %s", response.Proto, proto), response.Body.Close())
	}
	return response, nil
}

func (f *files) reached(ctx context.Context) error {
	response, err := f.do(ctx, "sni", "HTTP/1.1", "/", nil)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

func (f *files) download(t *testing.T, route, proto string) {
	start := time.Now()
	response, err := f.do(t.Context(), route, proto, "/file", nil)
	must(t, err)
	size, sum := drain(t, response)
	if size != downloadSize || string(sum) != string(f.sum) {
		t.Errorf("%d bytes with hash %x arrived, want %d with %x", size, sum, downloadSize, f.sum)
	}
	promise.Measured("download_mb_s", downloadSize/1e6/time.Since(start).Seconds())
}

func (f *files) echo(t *testing.T, route, proto string) {
	digest := sha256.New()
	response, err := f.do(t.Context(), route, proto, "/echo", io.TeeReader(content(echoSize), digest))
	must(t, err)
	size, sum := drain(t, response)
	if size != echoSize || string(sum) != string(digest.Sum(nil)) {
		t.Errorf("%d bytes came back, or others than were sent", size)
	}
}

// drain reads an answer to its end, and returns its size and SHA-256.
func drain(t *testing.T, response *http.Response) (size int64, sum []byte) {
	t.Helper()
	digest := sha256.New()
	size, err := io.Copy(digest, response.Body)
	must(t, errors.Join(err, response.Body.Close()))
	return size, digest.Sum(nil)
}
