package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"time"

	runtimecatalog "sigs.k8s.io/cluster-api/api/runtime/catalog"
	runtimehooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

const (
	// maxAnonymousBody bounds what a caller without a certificate may send. A request for discovery has about 100 bytes.
	maxAnonymousBody = 16 << 10
	// anonymousTime bounds a request of a caller without a certificate, from its header to the end of the response.
	anonymousTime = 10 * time.Second
)

// authenticated serves hooks to callers with a client certificate, and only discovery to all. Cluster API's core
// manager ends if its first call, discovery, fails, and `clusterctl upgrade` recreates it without the certificate.
// Discovery reveals the names of the hooks, which are constant.
type authenticated struct {
	webhook.Server
	discovery string
	timeout   time.Duration
}

func authenticate(server webhook.Server, catalog *runtimecatalog.Catalog) (webhook.Server, error) {
	hook, err := catalog.GroupVersionHook(runtimehooksv1.Discovery)
	if err != nil {
		return nil, fmt.Errorf("finding path of discovery: %w", err)
	}
	a := authenticated{Server: server, discovery: runtimecatalog.GVHToPath(hook, ""), timeout: anonymousTime}
	a.Register("/", http.NotFoundHandler()) // every path without a hook
	return a, nil
}

// Register serves a hook. The server of hooks calls it for each when it starts.
func (a authenticated) Register(path string, hook http.Handler) {
	a.Server.Register(path, a.admit(path == a.discovery, hook))
}

// admit serves a hook to callers with a verified certificate, and to all if it is public.
func (a authenticated) admit(public bool, hook http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
			hook.ServeHTTP(w, r)
			return
		}
		until, control := time.Now().Add(a.timeout), http.NewResponseController(w)
		if control.SetReadDeadline(until) != nil || control.SetWriteDeadline(until) != nil {
			http.Error(w, "no deadline can be set", http.StatusInternalServerError)
			return
		}
		if !public {
			http.Error(w, "a client certificate is required", http.StatusUnauthorized)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxAnonymousBody)
		hook.ServeHTTP(w, r)
	})
}

// verify returns the TLS settings that verify the certificates of callers by their CAs. With HTTP/1 a connection has
// one request at a time, so a caller without a certificate can make no more than one with each.
func verify(callers *x509.CertPool) func(*tls.Config) {
	return func(c *tls.Config) {
		c.MinVersion, c.NextProtos = tls.VersionTLS13, []string{"http/1.1"}
		c.ClientAuth, c.ClientCAs = tls.VerifyClientCertIfGiven, callers
	}
}
