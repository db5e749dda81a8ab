package issuers

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/enrol/podtoken"
	"github.com/fairlead/fairlead/pkg/model"
)

// gateway stands for the connect listener of the gateways: it passes every CONNECT to one apiserver.
type gateway struct {
	net.Listener
	mu          sync.Mutex
	to          string
	authorities []string
}

func newGateway(t *testing.T, to string) *gateway {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{Listener: listener, to: to}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go g.pass(conn)
		}
	}()
	return g
}

func (g *gateway) pass(conn net.Conn) {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	request, err := http.ReadRequest(reader)
	if err != nil || request.Method != http.MethodConnect {
		return
	}
	g.mu.Lock()
	to := g.to
	g.authorities = append(g.authorities, request.Host)
	g.mu.Unlock()
	up, err := net.DialTimeout("tcp", to, time.Second)
	if err != nil {
		_, _ = io.WriteString(conn, "HTTP/1.1 503 Service Unavailable\r\n\r\n")
		return
	}
	defer up.Close()
	_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
	go func() { _, _ = io.Copy(up, reader); _ = up.Close() }()
	_, _ = io.Copy(conn, up)
}

// leadTo lets further connections lead to another address.
func (g *gateway) leadTo(address string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.to = address
}

func (g *gateway) endpoint(t *testing.T) model.Endpoint {
	t.Helper()
	e, err := model.ParseEndpoint(g.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// world is one Tunnel with a connected edge, whose workload cluster is a real kube-apiserver.
type world struct {
	client.WithWatch // the management cluster
	workload         *rest.Config
	gateway          *gateway
	reconciler       *Reconciler
	cluster          *clusterv1.Cluster
	tunnel           *v1alpha1.Tunnel
	now              time.Time
}

// newWorld has a kubeconfig Secret that leads to the workload cluster as its administrator.
func newWorld(t *testing.T, change ...func(*clientcmdapi.Config)) *world {
	t.Helper()
	w := &world{workload: controllertest.RESTConfig(t), now: time.Now()}
	w.gateway = newGateway(t, hostOf(t, w.workload))
	cluster, tunnel := controllertest.Served("c1", 1000)
	tunnel.Spec.EdgeServiceAccount = &v1alpha1.EdgeServiceAccount{Namespace: "default", Name: "fairlead-edge"}
	tunnel.Spec.Kubeconfig.TLSServerName = "localhost" // in the serving certificate of the apiserver
	tunnel.Status.ID, tunnel.Status.Hostname, tunnel.Status.ConnectedEdges = tunnel.Spec.ID, controllertest.Hostname, 1
	tunnel.Status.Served = &v1alpha1.ServedStatus{ClusterUID: cluster.UID}
	w.cluster, w.tunnel = cluster, tunnel
	secret := controllertest.KubeconfigSecret(t, "prod", "c1", w.workload.Host, append([]func(*clientcmdapi.Config){
		func(c *clientcmdapi.Config) {
			c.Clusters["c1"].CertificateAuthorityData = w.workload.CAData
			c.AuthInfos["c1-admin"] = &clientcmdapi.AuthInfo{
				ClientCertificateData: w.workload.CertData, ClientKeyData: w.workload.KeyData,
			}
		},
	}, change...)...)
	w.WithWatch = controllertest.FakeAPI(t, cluster, tunnel, secret)
	config := controllertest.Config()
	config.Connect = w.gateway.endpoint(t)
	w.reconciler = New(reconciler.Deps{
		Config: config, Client: w, Live: w, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return w.now },
	})
	return w
}

func hostOf(t *testing.T, config *rest.Config) string {
	t.Helper()
	u, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// reconcile reconciles once, when the next reading is due, and returns the record.
func (w *world) reconcile(t *testing.T) *v1alpha1.ServiceAccountIssuerStatus {
	t.Helper()
	w.now = w.now.Add(leastPause)
	if _, err := w.reconciler.Reconcile(t.Context(), reconcile.Request{
		NamespacedName: client.ObjectKeyFromObject(w.tunnel),
	}); err != nil {
		t.Fatal(err)
	}
	w.tunnel = controllertest.Read(t, w, w.tunnel)
	return w.tunnel.Status.ServiceAccountIssuer
}

// setStatus changes the status of the Tunnel as the other reconcilers do.
func (w *world) setStatus(t *testing.T, change func(*v1alpha1.TunnelStatus)) {
	t.Helper()
	change(&w.tunnel.Status)
	if err := w.Status().Update(t.Context(), w.tunnel); err != nil {
		t.Fatal(err)
	}
}

// tokenOf returns a token that the workload cluster issues for a new Pod, and the Pod.
func (w *world) tokenOf(t *testing.T, account string, seconds int64, audiences ...string) (string, *corev1.Pod) {
	t.Helper()
	clients, err := kubernetes.NewForConfig(w.workload)
	if err != nil {
		t.Fatal(err)
	}
	admin, err := kubetest.NewClient(w.workload)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: account}}
	if err := client.IgnoreAlreadyExists(admin.Create(ctx, sa)); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "edge-"},
		Spec:       corev1.PodSpec{ServiceAccountName: account, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if err := admin.Create(ctx, pod); err != nil {
		t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: audiences, ExpirationSeconds: &seconds,
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	request, err = clients.CoreV1().ServiceAccounts("default").CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return request.Status.Token, pod
}

func (w *world) audience() string { return podtoken.Audience(w.tunnel.Spec.ID) }
