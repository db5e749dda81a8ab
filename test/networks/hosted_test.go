package networks

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/promise"
	"github.com/fairlead/fairlead/test/world"
)

// answerTime bounds the answer to a CONNECT, because kube-apiserver waits for it without a deadline.
const answerTime = 5 * time.Second

// hosted is a Cluster whose control plane runs in the management network.
type hosted struct {
	*lab.Cluster
	world  *world.World
	site   *netns.Site
	admin  []byte     // kubeconfig
	egress *lab.Agent // beside the apiserver
	socket string
}

// selector is the configuration of an apiserver that dials Nodes, webhooks and aggregated APIs through a socket.
const selector = `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport:
      uds:
        udsName: %s
`

// newHosted starts an apiserver in the management network and creates its Cluster. host is the last byte of its
// address there.
func newHosted(t *testing.T, w *world.World, name string, host int) *hosted {
	t.Helper()
	h := &hosted{world: w, socket: w.File(name + ".sock")}
	var err error
	h.site, err = w.Network.AddHosted(t.Context(), name, host)
	must(t, err)
	etcd, err := kube.StartEtcd(t.Context(), w.Workspace, h.site.Namespace)
	must(t, err)
	file := w.File(name + "-egress.yaml")
	must(t, os.WriteFile(file, fmt.Appendf(nil, selector, h.socket), 0o644))
	pki := func(file string) string { return filepath.Join(w.File(name), file) }
	apiServer, err := kube.StartAPIServer(t.Context(), w.Workspace, kube.APIServerSpec{
		Name: name, Namespace: h.site.Namespace, Address: h.site.Address, Port: 6443, Etcd: etcd, Prefix: "/" + name,
		Flags: []string{
			"--egress-selector-config-file=" + file, "--enable-aggregator-routing=true",
			"--requestheader-client-ca-file=" + pki("ca.crt"), "--requestheader-username-headers=X-Remote-User",
			"--requestheader-allowed-names=front-proxy",
			"--proxy-client-cert-file=" + pki("apiserver.crt"), "--proxy-client-key-file=" + pki("apiserver.key"),
		},
	})
	must(t, err)
	h.Cluster, err = w.CreateCluster(t.Context(), lab.ClusterSpec{
		Name: name, Namespace: world.Namespace, APIServer: apiServer, Labels: map[string]string{"hosted": "true"},
	})
	must(t, err)
	h.admin, err = apiServer.AdminKubeconfig(name)
	must(t, err)
	return h
}

// enrol starts the Envoy beside the apiserver.
func (h *hosted) enrol(t *testing.T) {
	t.Helper()
	h.enrolAs(t, h.Name+"-egress")
}

// enrolAs is enrol with another state folder.
func (h *hosted) enrolAs(t *testing.T, name string) {
	t.Helper()
	edge, err := h.world.RunEdge(lab.EdgeSpec{
		Name: name, Site: h.site.Namespace, Flags: []string{"--egress-socket=" + h.socket},
		Bootstraps: [][]byte{bootstrapOf(t, h.world, h.Name+v1alpha1.EgressTunnelSuffix)},
	})
	must(t, err)
	h.egress = edge
}

// kubectl runs kubectl with the administrator's kubeconfig of this Cluster.
func (h *hosted) kubectl(ctx context.Context, args ...string) (string, error) {
	return h.world.Kubectl(ctx, h.admin, args...)
}

// connect sends CONNECT for an authority as kube-apiserver does, with further lines of headers, and returns the status.
// The connection is nil unless the status is 200.
func (h *hosted) connect(ctx context.Context, authority string, headers ...string) (net.Conn, int, error) {
	return connectTo(ctx, h.socket, authority, headers...)
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
func (h *hosted) who(ctx context.Context, authority string, headers ...string) (string, error) {
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
func (h *hosted) refused(ctx context.Context, authority string, headers ...string) error {
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
func (h *hosted) network(t *testing.T, name string, spec v1alpha1.RemoteNetworkSpec) *v1alpha1.RemoteNetwork {
	t.Helper()
	spec.ClusterName = h.Name
	n := &v1alpha1.RemoteNetwork{ObjectMeta: metav1.ObjectMeta{Namespace: h.Namespace, Name: name}, Spec: spec}
	must(t, h.world.Management.Client.Create(t.Context(), n))
	return n
}

// bootstrapOf waits for the bootstrap file of a Tunnel.
func bootstrapOf(t *testing.T, w *world.World, tunnel string) []byte {
	t.Helper()
	file, err := w.Cluster(types.NamespacedName{Namespace: world.Namespace, Name: tunnel}).Bootstrap(t.Context())
	must(t, err)
	return file
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
func (h *hosted) answers(authority, want string) func(context.Context) error {
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
