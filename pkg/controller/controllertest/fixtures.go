// Package controllertest has the fixtures that the tests of several packages below pkg/controller share: a
// configuration, objects as users and providers write them, a kube-apiserver without controllers, and an in-memory one.
// Only tests import it.
package controllertest

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
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	reportview "github.com/fairlead/fairlead/pkg/report/view"
)

// NewCA returns the CA of a workload cluster.
func NewCA(t *testing.T) *certs.CA {
	t.Helper()
	ca, err := certs.NewCA("kubernetes", time.Now(), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// SecretNamed returns an empty Secret with a name.
func SecretNamed(namespace, name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// Recorded returns the record of an edge that enrolled at a time.
func Recorded(node string, at time.Time, gateways ...v1alpha1.EdgeGatewayStatus) v1alpha1.EdgeStatus {
	return v1alpha1.EdgeStatus{
		NodeID:              model.NodeID(node),
		EnrolledAt:          metav1.NewTime(at),
		CertificateNotAfter: metav1.NewTime(at.Add(time.Hour)),
		Gateways:            gateways,
	}
}

// Forbidden returns the error of an admission policy that rejects a Secret.
func Forbidden(name string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, name, context.DeadlineExceeded)
}

// ListenTLS serves TLS with a certificate of a CA until the test ends.
func ListenTLS(t *testing.T, ca *certs.CA, address string, protocols []string, names ...string) net.Listener {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(
		key.Public(),
		certs.Leaf{
			CommonName: "x",
			DNSNames:   names,
			Server:     true,
			NotBefore:  time.Now(),
			NotAfter:   time.Now().Add(time.Hour),
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := certs.NewIdentity(leaf, key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen(
		"tcp",
		address,
		&tls.Config{
			Certificates: []tls.Certificate{identity.TLSCertificate()},
			NextProtos:   protocols,
			MinVersion:   tls.VersionTLS12,
		},
	)
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

// EveryMode lists all modes of a kubeconfig. auto resolves to one of the first two.
var EveryMode = []v1alpha1.KubeconfigMode{
	v1alpha1.KubeconfigModeSNI, v1alpha1.KubeconfigModeConnect, v1alpha1.KubeconfigModeHTTPProxy,
	v1alpha1.KubeconfigModeHTTPSProxy,
	v1alpha1.KubeconfigModeSOCKS5, v1alpha1.KubeconfigModeAddress,
}

// SpecOf returns a spec with the fields that a mode requires.
func SpecOf(mode v1alpha1.KubeconfigMode, proxy string) v1alpha1.KubeconfigSpec {
	spec := v1alpha1.KubeconfigSpec{Mode: mode}
	switch {
	case mode == v1alpha1.KubeconfigModeAddress:
		spec.Server, spec.TLSServerName = "https://lb.example.org:6443", "kubernetes"
	case !mode.Tunnelled():
		spec.Proxy, spec.TLSServerName = &v1alpha1.ProxySpec{Address: proxy}, "kubernetes"
	}
	return spec
}

// Connected returns an edge with tunnels to gateways and a healthy report.
func Connected(node string, gateways ...string) reportview.Edge {
	e := reportview.Edge{
		Node:      node,
		Connected: true,
		Since:     time.Now(),
		Gateways:  map[string]int{},
		Report: &reportv1.EdgeReport{
			Form: "Process", Version: "v1", ApiServer: &reportv1.APIServer{
				Address: "127.0.0.1:6443", Healthy: true,
				Version: "v1.36.1",
			},
		},
	}
	for _, g := range gateways {
		e.Gateways[g] = 2
	}
	return e
}

// Users of the programs in a management cluster.
const (
	ControllerUser = "system:serviceaccount:fairlead-system:controller"
	XDSServerUser  = "system:serviceaccount:fairlead-system:xds-server"
)

// Config returns the settings of an installation with gateways.
func Config() config.Config {
	return config.Config{
		Domain: "tunnels.example.com", Namespace: "fairlead-system",
		Public:    model.Endpoint{Host: "gw.example.com", Port: 443},
		APIServer: model.Endpoint{Host: "10.1.1.1", Port: 6443},
		Connect:   model.Endpoint{Host: "10.1.1.1", Port: 3128},
		DNS:       config.TunnelDNSNo, LeafLifetime: 24 * time.Hour, TokenLifetime: 24 * time.Hour, TokenUses: 3,
		XDSServerUser: XDSServerUser,
		DialNetworks: []netip.Prefix{
			netip.MustParsePrefix("127.0.0.0/8"),
		}, NeverDial: func(netip.Addr) bool { return false },
	}
}

// Eventually waits until check returns no error.
func Eventually(t *testing.T, check func() error) {
	t.Helper()
	kubetest.Eventually(t, "waiting", check)
}

// Message returns the message of a condition, or an empty string.
func Message(tunnel *v1alpha1.Tunnel, kind string) string {
	if c := apimeta.FindStatusCondition(tunnel.Status.Conditions, kind); c != nil {
		return c.Message
	}
	return ""
}

// OriginalServer is the server that providers write.
const OriginalServer = "https://192.0.2.10:6443"

// KubeconfigSecret returns the Secret that a control-plane provider writes: with a CA, a user's certificate and Cluster
// API's label.
func KubeconfigSecret(
	t *testing.T, namespace, cluster, server string, changes ...func(*clientcmdapi.Config),
) *corev1.Secret {
	t.Helper()
	ca, err := certs.NewCA("kubernetes", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(
		key.Public(),
		certs.Leaf{
			CommonName: "kubernetes-admin",
			DNSNames:   []string{"admin"},
			Client:     true,
			NotBefore:  time.Now(),
			NotAfter:   time.Now().Add(time.Hour),
		},
	)
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
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Name:      cluster + kubeconfig.Suffix,
			Labels:    map[string]string{clusterv1.ClusterNameLabel: cluster},
		},
		Type: clusterv1.ClusterSecretType,
		Data: map[string][]byte{kubeconfig.Key: data},
	}
}

// EntryOf reads the entry of the current context.
func EntryOf(t *testing.T, secret *corev1.Secret) clientcmdapi.Cluster {
	t.Helper()
	config, err := clientcmd.Load(secret.Data[kubeconfig.Key])
	if err != nil {
		t.Fatal(err)
	}
	return *config.Clusters[config.Contexts[config.CurrentContext].Cluster]
}

// Edit changes an object as its owner would, and retries after conflicts.
func Edit[T client.Object](t *testing.T, m client.Client, o T, change func(T)) {
	t.Helper()
	Eventually(t, func() error {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		change(o)
		return m.Update(t.Context(), o)
	})
}

// Create creates objects.
func Create(t *testing.T, m client.Client, all ...client.Object) {
	t.Helper()
	for _, o := range all {
		if err := m.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

// Read returns the object of o's type and name as it is now.
func Read[T client.Object](t *testing.T, m client.Client, o T) T {
	t.Helper()
	now := o.DeepCopyObject().(T)
	if err := m.Get(t.Context(), client.ObjectKeyFromObject(o), now); err != nil {
		t.Fatal(err)
	}
	return now
}

// ConnectServer returns the server of a kubeconfig in mode connect.
func ConnectServer(cluster *clusterv1.Cluster) string {
	return "https://" + cluster.Name + "." + cluster.Namespace + ".tunnels.example.com:6443"
}

// TunnelNamed is an empty Tunnel with the names of a Cluster.
func TunnelNamed(cluster *clusterv1.Cluster) *v1alpha1.Tunnel {
	return &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}}
}

// BootstrapOf returns an empty bootstrap Secret with the name of a Cluster's.
func BootstrapOf(cluster *clusterv1.Cluster) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name + v1alpha1.BootstrapSecretSuffix},
	}
}

// WaitGone waits until an object is gone.
func WaitGone(t *testing.T, m client.Client, o client.Object) {
	t.Helper()
	Eventually(t, func() error {
		switch err := m.Get(t.Context(), client.ObjectKeyFromObject(o), o.DeepCopyObject().(client.Object)); {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("%T %s is still there", o, o.GetName())
	})
}

// HasFinalizer reports whether an object has the finalizer of Tunnels.
func HasFinalizer(o client.Object) bool {
	return slices.Contains(o.GetFinalizers(), v1alpha1.TunnelFinalizer)
}

// What EdgeRequest asks for.
const (
	TestID    = "abcdefghij0123456789"
	TestNode  = "edge-abcdefgh"
	TestToken = "fl1.token"
)

// csrPEM returns a signing request for a new key. It asks for names that are never granted.
func csrPEM(t *testing.T) []byte {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return CSRFor(t, key)
}

// CSRFor returns a signing request with a key, in PEM.
func CSRFor(t *testing.T, key any) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{
			CommonName:   "gateway-0",
			Organization: []string{"system:masters"},
		}, DNSNames: []string{"gateway.tunnels.example.com"},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// EdgeRequest returns what the xds-server writes for an edge with a valid token.
func EdgeRequest(t *testing.T, tunnel string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "fairlead-", CreationTimestamp: metav1.Now(),
			Annotations: map[string]string{
				v1alpha1.RequestTunnelAnnotation: tunnel, v1alpha1.RequestTunnelIDAnnotation: TestID,
				v1alpha1.RequestNodeAnnotation:  TestNode,
				v1alpha1.RequestTokenAnnotation: enrol.HashToken(TestToken), v1alpha1.RequestHostAnnotation: "machine-1",
			},
		},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: v1alpha1.SignerEdge, Username: XDSServerUser, Request: csrPEM(t),
			Usages: []certificatesv1.KeyUsage{
				certificatesv1.UsageDigitalSignature,
				certificatesv1.UsageClientAuth,
				certificatesv1.UsageServerAuth,
			},
		},
	}
}

// Served returns a Cluster with an extra name, and the Tunnel that it has had since a time.
func Served(name string, since int64, extraNames ...string) (*clusterv1.Cluster, *v1alpha1.Tunnel) {
	cluster := kubetest.Cluster("prod", name)
	cluster.UID = types.UID("uid-of-" + name)
	tunnel := TunnelNamed(cluster)
	tunnel.CreationTimestamp = metav1.NewTime(time.Unix(since, 0))
	tunnel.Spec.ExtraNames = extraNames
	objects.CompleteTunnel(tunnel, cluster)
	return cluster, tunnel
}

// FakeAPI returns an in-memory apiserver with objects and the indexes of the cache.
func FakeAPI(t *testing.T, all ...client.Object) client.WithWatch {
	t.Helper()
	scheme, err := objects.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(all...).WithStatusSubresource(&v1alpha1.Tunnel{}).
		WithStatusSubresource(&v1alpha1.RemoteNetwork{}).
		WithIndex(&clusterv1.Cluster{}, reconciler.EndpointIndex, reconciler.EndpointHosts).
		WithIndex(&v1alpha1.RemoteNetwork{}, reconciler.NetworkClusterIndex, reconciler.NetworkClusterOf).
		WithIndex(&v1alpha1.Tunnel{}, reconciler.CredentialsIndex, reconciler.CredentialsOf).Build()
}

// TraceTo sends spans to a collector until stop is called.
func TraceTo(t *testing.T, c *tracetest.Collector) (stop func()) {
	t.Helper()
	before := otel.GetTracerProvider()
	stop, err := traces.Flags{Endpoint: c.Endpoint}.Start(t.Context(), "controller", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); otel.SetTracerProvider(before) })
	return stop
}

// The tunnel hostname of the Cluster prod/c1, and ways that its kubeconfig may lead with the settings of Config.
const (
	Hostname   = "c1.prod.tunnels.example.com"
	DirectURL  = "https://c1.prod.tunnels.example.com:6443"
	AddressURL = "https://10.1.1.1:6443"
	ProxyURL   = "http://10.1.1.1:3128"
)

// SecretWith returns a kubeconfig Secret with one entry, as edited by a user.
func SecretWith(t *testing.T, entry kubeconfig.Endpoint, kept map[string]string) *corev1.Secret {
	t.Helper()
	secret := KubeconfigSecret(t, "prod", "c1", entry.Server, func(c *clientcmdapi.Config) {
		c.Clusters["c1"].TLSServerName, c.Clusters["c1"].ProxyURL = entry.TLSServerName, entry.ProxyURL
	})
	secret.Annotations = map[string]string{"somebody.example.org/else": "x"}
	maps.Copy(secret.Annotations, kept)
	return secret
}

// Rewritten returns the annotations that Fairlead writes.
func Rewritten(written, original string) map[string]string {
	return map[string]string{v1alpha1.WrittenServerAnnotation: written, v1alpha1.OriginalServerAnnotation: original}
}

// CheckEntry checks the endpoint of the kubeconfig in a Secret.
func CheckEntry(t *testing.T, secret *corev1.Secret, want kubeconfig.Endpoint) {
	t.Helper()
	if got, err := kubeconfig.Read(secret, "c1"); err != nil || got != want {
		t.Errorf("the kubeconfig leads %+v, %v; want %+v", got, err, want)
	}
}

// ErrCrash is the error of a write after which the process has ended.
var ErrCrash = errors.New("the process ends here")

// server is a kube-apiserver with the namespace and the permissions of deploy/kubernetes, without any controller.
var server = kubetest.Server{CRDs: true, Prepare: prepare}

var admin client.WithWatch

func prepare(ctx context.Context, config *rest.Config) (err error) {
	config.QPS = -1
	if admin, err = kubetest.NewClient(config); err != nil {
		return err
	}
	return kubetest.Deploy(ctx, admin, "namespace.yaml", "controller.yaml", "xds-server.yaml", "policy.yaml")
}

// APIServer returns an administrator's client of the kube-apiserver, or skips the test.
func APIServer(t *testing.T) client.WithWatch {
	t.Helper()
	server.Config(t)
	return admin
}

// ClientOf returns a client with the permissions of a user.
func ClientOf(t *testing.T, user string) client.Client {
	t.Helper()
	api, err := kubetest.NewClient(kubetest.Impersonate(server.Config(t), user))
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// Installed reads the three objects of the installation.
func Installed(t *testing.T, m client.Client, namespace string) (ca, gateway *corev1.Secret, config *corev1.ConfigMap) {
	t.Helper()
	config = &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.InstallationConfigMapName},
	}
	Eventually(t, func() error { return m.Get(t.Context(), client.ObjectKeyFromObject(config), config) })
	ca = Read(t, m, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.CASecretName}})
	gateway = Read(
		t, m, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.GatewaySecretName}},
	)
	return ca, gateway, config
}

// Run runs the tests of a package that need a kube-apiserver without controllers, for its TestMain.
func Run(m *testing.M) int { return kubetest.RunAll(m, &server) }

// RESTConfig returns the administrator's configuration for the kube-apiserver of APIServer.
func RESTConfig(t *testing.T) *rest.Config {
	t.Helper()
	return server.Config(t)
}
