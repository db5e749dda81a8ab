package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	runtimehooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/test/lab/pki"
)

const kubeconfig = `{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],"contexts":[{"name":"x","context":{"cluster":"c"}}],"current-context":"x"}`

func TestInvalidFlagsAreRejected(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	writeCertificate(t, dir)
	ca := "--client-ca=" + filepath.Join(dir, "ca.crt")
	good := []string{"--kubeconfig=" + file, "--tunnel-domain=t.example.com", "--edge-image=fairlead-edge:v1", ca}
	tests := map[string]struct {
		args []string
		want string
	}{
		"no client CA":     {good[:3], "--client-ca"},
		"no such CA":       {append(good, "--client-ca=/nowhere"), "--client-ca"},
		"a CA of nothing":  {append(good, "--client-ca="+file), "no certificate in PEM"},
		"no tunnel domain": {good[:1], "--tunnel-domain"},
		"no image":         {good[:2], "not an image reference"},
		"a port of none":   {append(good, "--api-server-port=70000"), "apiServerPort"},
		"no address":       {append(good, "--listen=9443"), "--listen"},
		"no port":          {append(good, "--listen=:0"), "--listen"},
		"no kubeconfig":    {append(good, "--kubeconfig=/nowhere"), "reading kubeconfig"},
		"an unknown level": {append(good, "--log-level=loud"), "--log-level"},
		"an argument":      {append(good, "x"), "unknown command"},
		"no certificate": {
			append(good, "--listen=127.0.0.1:"+freePort(t), "--health-listen=0", "--cert-dir="+t.TempDir()),
			"serving hooks",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			if code := run(t.Context(), tc.args, io.Discard, &stderr); code != 1 || !strings.Contains(stderr.String(), tc.want) {
				t.Errorf("exit code %d: %s", code, &stderr)
			}
		})
	}
}

// TestHooksAreServed calls the program over TLS like Cluster API, and then replaces its certificate.
func TestHooksAreServed(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "kubeconfig"), []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	pool, client := writeCertificate(t, dir)
	port, health := freePort(t), freePort(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	var stderr bytes.Buffer
	go func() {
		ended <- run(ctx, []string{
			"--kubeconfig=" + filepath.Join(dir, "kubeconfig"), "--tunnel-domain=t.example.com", "--edge-image=fairlead-edge:v1",
			"--cert-dir=" + dir, "--client-ca=" + filepath.Join(dir, "ca.crt"), "--listen=127.0.0.1:" + port,
			"--health-listen=127.0.0.1:" + health,
		}, io.Discard, &stderr)
	}()
	eventually.True(t, 30*time.Second, "the program is ready", func() error {
		response, err := http.Get("http://127.0.0.1:" + health + "/readyz")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", response.Status)
		}
		return nil
	})
	checkCallers(t, pool, port, client)
	pool, _ = writeCertificate(t, dir)
	eventually.True(t, 30*time.Second, "the new certificate is served", func() error {
		c, err := tls.Dial("tcp", "127.0.0.1:"+port, &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13})
		if err != nil {
			return err
		}
		return c.Close()
	})
	cancel()
	select {
	case code := <-ended:
		if code != 0 {
			t.Errorf("exit code %d: %s", code, &stderr)
		}
	case <-time.After(30 * time.Second):
		t.Error("the program does not end")
	}
}

// checkCallers calls all paths with and without a client certificate.
func checkCallers(t *testing.T, pool *x509.CertPool, port string, certificates []tls.Certificate) {
	t.Helper()
	const hooks = "/hooks.runtime.cluster.x-k8s.io/v1alpha1/"
	paths := []string{
		"/", "/metrics", hooks, hooks + "discovery/", hooks + "discovery/x", hooks + "discover%2579",
		"/hooks.runtime.cluster.x-k8s.io/v1alpha1%2Fdiscovery",
	}
	for shown, certificates := range map[string][]tls.Certificate{"no certificate": nil, "a certificate": certificates} {
		discovered, err := discover(t, pool, port, certificates)
		if err != nil || len(discovered) != 4 {
			t.Errorf("discovery with %s: %d handlers: %v, %v", shown, len(discovered), discovered, err)
		}
		want := http.StatusUnauthorized
		if certificates != nil {
			want = http.StatusOK
		}
		for _, hook := range discovered {
			path := hooks + strings.ToLower(hook.RequestHook.Hook) + "/" + hook.Name
			if got, _, err := post(t, pool, port, path, "{}", certificates); err != nil || got != want {
				t.Errorf("%s with %s: %d, %v; want %d", path, shown, got, err, want)
			}
		}
	}
	for _, path := range paths {
		if got, _, err := post(t, pool, port, path, "{}", nil); err != nil || got != http.StatusUnauthorized {
			t.Errorf("%s without a certificate: %d, %v", path, got, err)
		}
	}
	large := strings.Repeat(" ", maxAnonymousBody) + "{}"
	if _, body, err := post(t, pool, port, hooks+"discovery", large, nil); err == nil &&
		!strings.Contains(body, "too large") {
		t.Errorf("a large request without a certificate: %s", body)
	}
	// A caller with a certificate of another CA does not reach a hook.
	_, other := writeCertificate(t, t.TempDir())
	if got, err := discover(t, pool, port, other); err == nil {
		t.Errorf("a caller with a certificate of another CA is answered: %v", got)
	}
}

func discover(
	t *testing.T, pool *x509.CertPool, port string, shown []tls.Certificate,
) ([]runtimehooksv1.ExtensionHandler, error) {
	t.Helper()
	_, body, err := post(t, pool, port, "/hooks.runtime.cluster.x-k8s.io/v1alpha1/discovery", "{}", shown)
	if err != nil {
		return nil, err
	}
	var discovery runtimehooksv1.DiscoveryResponse
	err = json.Unmarshal([]byte(body), &discovery)
	return discovery.Handlers, err
}

// post calls a path, and returns the status and the body of the response. It follows no redirect.
func post(
	t *testing.T, pool *x509.CertPool, port, path, body string, shown []tls.Certificate,
) (status int, answer string, err error) {
	t.Helper()
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13, Certificates: shown},
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Post("https://127.0.0.1:"+port+path, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	return response.StatusCode, string(data), err
}

// TestSlowCallersAreBounded sends a request without a certificate and without its body.
func TestSlowCallersAreBounded(t *testing.T) {
	for _, public := range []bool{true, false} {
		a := authenticated{timeout: 100 * time.Millisecond}
		read := make(chan error, 1)
		server := httptest.NewServer(a.admit(public, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, err := io.ReadAll(r.Body)
			read <- err
		})))
		defer server.Close()
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(c); err != nil {
			t.Errorf("public %t: the connection stays open: %v", public, err)
		}
		if public && !errors.Is(<-read, os.ErrDeadlineExceeded) {
			t.Error("the hook waits for the body")
		}
	}
}

// writeCertificate writes a new certificate of a new CA. It returns the CA and the certificate of a client.
func writeCertificate(t *testing.T, dir string) (*x509.CertPool, []tls.Certificate) {
	t.Helper()
	authority, err := pki.NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(
		pki.LeafSpec{CommonName: "test", Names: []string{"127.0.0.1"}, Usage: x509.ExtKeyUsageServerAuth},
	)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM,
		"ca.crt": authority.CertPEM,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority.CertPEM)
	of, err := authority.Issue(pki.LeafSpec{CommonName: "capi", Usage: x509.ExtKeyUsageClientAuth})
	if err != nil {
		t.Fatal(err)
	}
	client, err := tls.X509KeyPair(of.CertPEM, of.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return pool, []tls.Certificate{client}
}

func freePort(t *testing.T) string {
	t.Helper()
	return strconv.Itoa(freeport.TCP(t))
}
