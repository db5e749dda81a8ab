package agent

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

// apiserver is a workload cluster's apiserver: it returns its name, and streams for the requested time.
type apiserver struct {
	model.Endpoint
	name string
	ca   *certs.CA
}

func newAPIServer(c *control, id, name string) *apiserver {
	c.t.Helper()
	ca, err := certs.NewCA("workload CA", time.Now(), time.Hour)
	if err != nil {
		c.t.Fatal(err)
	}
	hostname, err := domain.Hostname(model.Key{Namespace: "prod", Name: name})
	if err != nil {
		c.t.Fatal(err)
	}
	key, err := certs.NewKey()
	if err != nil {
		c.t.Fatal(err)
	}
	chain, err := ca.Issue(
		key.Public(),
		certs.Leaf{
			CommonName: name,
			DNSNames:   []string{hostname},
			Server:     true,
			NotBefore:  time.Now().Add(-time.Minute),
			NotAfter:   time.Now().Add(time.Hour),
		},
	)
	if err != nil {
		c.t.Fatal(err)
	}
	identity, err := certs.NewIdentity(chain, key)
	if err != nil {
		c.t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, name) })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	mux.HandleFunc("/version", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"gitVersion": "v1.34.0"}`) })
	mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		life, err := time.ParseDuration(r.URL.Query().Get("for"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(life); time.Now().Before(end); <-tick.C {
			_, _ = fmt.Fprintln(w, "tick")
			w.(http.Flusher).Flush()
		}
		fmt.Fprintln(w, "end")
	})
	s := httptest.NewUnstartedServer(mux)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{identity.TLSCertificate()}}
	s.StartTLS()
	c.t.Cleanup(s.Close)
	a := &apiserver{Endpoint: endpoint(c.t, s.Listener.Addr()), name: name, ca: ca}
	c.mu.Lock()
	wc, ok := c.clusters[id]
	c.mu.Unlock()
	if !ok {
		c.t.Fatalf("there is no tunnel %s", id)
	}
	wc.APIServer = a.Endpoint
	c.publish(wc)
	return a
}

// ask sends a request through the gateway.
func (c *control) ask(ctx context.Context, a *apiserver, path string) (*http.Response, error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.ca.CertPEM())
	hostname, err := domain.Hostname(model.Key{Namespace: "prod", Name: a.name})
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: hostname},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, c.bind.APIServer.String())
		},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+hostname+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	return transport.RoundTrip(request)
}

func (c *control) once(ctx context.Context, a *apiserver) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	response, err := c.ask(ctx, a, "/")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && strings.TrimSpace(string(body)) != a.name {
		err = fmt.Errorf("it is answered by %s, not by %s", body, a.name)
	}
	return err
}

// works waits until a request succeeds.
func (c *control) works(a *apiserver) {
	c.t.Helper()
	envoytest.Eventually(c.t, "a request goes to "+a.name, func() error { return c.once(c.t.Context(), a) })
}

// stream opens a long stream, and returns once it has begun. The returned function waits for its end.
func (c *control) stream(a *apiserver, life time.Duration) (wait func() error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), life+envoytest.Patience)
	response, err := c.ask(ctx, a, "/stream?for="+life.String())
	if err != nil {
		cancel()
		c.t.Fatal(err)
	}
	lines := bufio.NewScanner(response.Body)
	if !lines.Scan() {
		cancel()
		c.t.Fatalf("a stream did not begin: %v", lines.Err())
	}
	return sync.OnceValue(func() error {
		defer cancel()
		defer response.Body.Close()
		last := ""
		for lines.Scan() {
			last = lines.Text()
		}
		if last != "end" {
			return fmt.Errorf("the stream was cut: %w", errors.Join(lines.Err(), io.ErrUnexpectedEOF))
		}
		return nil
	})
}
