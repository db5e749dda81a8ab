// Package portforward opens connections to ports of Pods through the apiserver of a cluster. Its input is a client
// configuration and a label selector; its output is the ready Pods, each of which can be dialled. It opens no listener
// that others could use, and does not know what the ports serve.
package portforward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

const (
	// maxPods exceeds the number of Pods of one component of an installation.
	maxPods = 64
	// dialTime bounds the answer of an apiserver.
	dialTime = 30 * time.Second
	// closeTime bounds the last frames of a session.
	closeTime = time.Second
)

// Options select Pods and one of their ports.
type Options struct {
	REST      *rest.Config
	Namespace string
	Selector  string // of labels
	PortName  string // of a container's port; empty: Port
	Port      int    // for Pods without a port of that name
}

// Pod is a Pod that was ready when it was listed. It is safe for concurrent use.
type Pod struct {
	Name string
	port int
	rest *rest.Config
	url  *url.URL // of its subresource portforward
}

// Ready lists the Pods that are ready, and returns how many there are in total. An error of the list is returned as it
// is, so that callers can test for a missing permission.
func Ready(ctx context.Context, o Options) (ready []*Pod, total int, err error) {
	client, err := kubernetes.NewForConfig(o.REST)
	if err != nil {
		return nil, 0, fmt.Errorf("creating client of the management cluster: %w", err)
	}
	pods, err := client.CoreV1().Pods(o.Namespace).List(ctx, metav1.ListOptions{LabelSelector: o.Selector, Limit: maxPods})
	if err != nil {
		return nil, 0, err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !isReady(pod) {
			continue
		}
		ready = append(ready, podOf(client, o.REST, pod.Namespace, pod.Name, portOf(o, pod)))
	}
	return ready, len(pods.Items), nil
}

// Permitted returns an error, for which apierrors.IsForbidden holds, if the user must not forward ports of Pods in a
// namespace: the error of a port-forward itself has only the text of the apiserver's answer. It returns nil if that is
// not known.
func Permitted(ctx context.Context, config *rest.Config, namespace string) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil //nolint:nilerr // the port-forward will fail, too
	}
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "create", Resource: "pods", Subresource: "portforward", Namespace: namespace,
		},
	}}
	answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil || answer.Status.Allowed {
		return nil //nolint:nilerr // see above
	}
	return apierrors.NewForbidden(schema.GroupResource{Resource: "pods/portforward"}, "", fmt.Errorf(
		"you are not allowed to create pods/portforward in namespace %s", namespace,
	))
}

// One returns a port of a Pod without reading the Pod. Whether it exists is reported by Dial.
func One(config *rest.Config, namespace, name string, port int) (*Pod, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("creating client of the cluster: %w", err)
	}
	return podOf(client, config, namespace, name, port), nil
}

func podOf(client kubernetes.Interface, config *rest.Config, namespace, name string, port int) *Pod {
	at := client.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(name)
	return &Pod{Name: name, port: port, rest: config, url: at.SubResource("portforward").URL()}
}

func isReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// portOf returns the selected port of a Pod.
func portOf(o Options, pod *corev1.Pod) int {
	for i := range pod.Spec.Containers {
		for _, port := range pod.Spec.Containers[i].Ports {
			if port.Name == o.PortName && port.Name != "" {
				return int(port.ContainerPort)
			}
		}
	}
	return o.Port
}

// Dial opens a connection to the Pod's port, or returns ctx's error as soon as ctx ends. That nothing listens on the
// port is reported by the first Read.
func (p *Pod) Dial(ctx context.Context) (*Conn, error) {
	type opened struct {
		conn *Conn
		err  error
	}
	done := make(chan opened, 1)
	go func() {
		ctx, cancel := context.WithTimeout(ctx, dialTime)
		defer cancel()
		conn, err := p.open(ctx)
		if err != nil {
			err = fmt.Errorf("forwarding port %d of Pod %s: %w", p.port, p.Name, err)
		}
		done <- opened{conn, err}
	}()
	select {
	case o := <-done:
		return o.conn, o.err
	case <-ctx.Done():
		go func() {
			if o := <-done; o.conn != nil {
				_ = o.conn.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

func (p *Pod) open(ctx context.Context) (*Conn, error) {
	up := &upgrade{}
	keep := func() bool { return true }
	connected := func(info httptrace.GotConnInfo) {
		up.conn = info.Conn
		keep = context.AfterFunc(ctx, func() { _ = info.Conn.Close() }) // a WebSocket's dialer regards only deadlines
	}
	dialer, err := p.dialer(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: connected}))
	if err != nil {
		return nil, err
	}
	defer func() { keep() }()
	session, protocol, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, err
	}
	up.Connection = session
	if protocol != portforward.PortForwardProtocolV1Name {
		return nil, errors.Join(fmt.Errorf("the apiserver selected the protocol %q", protocol), up.Close())
	}
	conn, err := newConn(up, p.Name, p.port)
	if err != nil {
		return nil, errors.Join(err, up.Close())
	}
	return conn, nil
}

// dialer upgrades to WebSockets, or to SPDY if the apiserver or a proxy does not support them, like kubectl. It sends
// its requests with ctx. It can be used once: the dialers of client-go keep the connection that they opened last.
func (p *Pod) dialer(ctx context.Context) (httpstream.Dialer, error) {
	config := rest.CopyConfig(p.rest)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return withContext{next, ctx} })
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	old := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, p.url)
	websocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(p.url, config)
	if err != nil {
		return nil, err
	}
	return portforward.NewFallbackDialerForStreaming(websocket, old, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}

// withContext sends requests with a context, because the dialers of client-go accept none.
type withContext struct {
	http.RoundTripper
	ctx context.Context //nolint:containedctx // of one dial
}

// RoundTrip implements http.RoundTripper.
func (w withContext) RoundTrip(r *http.Request) (*http.Response, error) {
	return w.RoundTripper.RoundTrip(r.WithContext(w.ctx))
}

// upgrade is a session and its TCP connection.
type upgrade struct {
	httpstream.Connection
	conn net.Conn // nil: it is not known, because the session is not on a WebSocket
}

// release lets writes fail soon. Otherwise a peer that does not read would block the end of the session, which writes.
func (u *upgrade) release() {
	if u.conn != nil {
		_ = u.conn.SetWriteDeadline(time.Now().Add(closeTime))
	}
}

// Close ends the session.
func (u *upgrade) Close() error {
	u.release()
	return u.Connection.Close()
}

// Conn is a connection through an apiserver. It has no deadlines: its user closes it to end a call that blocks.
type Conn struct {
	httpstream.Stream
	session *upgrade
	pod     string

	failed chan struct{} // closed when the other end has reported an error
	reason error
	once   sync.Once
}

func newConn(session *upgrade, pod string, port int) (*Conn, error) {
	headers := http.Header{}
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	headers.Set(corev1.PortHeader, strconv.Itoa(port))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	complaints, err := session.CreateStream(headers)
	if err != nil {
		return nil, err
	}
	_ = complaints.Close() // nothing is written to it
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := session.CreateStream(headers)
	if err != nil {
		return nil, err
	}
	c := &Conn{Stream: data, session: session, pod: pod, failed: make(chan struct{})}
	go c.listen(complaints)
	return c, nil
}

// maxComplaint bounds how much of a kubelet's error is read.
const maxComplaint = 4 << 10

func (c *Conn) listen(complaints io.Reader) {
	text, _ := io.ReadAll(io.LimitReader(complaints, maxComplaint))
	if said := strings.TrimSpace(string(text)); said != "" {
		c.reason = errors.New(said)
		close(c.failed)
		_ = c.Close()
	}
}

// Read returns the kubelet's error, if there is one, instead of io.EOF.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Stream.Read(p)
	if err == nil {
		return n, nil
	}
	select {
	case <-c.failed:
		return n, c.reason
	default:
		return n, err
	}
}

// CloseWrite ends the direction to the Pod. The Pod can still send.
func (c *Conn) CloseWrite() error { return c.Stream.Close() }

// Close ends the whole session, which is used by this connection alone.
func (c *Conn) Close() (err error) {
	c.once.Do(func() {
		c.session.release()
		_ = c.Reset()
		err = c.session.Close()
	})
	return err
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return podAddr("port-forward") }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return podAddr(c.pod) }

// SetDeadline implements net.Conn. It does nothing.
func (c *Conn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(time.Time) error { return nil }

// podAddr is the name of a Pod.
type podAddr string

// Network implements net.Addr.
func (podAddr) Network() string { return "pod" }

// String implements net.Addr.
func (a podAddr) String() string { return string(a) }
