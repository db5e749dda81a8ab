package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// PortName is the name of the inspection port in the Pods of the xds-servers.
const PortName = "inspect"

// maxPods exceeds the number of xds-servers of an installation.
const maxPods = 32

// forwarder forwards the port of one Pod. It opens no listener on this machine that others could use.
type forwarder struct {
	name   string
	port   int
	dialer httpstream.Dialer
}

// findPods lists the Pods of the xds-servers that are ready.
func findPods(ctx context.Context, o Options) ([]*forwarder, error) {
	namespace := cmp.Or(o.Namespace, DefaultNamespace)
	client, err := kubernetes.NewForConfig(o.REST)
	if err != nil {
		return nil, fmt.Errorf("creating client of the management cluster: %w", err)
	}
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: PodSelector, Limit: maxPods})
	if err != nil {
		return nil, fmt.Errorf(
			"listing the Pods of the xds-servers in namespace %s, which the Role fairlead-viewer allows: %w", namespace, err,
		)
	}
	var found []*forwarder
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !isReady(pod) {
			continue
		}
		f, err := newForwarder(o, client.CoreV1().RESTClient(), pod)
		if err != nil {
			return nil, fmt.Errorf("forwarding a port of Pod %s/%s: %w", namespace, pod.Name, err)
		}
		found = append(found, f)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf(
			"no ready Pod of an xds-server (%s) in namespace %s, of %d: set the namespace of the installation with "+
				"--installation, or the inspection addresses of the xds-servers with --xds-server",
			PodSelector,
			namespace,
			len(pods.Items),
		)
	}
	return found, nil
}

func isReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// portOf returns the inspection port of a Pod.
func portOf(o Options, pod *corev1.Pod) int {
	for i := range pod.Spec.Containers {
		for _, port := range pod.Spec.Containers[i].Ports {
			if port.Name == PortName && o.Port == 0 {
				return int(port.ContainerPort)
			}
		}
	}
	return cmp.Or(o.Port, Port)
}

// newForwarder upgrades to WebSockets, or to SPDY if the apiserver or a proxy does not support them, like kubectl.
func newForwarder(o Options, api rest.Interface, pod *corev1.Pod) (*forwarder, error) {
	url := api.Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(o.REST)
	if err != nil {
		return nil, err
	}
	old := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	websocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, o.REST)
	if err != nil {
		return nil, err
	}
	return &forwarder{
		name: pod.Name,
		port: portOf(o, pod),
		dialer: portforward.NewFallbackDialerForStreaming(websocket, old, func(err error) bool {
			return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
		}),
	}, nil
}

// dial opens a connection to the Pod's port.
func (f *forwarder) dial(ctx context.Context, _ string) (net.Conn, error) {
	type opened struct {
		conn net.Conn
		err  error
	}
	// The dialers do not support contexts, but end by themselves.
	done := make(chan opened, 1)
	go func() {
		conn, err := f.open()
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

func (f *forwarder) open() (net.Conn, error) {
	session, protocol, err := f.dialer.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, fmt.Errorf("forwarding port %d of Pod %s: %w", f.port, f.name, err)
	}
	if protocol != portforward.PortForwardProtocolV1Name {
		return nil, errors.Join(
			fmt.Errorf("forwarding port %d of Pod %s: the apiserver speaks %q", f.port, f.name, protocol), session.Close(),
		)
	}
	conn, err := newForwarded(session, f.name, f.port)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("forwarding port %d of Pod %s: %w", f.port, f.name, err), session.Close())
	}
	return conn, nil
}

// forwarded is a connection through an apiserver. gRPC sets no deadlines on it.
type forwarded struct {
	httpstream.Stream
	session httpstream.Connection
	pod     string

	failed chan struct{} // closed when the other end has reported an error
	reason error
	once   sync.Once
}

func newForwarded(session httpstream.Connection, pod string, port int) (*forwarded, error) {
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
	c := &forwarded{Stream: data, session: session, pod: pod, failed: make(chan struct{})}
	go c.listen(complaints)
	return c, nil
}

// maxComplaint bounds how much of a kubelet's error is read.
const maxComplaint = 4 << 10

func (c *forwarded) listen(complaints io.Reader) {
	text, _ := io.ReadAll(io.LimitReader(complaints, maxComplaint))
	if said := strings.TrimSpace(string(text)); said != "" {
		c.reason = errors.New(said)
		close(c.failed)
		_ = c.Close()
	}
}

// Read returns the kubelet's error, if there is one, instead of io.EOF.
func (c *forwarded) Read(p []byte) (int, error) {
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

// Close ends the whole session, which is used by this connection alone.
func (c *forwarded) Close() (err error) {
	c.once.Do(func() {
		_ = c.Reset()
		err = c.session.Close()
	})
	return err
}

// LocalAddr implements net.Conn.
func (c *forwarded) LocalAddr() net.Addr { return podAddr("port-forward") }

// RemoteAddr implements net.Conn.
func (c *forwarded) RemoteAddr() net.Addr { return podAddr(c.pod) }

// SetDeadline implements net.Conn. It does nothing: calls have deadlines.
func (c *forwarded) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (c *forwarded) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn.
func (c *forwarded) SetWriteDeadline(time.Time) error { return nil }

// podAddr is the name of a Pod.
type podAddr string

// Network implements net.Addr.
func (podAddr) Network() string { return "pod" }

// String implements net.Addr.
func (a podAddr) String() string { return string(a) }
