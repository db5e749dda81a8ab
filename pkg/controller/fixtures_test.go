package controller

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/internal/traces"
	"github.com/fairlead/fairlead/internal/tracetest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

func newCA(t *testing.T) *certs.CA {
	t.Helper()
	ca, err := certs.NewCA("kubernetes", time.Now(), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func secretNamed(namespace, name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func recorded(node string, at time.Time, gateways ...v1alpha1.EdgeGatewayStatus) v1alpha1.EdgeStatus {
	return v1alpha1.EdgeStatus{NodeID: model.NodeID(node), EnrolledAt: metav1.NewTime(at), CertificateNotAfter: metav1.NewTime(at.Add(time.Hour)), Gateways: gateways}
}

func forbidden(name string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, name, context.DeadlineExceeded)
}

// listen serves TLS with a certificate of a CA until the test ends it.
func listen(t *testing.T, ca *certs.CA, address string, protocols []string, names ...string) net.Listener {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(key.Public(), certs.Leaf{CommonName: "x", DNSNames: names, Server: true, NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	identity, err := certs.NewIdentity(leaf, key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", address, &tls.Config{Certificates: []tls.Certificate{identity.TLSCertificate()}, NextProtos: protocols, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _ = conn.(*tls.Conn).HandshakeContext(context.Background()) }()
		}
	}()
	return listener
}

// everyMode are all modes that a kubeconfig can be written in; auto comes to one of the first two.
var everyMode = []v1alpha1.KubeconfigMode{
	v1alpha1.KubeconfigModeSNI, v1alpha1.KubeconfigModeConnect, v1alpha1.KubeconfigModeHTTPProxy, v1alpha1.KubeconfigModeHTTPSProxy,
	v1alpha1.KubeconfigModeSOCKS5, v1alpha1.KubeconfigModeAddress,
}

// specOf is a spec in which a mode has what it needs.
func specOf(mode v1alpha1.KubeconfigMode, proxy string) v1alpha1.KubeconfigSpec {
	spec := v1alpha1.KubeconfigSpec{Mode: mode}
	switch {
	case mode == v1alpha1.KubeconfigModeAddress:
		spec.Server, spec.TLSServerName = "https://lb.example.org:6443", "kubernetes"
	case !mode.Tunnelled():
		spec.Proxy, spec.TLSServerName = &v1alpha1.ProxySpec{Address: proxy}, "kubernetes"
	}
	return spec
}

// connected is an edge with tunnels to gateways and a good report.
func connected(node string, gateways ...string) report.Edge {
	e := report.Edge{Node: node, Connected: true, Since: time.Now(), Gateways: map[string]int{}, Report: &reportv1.EdgeReport{
		Form: "Process", Version: "v1", ApiServer: &reportv1.APIServer{Address: "127.0.0.1:6443", Healthy: true, Version: "v1.36.1"},
	}}
	for _, g := range gateways {
		e.Gateways[g] = 2
	}
	return e
}

// Users of the programs in a management cluster.
const (
	controllerUser = "system:serviceaccount:fairlead-system:controller"
	xdsServerUser  = "system:serviceaccount:fairlead-system:xds-server"
)

func testConfig() Config {
	return Config{
		Domain: "tunnels.example.com", Namespace: "fairlead-system",
		Public:    model.Endpoint{Host: "gw.example.com", Port: 443},
		APIServer: model.Endpoint{Host: "10.1.1.1", Port: 6443},
		Connect:   model.Endpoint{Host: "10.1.1.1", Port: 3128},
		DNS:       TunnelDNSNo, LeafLifetime: 24 * time.Hour, TokenLifetime: 24 * time.Hour, TokenUses: 3,
		XDSServerUser: xdsServerUser,
		DialNetworks:  []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, neverDial: func(netip.Addr) bool { return false },
	}
}

// eventually waits until check finds nothing wrong.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	kubetest.Eventually(t, "waiting", check)
}

// message is that of a condition, or empty.
func message(tunnel *v1alpha1.Tunnel, kind string) string {
	if c := apimeta.FindStatusCondition(tunnel.Status.Conditions, kind); c != nil {
		return c.Message
	}
	return ""
}

const originalServer = "https://192.0.2.10:6443"

// kubeconfigSecret is what a control-plane provider writes: with a CA, a user's certificate and Cluster API's label.
func kubeconfigSecret(t *testing.T, namespace, cluster, server string, changes ...func(*clientcmdapi.Config)) *corev1.Secret {
	t.Helper()
	ca, err := certs.NewCA("kubernetes", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(key.Public(), certs.Leaf{CommonName: "kubernetes-admin", DNSNames: []string{"admin"}, Client: true, NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	identity, err := certs.NewIdentity(leaf, key)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := identity.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters[cluster] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca.CertPEM()}
	config.AuthInfos[cluster+"-admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: leaf, ClientKeyData: keyPEM}
	config.Contexts["admin@"+cluster] = &clientcmdapi.Context{Cluster: cluster, AuthInfo: cluster + "-admin"}
	config.CurrentContext = "admin@" + cluster
	for _, change := range changes {
		change(config)
	}
	data, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: cluster + kubeconfig.Suffix, Labels: map[string]string{clusterv1.ClusterNameLabel: cluster}},
		Type:       clusterv1.ClusterSecretType,
		Data:       map[string][]byte{kubeconfig.Key: data},
	}
}

// entryOf reads the entry of the current context.
func entryOf(t *testing.T, secret *corev1.Secret) clientcmdapi.Cluster {
	t.Helper()
	config, err := clientcmd.Load(secret.Data[kubeconfig.Key])
	if err != nil {
		t.Fatal(err)
	}
	return *config.Clusters[config.Contexts[config.CurrentContext].Cluster]
}

// edit changes an object as its owner would, however often others change it meanwhile.
func edit[T client.Object](t *testing.T, m client.Client, o T, change func(T)) {
	t.Helper()
	eventually(t, func() error {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		change(o)
		return m.Update(t.Context(), o)
	})
}

func create(t *testing.T, m client.Client, all ...client.Object) {
	t.Helper()
	for _, o := range all {
		if err := m.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

// read returns the object of o's type and name as it is now.
func read[T client.Object](t *testing.T, m client.Client, o T) T {
	t.Helper()
	now := o.DeepCopyObject().(T)
	if err := m.Get(t.Context(), client.ObjectKeyFromObject(o), now); err != nil {
		t.Fatal(err)
	}
	return now
}

// connectServer is the server of a kubeconfig in mode connect.
func connectServer(cluster *clusterv1.Cluster) string {
	return "https://" + cluster.Name + "." + cluster.Namespace + ".tunnels.example.com:6443"
}

// tunnelNamed is an empty Tunnel with the names of a Cluster.
func tunnelNamed(cluster *clusterv1.Cluster) *v1alpha1.Tunnel {
	return &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}}
}

func bootstrapOf(cluster *clusterv1.Cluster) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name + v1alpha1.BootstrapSecretSuffix}}
}

func waitGone(t *testing.T, m client.Client, o client.Object) {
	t.Helper()
	eventually(t, func() error {
		switch err := m.Get(t.Context(), client.ObjectKeyFromObject(o), o.DeepCopyObject().(client.Object)); {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("%T %s is still there", o, o.GetName())
	})
}

func hasFinalizer(o client.Object) bool {
	return slices.Contains(o.GetFinalizers(), v1alpha1.TunnelFinalizer)
}

const (
	testID    = "abcdefghij0123456789"
	testNode  = "edge-abcdefgh"
	testToken = "fl1.token"
)

// csrPEM is a signing request for a new key that asks for names to which nobody is entitled by asking.
func csrPEM(t *testing.T) []byte {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return csrFor(t, key)
}

func csrFor(t *testing.T, key any) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "gateway-0", Organization: []string{"system:masters"}}, DNSNames: []string{"gateway.tunnels.example.com"},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// edgeRequest is what the xds-server writes for an edge with a good token.
func edgeRequest(t *testing.T, tunnel string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "fairlead-", CreationTimestamp: metav1.Now(),
			Annotations: map[string]string{
				v1alpha1.RequestTunnelAnnotation: tunnel, v1alpha1.RequestTunnelIDAnnotation: testID, v1alpha1.RequestNodeAnnotation: testNode,
				v1alpha1.RequestTokenAnnotation: enrol.HashToken(testToken), v1alpha1.RequestHostAnnotation: "machine-1",
			},
		},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: v1alpha1.SignerEdge, Username: xdsServerUser, Request: csrPEM(t),
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth, certificatesv1.UsageServerAuth},
		},
	}
}

// served is a Cluster with an extra name and the Tunnel that it has had since a time.
func served(name string, since int64, extraNames ...string) (*clusterv1.Cluster, *v1alpha1.Tunnel) {
	cluster := kubetest.Cluster("prod", name)
	cluster.UID = types.UID("uid-of-" + name)
	tunnel := tunnelNamed(cluster)
	tunnel.CreationTimestamp = metav1.NewTime(time.Unix(since, 0))
	tunnel.Spec.ExtraNames = extraNames
	fillTunnel(tunnel, cluster)
	return cluster, tunnel
}

func fakeAPI(t *testing.T, all ...client.Object) client.WithWatch {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(all...).WithStatusSubresource(&v1alpha1.Tunnel{}).
		WithIndex(&clusterv1.Cluster{}, endpointIndex, endpointHosts).WithIndex(&v1alpha1.Tunnel{}, credentialsIndex, credentialsOf).Build()
}

// traceTo has spans sent to a collector until stop is called.
func traceTo(t *testing.T, c *tracetest.Collector) (stop func()) {
	t.Helper()
	before := otel.GetTracerProvider()
	stop, err := traces.Flags{Endpoint: c.Endpoint}.Start(t.Context(), "controller", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); otel.SetTracerProvider(before) })
	return stop
}

const (
	hostname  = "c1.prod.tunnels.example.com"
	direct    = "https://c1.prod.tunnels.example.com:6443"
	byAddress = "https://10.1.1.1:6443"
	proxy     = "http://10.1.1.1:3128"
)

// secretWith is a kubeconfig Secret with one entry, as somebody has left it.
func secretWith(t *testing.T, entry kubeconfig.Way, kept map[string]string) *corev1.Secret {
	t.Helper()
	secret := kubeconfigSecret(t, "prod", "c1", entry.Server, func(c *clientcmdapi.Config) {
		c.Clusters["c1"].TLSServerName, c.Clusters["c1"].ProxyURL = entry.TLSServerName, entry.ProxyURL
	})
	secret.Annotations = map[string]string{"somebody.example.org/else": "x"}
	maps.Copy(secret.Annotations, kept)
	return secret
}

// rewritten is what Fairlead notes.
func rewritten(written, original string) map[string]string {
	return map[string]string{v1alpha1.WrittenServerAnnotation: written, v1alpha1.OriginalServerAnnotation: original}
}

func checkEntry(t *testing.T, secret *corev1.Secret, want kubeconfig.Way) {
	t.Helper()
	if got, err := kubeconfig.Read(secret, "c1"); err != nil || got != want {
		t.Errorf("the kubeconfig leads %+v, %v; want %+v", got, err, want)
	}
}

var errCrash = errors.New("the process ends here")

// bare is a kube-apiserver with the namespace and the permissions of deploy/kubernetes, without any controller.
var bare = kubetest.Server{CRDs: true, Prepare: prepareBare}

var bareAdmin client.WithWatch

func prepareBare(ctx context.Context, config *rest.Config) (err error) {
	config.QPS = -1
	if bareAdmin, err = kubetest.NewClient(config); err != nil {
		return err
	}
	return kubetest.Deploy(ctx, bareAdmin, "namespace.yaml", "controller.yaml", "xds-server.yaml", "policy.yaml")
}

// bareAPIServer returns an administrator's client of the kube-apiserver, or skips the test.
func bareAPIServer(t *testing.T) client.WithWatch {
	t.Helper()
	bare.Config(t)
	return bareAdmin
}

// bareAs returns a client with the permissions of a user.
func bareAs(t *testing.T, user string) client.Client {
	t.Helper()
	api, err := kubetest.NewClient(kubetest.Impersonate(bare.Config(t), user))
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// installed reads the three objects of the installation.
func installed(t *testing.T, m client.Client, namespace string) (ca, gateway *corev1.Secret, config *corev1.ConfigMap) {
	t.Helper()
	config = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.InstallationConfigMapName}}
	eventually(t, func() error { return m.Get(t.Context(), client.ObjectKeyFromObject(config), config) })
	ca = read(t, m, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.CASecretName}})
	gateway = read(t, m, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.GatewaySecretName}})
	return ca, gateway, config
}
