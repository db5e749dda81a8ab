package probe_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/fairlead/fairlead/internal/conntest"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/probe"
)

// fake starts a server with a certificate that behaves like an apiserver for probes.
func fake(t *testing.T, names []string, begin, end time.Time, handler http.HandlerFunc) model.Endpoint {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     names,
		IPAddresses:  []net.IP{net.IPv4(10, 96, 0, 1)},
		NotBefore:    begin,
		NotAfter:     end,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	server.TLS = &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	return endpoint(server.Listener)
}

// healthy starts a healthy fake.
func healthy(t *testing.T) model.Endpoint {
	t.Helper()
	return fake(
		t, []string{"kubernetes"}, time.Now().Add(-time.Hour), time.Now().Add(time.Hour), answers(http.StatusOK, "ok"),
	)
}

func endpoint(listener net.Listener) model.Endpoint {
	addr := netip.MustParseAddrPort(listener.Addr().String())
	return model.Endpoint{Host: addr.Addr().String(), Port: addr.Port()}
}

// answers returns a handler for /readyz.
func answers(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/readyz":
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
		case r.URL.Path == "/version" && code == http.StatusOK:
			_, _ = io.WriteString(w, `{"major": "1", "minor": "37", "gitVersion": "v1.37.1"}`)
		default:
			w.WriteHeader(code)
		}
	}
}

// raw listens and runs answer for every connection.
func raw(t *testing.T, answer func(net.Conn)) model.Endpoint {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = conn.Read(make([]byte, 4096))
				answer(conn)
			}()
		}
	}()
	return endpoint(listener)
}

func silent(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

func TestAProbeReportsTheStateOfAnAPIServer(t *testing.T) {
	t.Parallel()
	now := time.Now()
	valid := func(handler http.HandlerFunc) model.Endpoint {
		return fake(t, []string{"kubernetes", "api.example.com"}, now.Add(-time.Hour), now.Add(time.Hour), handler)
	}
	for name, test := range map[string]struct {
		in      model.Endpoint
		version string
		reason  model.APIServerReason // empty: healthy
		want    string                // in the message
	}{
		"it is ready":                   {valid(answers(http.StatusOK, "ok")), "v1.37.1", "", ""},
		"it rejects anonymous requests": {valid(answers(http.StatusUnauthorized, "Unauthorized")), "", "", ""},
		"it forbids strangers to look":  {valid(answers(http.StatusForbidden, "Forbidden")), "", "", ""},
		"it has no time for strangers":  {valid(answers(http.StatusTooManyRequests, "")), "", "", ""},
		"it is starting": {
			valid(answers(
				http.StatusInternalServerError,
				"[+]ping ok\n[-]etcd failed: reason withheld\n[-]hooks failed\nreadyz check failed",
			)),
			"", model.APIServerNotReady, "it answers /readyz with status 500: etcd failed: reason withheld, hooks failed",
		},
		"a load balancer without any": {
			valid(answers(http.StatusServiceUnavailable, "\n no backend\x1b[31m\nmore")), "", model.APIServerNotReady,
			"it answers /readyz with status 503: no backend [31m",
		},
		"it is something else": {
			valid(answers(http.StatusNotFound, "")), "", model.APIServerNotAPIServer,
			"it answers /readyz with status 404: it is not an apiserver",
		},
		"it redirects": {valid(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/login", http.StatusFound)
		}), "", model.APIServerNotAPIServer, "status 302: it is not an apiserver"},
		"it hangs": {
			valid(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), "", model.APIServerNotReady,
			"it accepts TLS, but does not answer /readyz: no answer in time",
		},
		"a head without end": {valid(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 1<<20))
		}), "", model.APIServerNotReady, "it accepts TLS, but does not answer /readyz"},
		"a version that is too long": {
			valid(answersVersion(strings.Repeat("9", 1000))), strings.Repeat("9", 64), "", "",
		},
		"a version that is not text": {valid(answersVersion(`\u001b[31m`)), " [31m", "", ""},
		"a body without end": {
			valid(endless), "", model.APIServerNotReady, "it answers /readyz with status 500: xxxx",
		},
		"its certificate ended": {
			fake(t, nil, now.Add(-2*time.Hour), now.Add(-time.Hour), answers(http.StatusOK, "ok")), "v1.37.1",
			model.APIServerCertificateNotValid, "its serving certificate expired at ",
		},
		"ended, and it is starting": {
			fake(t, nil, now.Add(-2*time.Hour), now.Add(-time.Hour), answers(http.StatusInternalServerError, "no")), "",
			model.APIServerCertificateNotValid, "its serving certificate expired at ",
		},
		"its certificate is not yet one": {
			fake(t, nil, now.Add(time.Hour), now.Add(2*time.Hour), answers(http.StatusOK, "ok")), "v1.37.1",
			model.APIServerCertificateNotValid, "its serving certificate is valid from ",
		},
		"nothing listens": {
			freeport.Endpoint(t), "", model.APIServerConnectionRefused, "nothing listens there: ",
		},
		"it speaks no TLS": {raw(t, func(conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
		}), "", model.APIServerNotAPIServer, "the answer is not TLS: "},
		"it cuts the connection": {
			raw(t, func(net.Conn) {}), "", model.APIServerConnectionFailed,
			"the connection was closed during the TLS handshake: ",
		},
		"it does not answer": {raw(t, silent), "", model.APIServerNoAnswer, "does not answer in time: "},
		"packets to it are dropped": {
			endpoint(conntest.BlackHole(t, "127.0.0.1:0")), "", model.APIServerConnectionTimeout, "no answer in time: ",
		},
		"its name is unknown": {
			model.Endpoint{Host: "apiserver.invalid", Port: 6443}, "", model.APIServerNameNotResolved, "DNS ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begin := time.Now()
			got := probe.APIServers(t.Context(), []model.Endpoint{test.in})
			if took := time.Since(begin); took > 4*time.Second {
				t.Errorf("took %s", took)
			}
			if got.Address != test.in.String() || got.Version != test.version {
				t.Errorf("address %q, version %q; want %q, %q", got.Address, got.Version, test.in, test.version)
			}
			if got.Healthy != (test.reason == "") || got.Reason != test.reason ||
				!strings.Contains(got.Message, test.want) || got.Healthy && got.Message != "" {
				t.Errorf("healthy %t, %s: %q; want %s: %q", got.Healthy, got.Reason, got.Message, test.reason, test.want)
			}
			if len(got.Message) > 400 || strings.ContainsFunc(got.Message, unicode.IsControl) {
				t.Errorf("the message is not bounded or not printable: %q", got.Message)
			}
		})
	}
}

func answersVersion(version string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintf(w, `{"gitVersion": "%s"}`, version) }
}

func endless(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusInternalServerError)
	for chunk := []byte(strings.Repeat("x", 1<<16)); ; {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}

func TestTheCertificateIsReported(t *testing.T) {
	begin, end := time.Now().Add(-time.Hour), time.Now().Add(time.Hour).Truncate(time.Second).UTC()
	address := fake(
		t, []string{"kubernetes", "api.example.com", "a\x1bb"}, begin, end, answers(http.StatusInternalServerError, ""),
	)
	got := probe.APIServers(t.Context(), []model.Endpoint{address})
	if want := "kubernetes api.example.com a b 10.96.0.1"; strings.Join(got.CertificateNames, " ") != want {
		t.Errorf("names %q, want %q", got.CertificateNames, want)
	}
	if !got.CertificateNotAfter.Equal(end) {
		t.Errorf("ends at %s, want %s", got.CertificateNotAfter, end)
	}
	many := make([]string, 500)
	for n := range many {
		many[n] = fmt.Sprintf("name-%d.example.com", n)
	}
	address = fake(t, many, begin, end, answers(http.StatusOK, ""))
	if got := probe.APIServers(t.Context(), []model.Endpoint{address}); len(got.CertificateNames) != 100 {
		t.Errorf("%d names, want 100", len(got.CertificateNames))
	}
}

func TestTheDialledNameIsTheServerName(t *testing.T) {
	serverName := make(chan string, 1)
	server := httptest.NewUnstartedServer(answers(http.StatusOK, ""))
	server.TLS = &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			serverName <- hello.ServerName
			return nil, nil
		},
	}
	server.StartTLS()
	defer server.Close()
	e := endpoint(server.Listener)
	for host, want := range map[string]string{"localhost": "localhost", "127.0.0.1": ""} {
		if got := probe.APIServers(t.Context(), []model.Endpoint{{Host: host, Port: e.Port}}); !got.Healthy {
			t.Fatal(got.Message)
		}
		if got := <-serverName; got != want {
			t.Errorf("dialling %s asks for %q, want %q", host, got, want)
		}
	}
}

func TestAPIServersFallsBackToTheNextAddress(t *testing.T) {
	t.Parallel()
	good, ill, hangs := healthy(
		t,
	), fake(t, nil, time.Now(), time.Now().Add(time.Hour), answers(http.StatusInternalServerError, "no")), raw(t, silent)
	for name, test := range map[string]struct {
		in     []model.Endpoint
		want   model.Endpoint
		within time.Duration
	}{
		"the first is healthy": {[]model.Endpoint{good, ill}, good, time.Second},
		"the last is":          {[]model.Endpoint{ill, hangs, good}, good, 4 * time.Second},
		"none is":              {[]model.Endpoint{ill, hangs}, ill, 4 * time.Second},
		"there are many that hang": {
			[]model.Endpoint{hangs, hangs, hangs, hangs, hangs, hangs, hangs, hangs},
			hangs,
			4 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begin := time.Now()
			got := probe.APIServers(t.Context(), test.in)
			if got.Address != test.want.String() || got.Healthy != (test.want == good) {
				t.Errorf("got %+v, want the look at %s", got, test.want)
			}
			if took := time.Since(begin); took > test.within {
				t.Errorf("took %s", took)
			}
		})
	}
}

func TestAPIServersWithoutAnAddress(t *testing.T) {
	if got := probe.APIServers(t.Context(), nil); got.Healthy || got.Message != "no apiserver address is configured" {
		t.Errorf("got %+v", got)
	}
}

func TestAPIServersEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	begin := time.Now()
	if got := probe.APIServers(ctx, []model.Endpoint{raw(t, silent), raw(t, silent)}); got.Healthy || got.Message == "" {
		t.Errorf("got %+v", got)
	}
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("took %s", took)
	}
}
