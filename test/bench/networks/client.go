package networks

import (
	"bufio"
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

// podClient does with a Pod what kubectl does, each time on a connection of its own, as separate kubectl processes
// would. It upgrades to SPDY, for which the apiserver copies bytes: translating WebSockets would cost it several times
// as much as every tunnel here.
type podClient struct {
	rest *rest.Config
	tls  *tls.Config
}

func newPodClient(config *rest.Config) (*podClient, error) {
	settings, err := rest.TLSConfigFor(config)
	return &podClient{config, settings}, err
}

// transport returns a transport with connections of its own.
func (c *podClient) transport(http2 bool) *http.Transport {
	return &http.Transport{
		DialContext: c.rest.Dial, TLSClientConfig: c.tls.Clone(), ForceAttemptHTTP2: http2,
		TLSHandshakeTimeout: patience, ResponseHeaderTimeout: patience,
	}
}

// url returns the URL of a subresource of the Pod.
func (c *podClient) url(subresource string, query url.Values) *url.URL {
	at, err := url.Parse(c.rest.Host)
	if err != nil {
		panic(err) // the suite made it
	}
	at.Path = "/api/v1/namespaces/default/pods/" + pod + "/" + subresource
	at.RawQuery = query.Encode()
	return at
}

// logs are the logs of the Pod, on a connection of their own.
type logs struct {
	io.ReadCloser
	transport *http.Transport
}

// Close implements io.Closer.
func (l *logs) Close() error {
	err := l.ReadCloser.Close()
	l.transport.CloseIdleConnections()
	return err
}

// logs requests the logs of the Pod, over HTTP/2 like kubectl. The logs end when ctx ends.
func (c *podClient) logs(ctx context.Context, follow bool) (*logs, error) {
	at := c.url("log", url.Values{"container": {container}, "follow": {strconv.FormatBool(follow)}})
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
	return &logs{response.Body, transport}, nil
}

// upgrade returns the two halves of an upgrade to SPDY.
func (c *podClient) upgrade() (http.RoundTripper, clientspdy.Upgrader, error) {
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

// CreateStream implements httpstream.Connection. Its error is an endedError if the connection ends before the answer.
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
		return nil, &endedError{at}
	}
}

// endedError means that a connection has ended while a stream was opened.
type endedError struct{ at time.Time }

func (e *endedError) Error() string { return "the connection ended while a stream was opened" }

// executor returns an exec of a command in the Pod.
func (c *podClient) executor(stdin bool, command ...string) (remotecommand.Executor, error) {
	to, upgrader, err := c.upgrade()
	if err != nil {
		return nil, err
	}
	options := &corev1.PodExecOptions{Container: container, Command: command, Stdin: stdin, Stdout: true}
	query, err := scheme.ParameterCodec.EncodeParameters(options, corev1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewSPDYExecutorForTransports(to, upgrader, http.MethodPost, c.url("exec", query))
}

// run runs a command in the Pod to its end, or returns when ctx ends.
func (c *podClient) run(ctx context.Context, command ...string) error {
	_, err := c.output(ctx, command...)
	return err
}

// output runs a command in the Pod to its end, and returns its output, or returns when ctx ends.
func (c *podClient) output(ctx context.Context, command ...string) (string, error) {
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

// echo is an exec of cat.
type echo struct {
	in    *io.PipeWriter
	out   *io.PipeReader
	lines *bufio.Reader // of out
	done  chan error
}

// echo starts an exec of cat, which ends with ctx.
func (c *podClient) echo(ctx context.Context) (*echo, error) {
	executor, err := c.executor(true, "cat")
	if err != nil {
		return nil, err
	}
	stdin, in := io.Pipe()
	out, stdout := io.Pipe()
	e := &echo{in, out, bufio.NewReaderSize(out, 512), make(chan error, 1)}
	go func() {
		err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout})
		e.done <- err
		if err == nil {
			err = io.EOF
		}
		e.abort(err)
	}()
	return e, nil
}

// abort makes trip fail from now on.
func (e *echo) abort(err error) {
	_ = e.in.CloseWithError(err)
	_ = e.out.CloseWithError(err)
}

// trip sends a line and returns when it is back.
func (e *echo) trip() error {
	if _, err := e.in.Write([]byte("is this line back?\n")); err != nil {
		return err
	}
	_, err := e.lines.ReadSlice('\n')
	return err
}

// Close implements io.Closer: cat reads the end of its input. It does not wait.
func (e *echo) Close() error { return e.in.Close() }

// forward forwards a local port to the Pod's source of bytes until it is stopped.
func (c *podClient) forward() (address string, stop func(), err error) {
	to, upgrader, err := c.upgrade()
	if err != nil {
		return "", nil, err
	}
	dialer := clientspdy.NewDialerForStreaming(upgrader, &http.Client{Transport: to}, http.MethodPost,
		c.url("portforward", nil))
	stopped, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	forwarder, err := portforward.NewOnAddressesForStreaming(dialer, []string{"127.0.0.1"},
		[]string{"0:" + strconv.Itoa(sourcePort)}, stopped, ready, io.Discard, io.Discard)
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
