package networks

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/world"
)

// Ports of the machines of a network.
const (
	kubeletPort = 10250
	echoPort    = 7000 // answers with the name of the machine
	deniedPort  = 7001 // the same, and in no RemoteNetwork
	hookPort    = 9443 // a webhook
	apiPort     = 4443 // an aggregated API
)

// remote is a network with machines that no apiserver can dial.
type remote struct {
	*netns.Remote
	world    *world.World
	name     string
	kubelets map[string]*proc.Process // by Node
}

// newRemote builds a network. Each machine of it answers with its own name, which begins with that of the network.
func newRemote(t *testing.T, w *world.World, name, prefix string) *remote {
	t.Helper()
	r, err := w.Network.AddRemote(t.Context(), name, netip.MustParsePrefix(prefix))
	must(t, err)
	return &remote{Remote: r, world: w, name: name, kubelets: map[string]*proc.Process{}}
}

// edge starts an edge of a RemoteNetwork on a machine of this network.
func (r *remote) edge(t *testing.T, name string, host int, network string, flags ...string) (*lab.Agent, *netns.Site) {
	t.Helper()
	site, err := r.AddEdgeHost(t.Context(), name, host)
	must(t, err)
	serve(t, site, r.name+"/"+name, echoPort)
	agent, err := r.world.RunEdge(lab.EdgeSpec{
		Name: r.name + "-" + name, Site: site.Namespace, Flags: flags,
		Bootstraps: [][]byte{bootstrapOf(t, r.world, network+v1alpha1.NetworkTunnelSuffix)},
	})
	must(t, err)
	return agent, site
}

// machine adds a machine that answers on echoPort and deniedPort.
func (r *remote) machine(t *testing.T, name string, host int) *netns.Site {
	t.Helper()
	site, err := r.AddMachine(t.Context(), name, host)
	must(t, err)
	serve(t, site, r.name+"/"+name, echoPort)
	serve(t, site, r.name+"/"+name, deniedPort)
	return site
}

// flood is a line to which serve answers without end.
const flood = "flood"

// serve answers each line that a client sends with a name, on all addresses of a machine.
func serve(t *testing.T, at *netns.Site, name string, port int) {
	t.Helper()
	listener, err := at.Listen(t.Context(), netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(port)).String())
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				for in := bufio.NewScanner(conn); in.Scan(); {
					for more := true; more; more = in.Text() == flood {
						if _, err := fmt.Fprintln(conn, name); err != nil {
							return
						}
					}
				}
			}()
		}
	}()
}

// ask returns the name that serve answers with.
func ask(conn net.Conn) (string, error) {
	_ = conn.SetDeadline(time.Now().Add(answerTime))
	if _, err := io.WriteString(conn, "who\n"); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(oneByte{conn}).ReadString('\n')
	_ = conn.SetDeadline(time.Time{})
	return strings.TrimSpace(line), err
}

// node starts a kubelet without containers on a machine of the network, and gives the Cluster a Node for it, and two
// Pods on it: the commands of Pod <name> run on the machine, and the logs of Pod flood-<name> have no end.
func (r *remote) node(t *testing.T, h *hosted, name string, host int) *netns.Site {
	t.Helper()
	site := r.machine(t, name, host)
	dir := r.world.File(r.name + "-" + name + "-kubelet")
	pair, err := h.APIServer.CA.Issue(pki.LeafSpec{
		CommonName: "system:node:" + name, Names: []string{site.Address.String()}, Usage: x509.ExtKeyUsageServerAuth,
	})
	must(t, err)
	must(t, errors.Join(os.MkdirAll(dir, 0o700), pair.Write(dir, "kubelet")))
	log := r.name + "-" + name + "-kubelet"
	kubelet, err := proc.Start(proc.Spec{
		Name: log, Namespace: site.Namespace, Program: r.world.Parts.RealPath("fake-kubelet"), Log: r.world.LogFile(log),
		Args: []string{
			"-address=" + netip.AddrPortFrom(site.Address, kubeletPort).String(), "-cert=" + dir + "/kubelet.crt",
			"-key=" + dir + "/kubelet.key", "-log-bytes=1000",
		},
	})
	must(t, err)
	t.Cleanup(kubelet.Kill)
	r.kubelets[name] = kubelet
	h.addNode(t, name, site.Address)
	return site
}

// addNode creates a Node and its Pods.
func (h *hosted) addNode(t *testing.T, name string, address netip.Addr) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "default"}}
	if err := h.APIServer.Client.Create(t.Context(), account); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	must(t, h.APIServer.Client.Create(t.Context(), node))
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address.String()}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = kubeletPort
	must(t, h.APIServer.Client.Status().Update(t.Context(), node))
	for _, pod := range []string{name, "flood-" + name} {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: pod},
			Spec:       corev1.PodSpec{NodeName: name, Containers: []corev1.Container{{Name: "shell", Image: "none"}}},
		}
		must(t, h.APIServer.Client.Create(t.Context(), p))
		p.Status.Phase = corev1.PodRunning
		must(t, h.APIServer.Client.Status().Update(t.Context(), p))
	}
}

// runsOn returns nil if a command in the Pod of a Node runs on the machine with an address.
func (h *hosted) runsOn(node string, address netip.Addr) func(context.Context) error {
	return func(ctx context.Context) error {
		out, err := h.kubectl(ctx, "exec", node, "--", "ip", "-4", "-o", "address")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if !strings.Contains(out, " "+address.String()+"/") {
			return fmt.Errorf("the command ran on a machine without the address %s:\n%s", address, out)
		}
		return nil
	}
}

// service creates a Service in the namespace default of the Cluster, whose only endpoint is a machine.
func (h *hosted) service(t *testing.T, name string, address netip.Addr, port int) {
	t.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address.String()}}},
		Ports: []discoveryv1.EndpointPort{{
			Name: ptr.To("https"), Port: ptr.To(int32(port)), Protocol: ptr.To(corev1.ProtocolTCP),
		}},
	}
	must(t, h.APIServer.Client.Create(t.Context(), service))
	must(t, h.APIServer.Client.Create(t.Context(), slice))
}

// serveService serves HTTPS on a machine for a Service of the Cluster.
func (h *hosted) serveService(t *testing.T, at *netns.Site, service string, port int, handler http.Handler) {
	t.Helper()
	h.serveTLS(t, at, service+".default.svc", port, handler)
	h.service(t, service, at.Address, port)
}

// serveTLS serves HTTPS on a machine, with a certificate of the Cluster's CA for a name.
func (h *hosted) serveTLS(t *testing.T, at *netns.Site, name string, port int, handler http.Handler) {
	t.Helper()
	pair, err := h.APIServer.CA.Issue(pki.LeafSpec{
		CommonName: "server", Names: []string{name}, Usage: x509.ExtKeyUsageServerAuth,
	})
	must(t, err)
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	must(t, err)
	listener, err := at.Listen(t.Context(), netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(port)).String())
	must(t, err)
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: answerTime,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
	}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = server.Close() })
}

// denies is a webhook that denies everything, with a reason.
func denies(reason string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := &admissionv1.AdmissionReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Result: &metav1.Status{Message: reason}}
		_ = json.NewEncoder(w).Encode(review)
	})
}

// nodeMetrics is the aggregated API that `kubectl top nodes` reads.
func nodeMetrics(nodes ...string) http.Handler {
	const group = "/apis/metrics.k8s.io/v1beta1"
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+group, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"metrics.k8s.io/v1beta1",`+
			`"resources":[{"name":"nodes","singularName":"","namespaced":false,"kind":"NodeMetrics","verbs":["get","list"]}]}`)
	})
	mux.HandleFunc("GET "+group+"/nodes", func(w http.ResponseWriter, _ *http.Request) {
		var items []string
		for _, node := range nodes {
			items = append(items, fmt.Sprintf(`{"metadata":{"name":%q},"timestamp":%q,"window":"10s",`+
				`"usage":{"cpu":"250m","memory":"64Mi"}}`, node, time.Now().UTC().Format(time.RFC3339)))
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"NodeMetricsList","apiVersion":"metrics.k8s.io/v1beta1","metadata":{},"items":[`+
			strings.Join(items, ",")+"]}")
	})
	return mux
}

// apply applies objects to the Cluster.
func (h *hosted) apply(ctx context.Context, t *testing.T, manifest string) {
	t.Helper()
	cmd, err := h.world.KubectlCommand(ctx, h.admin, "apply", "-f", "-")
	must(t, err)
	cmd.Stdin = strings.NewReader(manifest)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// authority returns the host:port of a machine.
func authority(at *netns.Site, port int) string {
	return net.JoinHostPort(at.Address.String(), strconv.Itoa(port))
}
