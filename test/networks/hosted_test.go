package networks

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/hosted"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/promise"
	"github.com/fairlead/fairlead/test/world"
)

// answerTime bounds the answer to a CONNECT, because kube-apiserver waits for it without a deadline.
const answerTime = 5 * time.Second

// controlPlane is a Cluster whose control plane runs in the management network.
type controlPlane struct {
	*hosted.ControlPlane
	world *world.World
}

// newHosted starts an apiserver in the management network and creates its Cluster. host is the last byte of its
// address there, and flags are added to those of the apiserver.
func newHosted(t *testing.T, w *world.World, name string, host int, flags ...string) *controlPlane {
	t.Helper()
	h, err := hosted.New(t.Context(), w.Lab, hosted.Spec{
		Name: name, Namespace: world.Namespace, Host: host, Flags: flags,
	})
	must(t, err)
	return &controlPlane{h, w}
}

// connect sends CONNECT for an authority as kube-apiserver does, with further lines of headers, and returns the status.
// The connection is nil unless the status is 200.
func (h *controlPlane) connect(ctx context.Context, authority string, headers ...string) (net.Conn, int, error) {
	return connectTo(ctx, h.Socket, authority, headers...)
}

func connectTo(ctx context.Context, socket, authority string, headers ...string) (net.Conn, int, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, 0, err
	}
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	lines := append([]string{"CONNECT " + authority + " HTTP/1.1", "Host: 127.0.0.1"}, headers...)
	if _, err := io.WriteString(conn, strings.Join(lines, "\r\n")+"\r\n\r\n"); err != nil {
		_ = conn.Close()
		return nil, 0, err
	}
	response, err := http.ReadResponse(bufio.NewReaderSize(oneByte{conn}, 16), &http.Request{Method: http.MethodConnect})
	if err != nil {
		_ = conn.Close()
		return nil, 0, fmt.Errorf("reading the answer to CONNECT %s: %w", authority, err)
	}
	_ = conn.SetDeadline(time.Time{})
	if response.StatusCode != http.StatusOK {
		_ = conn.Close()
		return nil, response.StatusCode, nil
	}
	return conn, response.StatusCode, nil
}

// oneByte leaves everything after an answer in the connection.
type oneByte struct{ io.Reader }

func (o oneByte) Read(p []byte) (int, error) { return o.Reader.Read(p[:1]) }

// who returns which server answers at an address.
func (h *controlPlane) who(ctx context.Context, authority string, headers ...string) (string, error) {
	conn, status, err := h.connect(ctx, authority, headers...)
	if err != nil {
		return "", err
	}
	if conn == nil {
		return "", fmt.Errorf("CONNECT %s: the answer is %d", authority, status)
	}
	defer func() { _ = conn.Close() }()
	return ask(conn)
}

// refused returns nil if CONNECT for an authority is answered with 403.
func (h *controlPlane) refused(ctx context.Context, authority string, headers ...string) error {
	conn, status, err := h.connect(ctx, authority, headers...)
	if err != nil {
		return err
	}
	if conn != nil {
		_ = conn.Close()
	}
	if status != http.StatusForbidden {
		return fmt.Errorf("CONNECT %s: the answer is %d, want 403", authority, status)
	}
	return nil
}

// network creates a RemoteNetwork of the Cluster.
func (h *controlPlane) network(t *testing.T, name string, spec v1alpha1.RemoteNetworkSpec) *v1alpha1.RemoteNetwork {
	t.Helper()
	n, err := h.CreateNetwork(t.Context(), name, spec)
	must(t, err)
	return n
}

// networkIs returns a condition that is nil once a condition of a RemoteNetwork has a status, and a reason if that is
// not empty.
func networkIs(
	w *world.World, name, kind string, want metav1.ConditionStatus, reason string,
) func(context.Context) error {
	return func(ctx context.Context) error {
		n := &v1alpha1.RemoteNetwork{}
		at := client.ObjectKey{Namespace: world.Namespace, Name: name}
		if err := w.Management.Client.Get(ctx, at, n); err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == kind && c.Status == want && (reason == "" || c.Reason == reason) {
				return nil
			}
		}
		return fmt.Errorf("RemoteNetwork %s: want %s=%s %s, have %+v", name, kind, want, reason, n.Status.Conditions)
	}
}

// answers returns a condition that is nil once a certain server answers at an address.
func (h *controlPlane) answers(authority, want string) func(context.Context) error {
	return func(ctx context.Context) error {
		got, err := h.who(ctx, authority)
		if err == nil && got != want {
			err = fmt.Errorf("CONNECT %s: %q answers, want %q", authority, got, want)
		}
		return err
	}
}

// ended returns nil once a connection has ended, by an error or by the end of its data.
func ended(conn net.Conn, within time.Duration) error {
	_ = conn.SetReadDeadline(time.Now().Add(within))
	_, err := io.Copy(io.Discard, conn)
	if nerr, ok := err.(net.Error); ok && nerr.Timeout() { //nolint:errorlint // of this connection, never wrapped
		return fmt.Errorf("the connection is open after %s", within)
	}
	return nil
}

// took measures how long a condition takes.
func took(t *testing.T, condition func(context.Context) error) time.Duration {
	t.Helper()
	return world.Took(t, promise.Patience, condition)
}

// lines returns the last lines of a log, for failures.
func lines(w *world.World, log string) string { return proc.Tail(w.LogFile(log), 20) }
