package cli

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// laptop is a machine that reaches the apiserver of the management cluster, but no address of the gateways. Its
// gateways are real Envoys with the CONNECT route of the product. In place of reverse tunnels, their Envoy cluster of
// the tunnel leads to a process that ends a CONNECT as an edge does.
type laptop struct {
	*person
	node, hostname string
	key            client.ObjectKey
	edge           *net.TCPAddr
	gateways       map[string]*envoytest.Envoy
}

func newLaptop(t *testing.T) *laptop {
	t.Helper()
	envoytest.Path(t)
	p := newPerson(t)
	l := &laptop{person: p, node: startKubelet(t, p), key: serve(t, p), gateways: map[string]*envoytest.Envoy{}}
	hostname, err := configDomain.Hostname(model.Key{Namespace: l.key.Namespace, Name: l.key.Name})
	if err != nil {
		t.Fatal(err)
	}
	l.hostname = hostname
	apiserver, ca := newWorkloadAPIServer(t, "kubernetes", hostname)
	edge := httptest.NewServer(connectTo(apiserver))
	t.Cleanup(edge.Close)
	l.edge = edge.Listener.Addr().(*net.TCPAddr)
	provides(t, p, l.key, time.Now().Add(time.Hour), func(c *clientcmdapi.Config) {
		c.Clusters["c1"].CertificateAuthorityData = ca
		c.AuthInfos["admin"] = &clientcmdapi.AuthInfo{Token: "x"}
	})
	return l
}

// newWorkloadAPIServer starts an HTTPS server with a certificate for some names, and returns its address and its CA.
func newWorkloadAPIServer(t *testing.T, names ...string) (address string, ca []byte) {
	t.Helper()
	authority, err := certs.NewCA("kubernetes", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := authority.Issue(key.Public(), certs.Leaf{
		CommonName: "apiserver", DNSNames: names, Server: true,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	identity, err := certs.NewIdentity(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "workload apiserver")
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{identity.TLSCertificate()}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String(), authority.CertPEM()
}

// connectTo ends every CONNECT at one address.
func connectTo(address string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			http.Error(w, "CONNECT only", http.StatusMethodNotAllowed)
			return
		}
		to, err := net.Dial("tcp", address)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		defer to.Close()
		from, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer from.Close()
		_, _ = io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(to, buffered); _ = to.Close() }()
		_, _ = io.Copy(from, to)
	}
}

// gateway starts a gateway and creates its Pod, which is ready or not.
func (l *laptop) gateway(t *testing.T, name string, ready corev1.ConditionStatus) *corev1.Pod {
	t.Helper()
	local := func(port int) model.Endpoint { return model.Endpoint{Host: "127.0.0.1", Port: uint16(port)} }
	bind := envoy.GatewayBind{Public: local(1443), APIServer: local(1644), Connect: local(freeport.TCP(t))}
	inst := model.Installation{
		Domain: configDomain, Public: local(1443), Control: local(1800), Gateways: []model.Gateway{
			{Name: name, Peer: local(1443)},
		},
	}
	var connect []*listenerv3.Listener
	for _, one := range envoy.GatewayListeners(inst, name, bind, model.Denied{}) {
		if n := one.GetName(); n == "connect" || n == "clients/connect" {
			connect = append(connect, one)
		}
	}
	config, err := envoy.MarshalYAML(envoy.Static(
		envoy.GatewayBootstrap(envoy.BootstrapConfig{}), connect,
		[]*clusterv3.Cluster{clusterTo(l.hostname, l.edge)},
	))
	if err != nil {
		t.Fatal(err)
	}
	l.gateways[name] = envoytest.Start(t, envoytest.Dir(t), config, "--component-log-level", envoy.ComponentLogLevel)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: collect.DefaultNamespace, Name: name, Labels: map[string]string{"app.kubernetes.io/name": "gateway"},
		},
		Spec: corev1.PodSpec{NodeName: l.node, Containers: []corev1.Container{{
			Name: "gateway", Image: "none", Ports: []corev1.ContainerPort{
				{Name: "connect", ContainerPort: int32(bind.Connect.Port)},
			},
		}}},
	}
	if err := l.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.deletePod(context.Background(), pod) })
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
	if err := l.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// deletePod deletes a Pod at once, as the kubelet does when its containers have ended.
func (l *laptop) deletePod(ctx context.Context, pod *corev1.Pod) {
	_ = l.Delete(ctx, pod, client.GracePeriodSeconds(0))
}

// setMode sets mode sni, and waits until the kubeconfig has it.
func (l *laptop) setMode(t *testing.T) {
	t.Helper()
	kubetest.Eventually(t, "the mode is set", func() error {
		tunnel := &v1alpha1.Tunnel{}
		if err := l.Get(t.Context(), l.key, tunnel); err != nil {
			return err
		}
		tunnel.Spec.Kubeconfig.Mode = v1alpha1.KubeconfigModeSNI
		return l.Update(t.Context(), tunnel)
	})
	kubetest.Eventually(t, "the kubeconfig has mode sni", func() error {
		out, err := l.does(t, "kubeconfig", "-n", l.key.Namespace, "c1", "--via=address")
		if err != nil || !strings.Contains(out, "tls-server-name: "+l.hostname) || strings.Contains(out, "proxy-url") {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// allow binds rules to a user in a namespace.
func allow(t *testing.T, p *person, user, namespace, role string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: namespace, GenerateName: user + "-"}
	if len(rules) > 0 {
		created := &rbacv1.Role{ObjectMeta: meta, Rules: rules}
		if err := p.Create(t.Context(), created); err != nil {
			t.Fatal(err)
		}
		role = created.Name
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: meta,
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
	}
	if err := p.Create(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
}

// ownerRules are the permissions of the owner of a namespace with Clusters.
func ownerRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{"fairlead.dev"}, Resources: []string{"tunnels"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}},
	}
}

// clusterTo returns an Envoy cluster with one endpoint.
func clusterTo(name string, at *net.TCPAddr) *clusterv3.Cluster {
	address := &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: at.IP.String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(at.Port)},
	}}}
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: name,
			Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}},
			}}}},
		},
	}
}
