package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
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
	if got, err := discover(t, pool, port, client); err != nil || len(got) != 4 {
		t.Errorf("%d handlers: %v, %v", len(got), got, err)
	}
	// A caller without a certificate of the CA gets no answer.
	_, stranger := writeCertificate(t, t.TempDir())
	for who, certificates := range map[string][]tls.Certificate{
		"no certificate":              nil,
		"a certificate of another CA": stranger,
	} {
		if got, err := discover(t, pool, port, certificates); err == nil {
			t.Errorf("a caller with %s is answered: %v", who, got)
		}
	}
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

func discover(
	t *testing.T, pool *x509.CertPool, port string, shows []tls.Certificate,
) ([]runtimehooksv1.ExtensionHandler, error) {
	t.Helper()
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13, Certificates: shows},
	}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Post(
		"https://127.0.0.1:"+port+"/hooks.runtime.cluster.x-k8s.io/v1alpha1/discovery", "application/json",
		strings.NewReader("{}"),
	)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var discovery runtimehooksv1.DiscoveryResponse
	err = json.NewDecoder(response.Body).Decode(&discovery)
	return discovery.Handlers, err
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
