// Package pods does with Pods what kubectl does: exec, logs and port-forward. Input: the configuration of a client of
// an apiserver. It measures how long the lines of an exec take. It does not know how the apiserver reaches its nodes.
package pods

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	clientspdy "k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// patience bounds what should happen at once.
const patience = 30 * time.Second

// Client does with a Pod in the namespace default what kubectl does, each time on a connection of its own, as separate
// kubectl processes would. It upgrades to SPDY, for which the apiserver copies bytes: translating WebSockets would cost
// it several times as much as every tunnel here.
type Client struct {
	rest           *rest.Config
	tls            *tls.Config
	pod, container string
}

// NewClient returns a client for a container.
func NewClient(config *rest.Config, pod, container string) (*Client, error) {
	settings, err := rest.TLSConfigFor(config)
	return &Client{config, settings, pod, container}, err
}

// transport returns a transport with connections of its own.
func (c *Client) transport(http2 bool) *http.Transport {
	return &http.Transport{
		DialContext: c.rest.Dial, TLSClientConfig: c.tls.Clone(), ForceAttemptHTTP2: http2,
		TLSHandshakeTimeout: patience, ResponseHeaderTimeout: patience,
	}
}

// url returns the URL of a subresource of the Pod.
func (c *Client) url(subresource string, query url.Values) *url.URL {
	at, err := url.Parse(c.rest.Host)
	if err != nil {
		panic(err) // the lab made it
	}
	at.Path = "/api/v1/namespaces/default/pods/" + c.pod + "/" + subresource
	at.RawQuery = query.Encode()
	return at
}

// Logs are the logs of a container, on a connection of their own.
type Logs struct {
	io.ReadCloser
	transport *http.Transport
}

// Close implements io.Closer.
func (l *Logs) Close() error {
	err := l.ReadCloser.Close()
	l.transport.CloseIdleConnections()
	return err
}

// Logs requests the logs of the Pod, over HTTP/2 like kubectl. The logs end when ctx ends.
func (c *Client) Logs(ctx context.Context, follow bool) (*Logs, error) {
	at := c.url("log", url.Values{"container": {c.container}, "follow": {strconv.FormatBool(follow)}})
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	transport := c.transport(true)
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 500))
		return nil, errors.Join(fmt.Errorf("reading logs: %s: %s", response.Status, text), response.Body.Close())
	}
	return &Logs{response.Body, transport}, nil
}

// upgrade returns the two halves of an upgrade to SPDY.
func (c *Client) upgrade() (http.RoundTripper, clientspdy.Upgrader, error) {
	to, err := spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{
		PingPeriod: 5 * time.Second, UpgradeTransport: c.transport(false), // as kubectl
	})
	if err != nil {
		return nil, nil, err
	}
	return to, clientspdy.NewUpgraderForStreaming(upgrader{to}), nil
}

// upgrader makes connections on which a new stream fails when they end. SPDY's own wait 30 s for the answer to a
// stream, whatever happens to the connection meanwhile (spdystream.Stream.WaitTimeout): an edge that is killed would
// seem to keep its streams for as long.
type upgrader struct{ *spdy.SpdyRoundTripper }

// NewConnection implements httpstream.UpgradeRoundTripper.
func (u upgrader) NewConnection(response *http.Response) (httpstream.Connection, error) {
	c, err := u.SpdyRoundTripper.NewConnection(response)
	if err != nil {
		return nil, err
	}
	return connection{c}, nil
}

type connection struct{ httpstream.Connection }

// CreateStream implements httpstream.Connection. Its error is an EndedError if the connection ends before the answer.
func (c connection) CreateStream(headers http.Header) (httpstream.Stream, error) {
	const last = time.Second // for an answer that was the end of the connection's data, on a busy machine
	type result struct {
		stream httpstream.Stream
		err    error
	}
	created := make(chan result, 1)
	go func() {
		stream, err := c.Connection.CreateStream(headers.Clone())
		created <- result{stream, err}
	}()
	select {
	case r := <-created:
		return r.stream, r.err
	case <-c.CloseChan():
	}
	at := time.Now()
	select {
	case r := <-created:
		return r.stream, r.err
	case <-time.After(last):
		return nil, &EndedError{at}
	}
}

// EndedError means that a connection has ended while a stream was opened.
type EndedError struct{ At time.Time }

// Error implements error.
func (e *EndedError) Error() string { return "the connection ended while a stream was opened" }

// executor returns an exec of a command in the Pod.
func (c *Client) executor(stdin bool, command ...string) (remotecommand.Executor, error) {
	to, upgrader, err := c.upgrade()
	if err != nil {
		return nil, err
	}
	options := &corev1.PodExecOptions{Container: c.container, Command: command, Stdin: stdin, Stdout: true}
	query, err := scheme.ParameterCodec.EncodeParameters(options, corev1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewSPDYExecutorForTransports(to, upgrader, http.MethodPost, c.url("exec", query))
}

// Run runs a command in the Pod to its end, or returns when ctx ends.
func (c *Client) Run(ctx context.Context, command ...string) error {
	_, err := c.output(ctx, command...)
	return err
}

// output runs a command in the Pod to its end, and returns its output, or returns when ctx ends.
func (c *Client) output(ctx context.Context, command ...string) (string, error) {
	executor, err := c.executor(false, command...)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer // read after the exec
	ended := make(chan error, 1)
	// The upgrade does not regard ctx.
	go func() { ended <- executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out}) }()
	select {
	case err := <-ended:
		return out.String(), err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// forward forwards a local port to a port of the Pod until it is stopped.
func (c *Client) forward(port int) (address string, stop func(), err error) {
	to, upgrader, err := c.upgrade()
	if err != nil {
		return "", nil, err
	}
	dialer := clientspdy.NewDialerForStreaming(upgrader, &http.Client{Transport: to}, http.MethodPost,
		c.url("portforward", nil))
	stopped, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	forwarder, err := portforward.NewOnAddressesForStreaming(dialer, []string{"127.0.0.1"},
		[]string{"0:" + strconv.Itoa(port)}, stopped, ready, io.Discard, io.Discard)
	if err != nil {
		return "", nil, err
	}
	go func() { ended <- forwarder.ForwardPorts() }()
	stop = func() {
		close(stopped)
		select {
		case <-ended: //nolint:errcheck // it was stopped
		case <-time.After(time.Second):
		}
	}
	select {
	case <-ready:
	case err := <-ended:
		return "", nil, fmt.Errorf("forwarding a port: %w", err)
	case <-time.After(patience):
		stop()
		return "", nil, errors.New("forwarding a port: no answer")
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		stop()
		return "", nil, err
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(ports[0].Local))), stop, nil
}

// RunWithin runs a command that prints a word. client-go has no error for an exec whose connection ends after its
// streams have been opened, so only the word proves that the command ran to its end.
func (c *Client) RunWithin(ctx context.Context, deadline time.Duration) error {
	const word = "done"
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	out, err := c.output(ctx, "echo", word)
	if err == nil && strings.TrimSpace(out) != word {
		err = fmt.Errorf("the output is %q: the connection ended early", out)
	}
	return err
}

// Forwarded is a connection to a forwarded port.
type Forwarded struct {
	net.Conn
	stop func()
	once sync.Once
}

// Close implements io.Closer. It may be called more than once.
func (f *Forwarded) Close() error {
	err := f.Conn.Close()
	f.once.Do(f.stop)
	return err
}

// Forward forwards a port of the Pod and connects to it. The connection ends when ctx ends.
func (c *Client) Forward(ctx context.Context, port int) (*Forwarded, error) {
	address, stop, err := c.forward(port)
	if err != nil {
		return nil, err
	}
	conn, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", address)
	if err != nil {
		stop()
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	return &Forwarded{Conn: conn, stop: stop}, nil
}
