// Package traffic tests a way to an apiserver with the requests of clients: many connections at the same time, a large
// download, an idle connection, a command in a Pod. An Observer keeps requests, a watch and a connection running, and
// records each one that fails. Input: the configuration of a client, and how to dial. Output: results, in the form of
// pkg/diagnose/check, which also finds the broken hop. The package does not know where the configuration comes from. It
// changes nothing in the workload cluster.
package traffic

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/pkg/diagnose/explain"
)

const (
	// requestTime is the timeout of a request in Cluster API's probe.
	requestTime = 5 * time.Second
	// dialTime bounds one TCP connection. A SYN that is lost once is repeated after 1 s.
	dialTime = 3 * time.Second
	// versionPath is a path that every authenticated user may read.
	versionPath = "/version"
	// maxDiscard bounds how much of an answer is read to keep its connection usable.
	maxDiscard = 1 << 20
)

// Dial opens a connection. It must end with its context.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Machine returns the Dial of this machine. A non-empty address replaces each address that is dialled.
func Machine(address string) Dial {
	dialer := &net.Dialer{Timeout: dialTime}
	return func(ctx context.Context, network, to string) (net.Conn, error) {
		if address != "" {
			to = address
		}
		return dialer.DialContext(ctx, network, to)
	}
}

// Target is an apiserver, and a way to it. It is safe for concurrent use.
type Target struct {
	config *rest.Config
	tls    *tls.Config
	dial   Dial
}

// New returns the apiserver of a client configuration. The configuration must be data only: no plugins and no files.
// The clients use HTTP/1.1, so that each request has one connection.
func New(config *rest.Config, dial Dial) (*Target, error) {
	config = rest.CopyConfig(config)
	config.UserAgent, config.Timeout = "fairlead-test", 0
	settings, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	return &Target{config: config, tls: settings, dial: dial}, nil
}

// client is an HTTP client with connections of its own.
type client struct {
	http      *http.Client
	transport *http.Transport
	server    string
}

// client returns a client. With fresh, each request has a new connection.
func (t *Target) client(fresh bool) (*client, error) {
	transport := &http.Transport{
		TLSClientConfig: t.tls.Clone(), DialContext: t.dial, Proxy: t.config.Proxy, DisableKeepAlives: fresh,
		DisableCompression: true, TLSHandshakeTimeout: requestTime,
	}
	wrapped, err := rest.HTTPWrappersForConfig(t.config, transport)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	return &client{
		http: &http.Client{
			Transport:     wrapped,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		transport: transport, server: strings.TrimSuffix(t.config.Host, "/"),
	}, nil
}

// close closes the connections that are not in use.
func (c *client) close() { c.transport.CloseIdleConnections() }

// open sends a GET, and returns the response. An answer other than 200 is an error.
func (c *client) open(ctx context.Context, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.server+path, http.NoBody)
	if err != nil {
		return nil, errors.New("the server in the kubeconfig is not a URL")
	}
	request.Header.Set("Accept", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		return nil, fmt.Errorf("the answer to GET %s is %d", path, response.StatusCode)
	}
	return response, nil
}

// get sends a short GET, and reads the answer.
func (c *client) get(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	response, err := c.open(ctx, versionPath)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(response.Body, maxDiscard))
	return err
}

// Request sends one request on a connection of its own. The apiserver must answer it with 200 within 5 s.
func (t *Target) Request(ctx context.Context) error {
	c, err := t.client(true)
	if err != nil {
		return err
	}
	defer c.close()
	return c.get(ctx)
}

func passed(format string, args ...any) check.Outcome {
	return check.Outcome{Status: check.OK, Detail: fmt.Sprintf(format, args...)}
}

// unknown is the outcome of a test that is not possible from here.
func unknown(detail, cure string) check.Outcome {
	return check.Outcome{Status: check.Unknown, Detail: detail, Cure: cure}
}

// seeCheck is the cure for a fault that check locates.
const seeCheck = "fairlead check names the hop that is broken; run it while the test fails"

// failed is the outcome of a test that fails with an error.
func failed(what string, err error, cause, cure string) check.Outcome {
	return check.Outcome{Status: check.Broken, Detail: what + ": " + reason(err), Cause: cause, Cure: cure}
}

// reason returns an error for people, with its meaning if it is known.
func reason(err error) string {
	text := explain.Text(err)
	if meaning := explain.Dial(err); meaning != "" && !strings.Contains(text, meaning) {
		return meaning + ": " + text
	}
	return text
}
