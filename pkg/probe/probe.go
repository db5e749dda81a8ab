// Package probe observes an apiserver from the network of an edge: whether it answers, its version, and its serving
// certificate. The input is addresses; the output is results. The package has no credentials of the apiserver.
package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairlead/fairlead/internal/printable"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// probeTime bounds a probe. A slower apiserver is unusable for Cluster API as well: an apiserver reports that it
	// is not ready when its etcd takes more than 2 s.
	probeTime = 2500 * time.Millisecond
	// maxAddresses is how many addresses are probed. Envoy is configured with one or two.
	maxAddresses = 8
	// maxBody bounds how much of a response is read: /readyz lists about 40 checks, and /version has 300 bytes.
	maxBody = 16 << 10
	// maxHeader bounds the head of a response.
	maxHeader = 16 << 10
	// maxText bounds quoted text of a response, maxVersion a version.
	maxText, maxVersion = 200, 64
	// maxNames bounds the names of a certificate; kubeadm's have about 7.
	maxNames = 100
)

// Result is the result of one probe. All text from the apiserver is bounded and printable.
type Result struct {
	Address             string
	Healthy             bool
	Reason              model.APIServerReason // why it is not healthy
	Message             string                // the same for people
	Version             string                // empty if unauthenticated clients may not read it
	CertificateNames    []string
	CertificateNotAfter time.Time
}

// APIServers probes up to 8 apiservers concurrently. It returns the result of the first healthy one, or of the first
// one if none is healthy. It takes at most 2.5 s.
func APIServers(ctx context.Context, addresses []model.Endpoint) Result {
	if len(addresses) == 0 {
		return Result{Message: "no apiserver address is configured"}
	}
	addresses = addresses[:min(len(addresses), maxAddresses)]
	results := make([]Result, len(addresses))
	var probes sync.WaitGroup
	for i, address := range addresses {
		probes.Go(func() { results[i] = probe(ctx, address) })
	}
	probes.Wait()
	return results[max(0, slices.IndexFunc(results, func(r Result) bool { return r.Healthy }))]
}

// probe connects once, and sends all requests on that connection.
func probe(ctx context.Context, address model.Endpoint) Result {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	result := Result{Address: address.String()}
	conn, err := connect(ctx, address)
	if err != nil {
		result.Reason, result.Message = explain(err)
		return result
	}
	defer conn.Close()
	leaf := conn.ConnectionState().PeerCertificates[0] // a TLS server always presents one
	result.CertificateNames, result.CertificateNotAfter = names(leaf), leaf.NotAfter
	client := newClient(conn)
	// before anything else: clients reject an invalid certificate even if the apiserver is ready
	if result.Message = validity(leaf, time.Now()); result.Message != "" {
		result.Reason = model.APIServerCertificateNotValid
	}
	if reason, message := ready(ctx, client, address); message == "" {
		result.Version = version(ctx, client, address)
	} else if result.Message == "" {
		result.Reason, result.Message = reason, message
	}
	result.Healthy = result.Message == ""
	return result
}

// connect opens a connection without verifying the certificate. This is safe for a probe: it sends no secret, and no
// trust decision depends on the responses. The CA of the apiserver belongs to the workload cluster and is unknown
// here; clients verify the apiserver through the tunnel.
func connect(ctx context.Context, address model.Endpoint) (*tls.Conn, error) {
	config := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // see above
		NextProtos:         []string{"http/1.1"},
	}
	if net.ParseIP(address.Host) == nil {
		config.ServerName = address.Host // as clients do; an apiserver may have a certificate for each name
	}
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", address.String())
	if err != nil {
		return nil, err
	}
	return conn.(*tls.Conn), nil
}

// newClient returns a transport that uses only conn.
func newClient(conn net.Conn) *http.Transport {
	conns := make(chan net.Conn, 1)
	conns <- conn
	return &http.Transport{
		MaxConnsPerHost:        1,
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true, // so that maxBody holds
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
			select {
			case conn := <-conns:
				return conn, nil
			default:
				return nil, errors.New("the connection was closed between two requests")
			}
		},
	}
}

// get returns the status and the beginning of the body.
func get(ctx context.Context, client *http.Transport, address model.Endpoint, path string) (int, string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address.String()+path, nil)
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("User-Agent", "fairlead")
	response, err := client.RoundTrip(request) // not a Client: it would follow redirects
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	return response.StatusCode, string(body), err
}

// ready returns why an apiserver is not ready to serve, or "" if it is. An apiserver that rejects unauthenticated
// requests, or rate limits them, counts as ready.
func ready(
	ctx context.Context, client *http.Transport, address model.Endpoint,
) (reason model.APIServerReason, message string) {
	code, body, err := get(ctx, client, address, "/readyz")
	switch {
	case err != nil && code == 0:
		return model.APIServerNotReady, "it accepts TLS, but does not answer /readyz: " + printable.Text(textOf(err), maxText)
	case code == http.StatusOK,
		code == http.StatusUnauthorized,
		code == http.StatusForbidden,
		code == http.StatusTooManyRequests:
		return "", ""
	case code < http.StatusInternalServerError:
		return model.APIServerNotAPIServer, fmt.Sprintf("it answers /readyz with status %d: it is not an apiserver", code)
	}
	message = fmt.Sprintf("it answers /readyz with status %d", code)
	if text := printable.Text(complaint(body), maxText); text != "" {
		message += ": " + text
	}
	return model.APIServerNotReady, message
}

// complaint returns the failed checks in the body of /readyz, or else its first line.
func complaint(body string) string {
	first, ill := "", []string(nil)
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		if first == "" {
			first = line
		}
		if part, ok := strings.CutPrefix(line, "[-]"); ok {
			ill = append(ill, part)
		}
	}
	if len(ill) > 0 {
		return strings.Join(ill, ", ")
	}
	return first
}

// version returns the apiserver's version, or "" if it does not report one.
func version(ctx context.Context, client *http.Transport, address model.Endpoint) string {
	var info struct{ GitVersion string }
	code, body, err := get(ctx, client, address, "/version")
	if err != nil || code != http.StatusOK || json.Unmarshal([]byte(body), &info) != nil {
		return ""
	}
	return printable.Text(info.GitVersion, maxVersion)
}

// validity returns why clients reject the certificate at this time, or "" if it is valid.
func validity(leaf *x509.Certificate, now time.Time) string {
	clock := now.UTC().Format(time.RFC3339)
	switch {
	case now.After(leaf.NotAfter):
		return fmt.Sprintf(
			"its serving certificate expired at %s, so clients reject it; the clock of this machine shows %s",
			leaf.NotAfter.UTC().Format(time.RFC3339), clock,
		)
	case now.Before(leaf.NotBefore):
		return fmt.Sprintf(
			"its serving certificate is valid from %s, so clients reject it; the clock of this machine shows %s",
			leaf.NotBefore.UTC().Format(time.RFC3339), clock,
		)
	}
	return ""
}

// names returns the DNS names and IP addresses of a certificate, without duplicates.
func names(leaf *x509.Certificate) []string {
	var all []string
	add := func(name string) {
		if name = printable.Text(name, maxText); len(all) < maxNames && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	for _, name := range leaf.DNSNames {
		add(name)
	}
	for _, ip := range leaf.IPAddresses {
		add(ip.String())
	}
	return all
}
