// Package probe looks at an apiserver as an edge sees it: whether it answers, its version, and its serving certificate. In
// go addresses, out come results. It holds no credential of the apiserver.
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
	"unicode"

	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// lookTime bounds a look. An apiserver that needs longer is of no use to Cluster API either; one gives its etcd 2 s before it says that
	// it is not ready.
	lookTime = 2500 * time.Millisecond
	// maxAddresses is how many addresses are looked at; Envoy is given one or two.
	maxAddresses = 8
	// maxBody bounds what is read of an answer: /readyz names its parts, about 40 of them, and /version has 300 bytes.
	maxBody = 16 << 10
	// maxHeader bounds the head of an answer.
	maxHeader = 16 << 10
	// maxText bounds what is quoted of an answer, maxVersion a version.
	maxText, maxVersion = 200, 64
	// maxNames bounds the names of a certificate; kubeadm's have about 7.
	maxNames = 100
)

// Result is what one look found. Whatever comes from the other end in it is bounded and printable.
type Result struct {
	Address             string
	Healthy             bool
	Message             string // why it is not healthy
	Version             string // empty where strangers aren't told
	CertificateNames    []string
	CertificateNotAfter time.Time
}

// APIServers looks at apiservers, at the first 8 at the same time, and returns the look at the first that is healthy, or at the first one where none is.
// It takes 2.5 s at most.
func APIServers(ctx context.Context, addresses []model.Endpoint) Result {
	if len(addresses) == 0 {
		return Result{Message: "there is no address of an apiserver"}
	}
	addresses = addresses[:min(len(addresses), maxAddresses)]
	looks := make([]Result, len(addresses))
	var looking sync.WaitGroup
	for i, address := range addresses {
		looking.Go(func() { looks[i] = look(ctx, address) })
	}
	looking.Wait()
	return looks[max(0, slices.IndexFunc(looks, func(r Result) bool { return r.Healthy }))]
}

// look connects once, and asks by that connection.
func look(ctx context.Context, address model.Endpoint) Result {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	result := Result{Address: address.String()}
	conn, err := connect(ctx, address)
	if err != nil {
		result.Message = explain(err)
		return result
	}
	defer conn.Close()
	leaf := conn.ConnectionState().PeerCertificates[0] // there is one: a server has to show it
	result.CertificateNames, result.CertificateNotAfter = names(leaf), leaf.NotAfter
	client := newClient(conn)
	result.Message = validity(leaf, time.Now()) // before anything else: clients refuse it, ready or not
	if unready := ready(ctx, client, address); unready == "" {
		result.Version = version(ctx, client, address)
	} else if result.Message == "" {
		result.Message = unready
	}
	result.Healthy = result.Message == ""
	return result
}

// connect opens a connection and does not verify who answers. We only look: nothing is sent that anybody may not know, and
// nothing that comes decides whom to trust. The CA of the apiserver belongs to the workload cluster, and is not known here;
// its clients verify it, through the tunnel.
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

// newClient asks by one connection, and never by another.
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
				return nil, errors.New("the connection was cut between two requests")
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
	response, err := client.RoundTrip(request) // not a Client: a redirect would lead elsewhere
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	return response.StatusCode, string(body), err
}

// ready returns why an apiserver is not ready to serve, and nothing if it is. One that tells strangers nothing, or asks
// them to come later, serves.
func ready(ctx context.Context, client *http.Transport, address model.Endpoint) string {
	code, body, err := get(ctx, client, address, "/readyz")
	switch {
	case err != nil && code == 0:
		return "it does TLS, but doesn't answer /readyz: " + printable(reason(err), maxText)
	case code == http.StatusOK, code == http.StatusUnauthorized, code == http.StatusForbidden, code == http.StatusTooManyRequests:
		return ""
	case code < http.StatusInternalServerError:
		return fmt.Sprintf("it answers /readyz with status %d: it is no apiserver", code)
	}
	message := fmt.Sprintf("it answers /readyz with status %d", code)
	if text := printable(complaint(body), maxText); text != "" {
		message += ": " + text
	}
	return message
}

// complaint is what is wrong according to the body of /readyz: the lines of the parts that are not well, else the first.
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

// version is the apiserver's version, empty if it doesn't tell.
func version(ctx context.Context, client *http.Transport, address model.Endpoint) string {
	var info struct{ GitVersion string }
	code, body, err := get(ctx, client, address, "/version")
	if err != nil || code != http.StatusOK || json.Unmarshal([]byte(body), &info) != nil {
		return ""
	}
	return printable(info.GitVersion, maxVersion)
}

// validity says whether the certificate's time is a reason for clients to refuse the apiserver.
func validity(leaf *x509.Certificate, now time.Time) string {
	clock := now.UTC().Format(time.RFC3339)
	switch {
	case now.After(leaf.NotAfter):
		return fmt.Sprintf("its serving certificate ended at %s, so clients refuse it; the clock of this machine says %s", leaf.NotAfter.UTC().Format(time.RFC3339), clock)
	case now.Before(leaf.NotBefore):
		return fmt.Sprintf("its serving certificate begins at %s, so clients refuse it; the clock of this machine says %s", leaf.NotBefore.UTC().Format(time.RFC3339), clock)
	}
	return ""
}

// names are the DNS names and IP addresses of a certificate, each once.
func names(leaf *x509.Certificate) []string {
	var all []string
	add := func(name string) {
		if name = printable(name, maxText); len(all) < maxNames && !slices.Contains(all, name) {
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

// printable bounds text, and replaces in it what is not to be printed.
func printable(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) || r == unicode.ReplacementChar {
			return '?'
		}
		return r
	}, text)
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
