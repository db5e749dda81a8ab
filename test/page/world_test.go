package page_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/internal/logtest"
)

// world is a management cluster and an xds-server.
type world struct {
	admin      client.WithWatch
	config     *rest.Config
	kubeconfig string
	program    string
	gateway    string // where kubeconfigs lead; it has a listener
	stop       func()
	process    *os.Process
	output     *logtest.Journal
}

func newWorld(t *testing.T) *world {
	t.Helper()
	config := kube.Config(t)
	config.QPS = -1
	admin, err := kubetest.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	w := &world{
		admin:      admin,
		config:     config,
		kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"),
		program:    program(t),
		gateway:    listener.Addr().String(),
	}
	k := clientcmdapi.NewConfig()
	k.Clusters["m"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	k.AuthInfos["x"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData, ClientKeyData: config.KeyData,
		Impersonate:       "system:serviceaccount:fairlead-system:xds-server",
		ImpersonateGroups: []string{"system:serviceaccounts", "system:authenticated"},
	}
	k.Contexts["c"] = &clientcmdapi.Context{Cluster: "m", AuthInfo: "x"}
	k.CurrentContext = "c"
	if err := clientcmd.WriteToFile(*k, w.kubeconfig); err != nil {
		t.Fatal(err)
	}
	return w
}

// program returns the path of the xds-server that make has built, or of one that it builds here if the test runs
// without make.
func program(t *testing.T) string {
	t.Helper()
	if built := os.Getenv("FAIRLEAD_BIN"); built != "" {
		return filepath.Join(built, "xds-server")
	}
	path := filepath.Join(t.TempDir(), "xds-server")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path,
		"../../cmd/xds-server").CombinedOutput(); err != nil {
		t.Fatalf("building xds-server: %v\n%s", err, out)
	}
	return path
}

var served = regexp.MustCompile(`status page is served.*address[":= ]+([^ ",]+)`)

// start starts an xds-server and returns the address of its page from its log, if it has a page.
func (w *world) start(t *testing.T, args ...string) (address string) {
	t.Helper()
	args = append([]string{
		"--listen", "127.0.0.1:0", "--health-listen", "0", "--inspect-listen", "0", "--kubeconfig", w.kubeconfig,
		"--state-dir", t.TempDir(),
		"--tunnel-domain", "tunnels.example.com", "--public-address", "gw.example.com:443", "--control-address",
		"control.example.com:18000", "--gateway", "gateway-0",
	}, args...)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, w.program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = patience
	w.output = &logtest.Journal{}
	cmd.Stdout, cmd.Stderr = w.output, w.output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.process = cmd.Process
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("xds-server: %v\n%s", err, w.output)
		}
	})
	t.Cleanup(w.stop)
	if !slices.Contains(args, "--page-listen") {
		return ""
	}
	eventually.True(t, patience, "the page is served", func() error {
		if found := served.FindStringSubmatch(w.output.String()); found != nil {
			address = found[1]
			return nil
		}
		return fmt.Errorf("the log is %s", w.output)
	})
	return address
}

func (w *world) log(t *testing.T) string {
	t.Helper()
	return w.output.String()
}

// synced waits until the server has read all objects.
func (w *world) synced(t *testing.T) {
	t.Helper()
	eventually.True(t, 2*patience, "all objects are read", func() error {
		if !strings.Contains(w.output.String(), "all objects read") {
			return fmt.Errorf("the log is %s", w.output)
		}
		return nil
	})
}

// memory returns the resident memory of the server in bytes.
func (w *world) memory(t *testing.T) int64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(data)
	kb, err := strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kb << 10
}

// read reads a stream until the test ends, as an additional reader.
func (w *world) read(t *testing.T, url string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", url, response.Status)
	}
	go func() { _, _ = io.Copy(io.Discard, response.Body) }()
}

// tunnel creates a Cluster and its Tunnel without errors, like the controller.
func (w *world) tunnel(t *testing.T, namespace, name string) {
	t.Helper()
	tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	tunnel.Spec.ID = strings.ReplaceAll(fmt.Sprintf("%020s", strings.ReplaceAll(name, "-", "")), " ", "0")
	err := errors.Join(w.admin.Create(t.Context(), kubetest.Cluster(namespace, name)), w.admin.Create(t.Context(), tunnel))
	w.status(tunnel, "")
	if err = errors.Join(err, w.admin.Status().Update(t.Context(), tunnel)); err != nil {
		t.Fatal(err)
	}
}

// networks creates a Cluster without a tunnel, its healthy networks, and their Tunnels, like the controller.
func (w *world) networks(t *testing.T, namespace, cluster string, names ...string) {
	t.Helper()
	c := kubetest.Cluster(namespace, cluster)
	c.Labels = nil
	specs := map[string]v1alpha1.TunnelSpec{cluster + v1alpha1.EgressTunnelSuffix: {EgressOf: cluster}}
	create := []client.Object{c}
	for i, name := range names {
		specs[name+v1alpha1.NetworkTunnelSuffix] = v1alpha1.TunnelSpec{Network: name}
		create = append(create, &v1alpha1.RemoteNetwork{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       v1alpha1.RemoteNetworkSpec{ClusterName: cluster, CIDRs: []string{fmt.Sprintf("10.%d.0.0/16", 21+i)}},
		})
	}
	for name, spec := range specs {
		tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec}
		tunnel.Spec.ID = strings.ReplaceAll(fmt.Sprintf("%020s", strings.ReplaceAll(name, ".", "")), " ", "0")
		if err := w.admin.Create(t.Context(), tunnel); err != nil {
			t.Fatal(err)
		}
		w.status(tunnel, "")
		if spec.EgressOf != "" {
			tunnel.Status.Edges[0].Gateways, tunnel.Status.Edges[0].Connected = nil, true
		} else {
			tunnel.Status.Served = &v1alpha1.ServedStatus{Network: &v1alpha1.ServedNetwork{ClusterName: cluster}}
		}
		if err := w.admin.Status().Update(t.Context(), tunnel); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range create {
		if err := w.admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		w.network(t, namespace, name, "")
	}
}

// network sets the error message of a network; an empty message means no error.
func (w *world) network(t *testing.T, namespace, name, message string) {
	t.Helper()
	n := &v1alpha1.RemoteNetwork{}
	if err := w.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, n); err != nil {
		t.Fatal(err)
	}
	n.Status.Conditions = nil
	for _, kind := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionTunnelReady} {
		c := metav1.Condition{
			Type: kind, Status: metav1.ConditionTrue, Reason: kind, Message: "all is well", LastTransitionTime: metav1.Now(),
			ObservedGeneration: n.Generation,
		}
		if message != "" && kind == v1alpha1.ConditionTunnelReady {
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonNoTunnel, message
		}
		n.Status.Conditions = append(n.Status.Conditions, c)
	}
	if err := w.admin.Status().Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
}

// status sets the status as the controller would: without errors, or without a tunnel at any gateway.
func (w *world) status(tunnel *v1alpha1.Tunnel, message string) {
	now := metav1.Now()
	edge := v1alpha1.EdgeStatus{
		NodeID: "CN=node-" + tunnel.Name, Host: "machine-1", EnrolledAt: now, CertificateNotAfter: metav1.NewTime(
			now.Add(24 * time.Hour)), LastSeen: &now,
		Version: "v0.7.0", APIServer: &v1alpha1.EdgeAPIServerStatus{
			Address: "192.0.2.10:6443", Healthy: true,
			Version: "v1.37.1",
		},
		Gateways: []v1alpha1.EdgeGatewayStatus{{Name: "gateway-0", Tunnels: 2}},
	}
	s := v1alpha1.TunnelStatus{
		ID:       tunnel.Spec.ID,
		Hostname: fmt.Sprintf("%s.%s.tunnels.example.com", tunnel.Name, tunnel.Namespace),
	}
	s.Names = []string{s.Hostname}
	s.Kubeconfig = v1alpha1.KubeconfigStatus{
		Mode:     v1alpha1.KubeconfigModeConnect,
		Server:   "https://192.0.2.10:6443",
		ProxyURL: "http://" + w.gateway,
	}
	for _, kind := range []string{
		v1alpha1.ConditionAccepted, v1alpha1.ConditionKubeconfigReady,
		v1alpha1.ConditionEnrolled, v1alpha1.ConditionTunnelReady, v1alpha1.ConditionAPIServerReachable,
		v1alpha1.ConditionReady,
	} {
		c := metav1.Condition{
			Type:               kind,
			Status:             metav1.ConditionTrue,
			Reason:             kind,
			Message:            "all is well",
			LastTransitionTime: now,
			ObservedGeneration: tunnel.Generation,
		}
		if message != "" && (kind == v1alpha1.ConditionTunnelReady || kind == v1alpha1.ConditionReady) {
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonNoTunnel, message
		}
		s.Conditions = append(s.Conditions, c)
	}
	if message != "" {
		edge.Gateways = nil
	}
	s.Edges = []v1alpha1.EdgeStatus{edge}
	tunnel.Status = s
}

// selfSigned writes a serving certificate for loopback to files.
func selfSigned(t *testing.T) (certificate, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{"localhost"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certificate, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for path, block := range map[string]*pem.Block{
		certificate: {Type: "CERTIFICATE", Bytes: der},
		key:         {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certificate, key
}
