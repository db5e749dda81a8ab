package check

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/envoy/peers"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
)

const (
	gatewayName = "gw.test"
	tunnelName  = "c1.prod.test"
	goodToken   = "a token"
)

// situation is a whole path with all observations of it, as plain values. Everything is healthy until a test changes
// it.
type situation struct {
	key       client.ObjectKey // of the Cluster that is checked
	cluster   *clusterv1.Cluster
	tunnel    *v1alpha1.Tunnel
	secret    *corev1.Secret // the kubeconfig; if a test sets its data, the fields below have no effect
	bootstrap *corev1.Secret
	lease     *coordinationv1.Lease
	webhook   *admissionregistrationv1.MutatingWebhookConfiguration
	others    []client.Object

	way        kubeconfig.Endpoint
	authority  []byte    // PEM, that the kubeconfig trusts
	userEnds   time.Time // of the client certificate
	userBegins time.Time // likewise
	user       *certs.CA // that has signed it
	edit       func(*clientcmdapi.Config)
	refuses    map[string]error // the errors of reads, by plural resource name
	mayNot     map[string]bool  // verbs on Secrets that the controller may not use
	rewrites   bool             // the webhook answers

	fleet    collect.Fleet
	fleetErr error
	looks    probingServers

	addresses map[string][]netip.Addr
	lookupErr error
	dialErr   map[string]error // by address
	via       string
	ended     bool               // the time for the check has ended
	end       context.CancelFunc // ends the time for the check, while it runs
	watch     time.Duration      // Checker.Watch
	noSecrets bool

	serve       http.HandlerFunc  // the apiserver
	tls         func(*tls.Config) // of the apiserver; nil: unchanged
	serving     *certs.CA         // that has signed its serving certificate
	servingEnds time.Time
	now         time.Time
	ca          *certs.CA
	// otherCA is of another workload cluster.
	otherCA *certs.CA

	site  *site                     // a network of the Cluster; nil: it has none
	sites map[string]*collect.Fleet // what the xds-servers report of its Tunnels, by id
}

// newSituation returns a healthy one: two gateways, each with a tunnel of the same edge, and an apiserver behind them.
func newSituation(t *testing.T) *situation {
	t.Helper()
	now := time.Now().Truncate(time.Second)
	ca := newCA(t)
	s := &situation{
		key: client.ObjectKey{Namespace: "prod", Name: "c1"}, now: now, ca: ca, otherCA: newCA(t),
		user: ca, userBegins: now.Add(-time.Hour), userEnds: now.Add(time.Hour), authority: ca.CertPEM(),
		serving: ca, servingEnds: now.Add(time.Hour),
		rewrites: true, refuses: map[string]error{}, mayNot: map[string]bool{},
		way:       kubeconfig.Endpoint{Server: "https://" + gatewayName + ":6443", TLSServerName: tunnelName},
		addresses: map[string][]netip.Addr{gatewayName: {netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}},
		dialErr:   map[string]error{}, serve: wellServed, watch: 20 * time.Millisecond,
	}
	meta := metav1.ObjectMeta{Namespace: "prod", Name: "c1", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))}
	s.cluster = &clusterv1.Cluster{ObjectMeta: *meta.DeepCopy()}
	s.cluster.Labels = map[string]string{v1alpha1.TunnelLabel: v1alpha1.TunnelEnabled}
	s.tunnel = &v1alpha1.Tunnel{ObjectMeta: meta}
	s.tunnel.Spec.ID, s.tunnel.Spec.Kubeconfig.Mode = strings.Repeat("a", 24), v1alpha1.KubeconfigModeSNI
	s.tunnel.Status = v1alpha1.TunnelStatus{
		ID: s.tunnel.Spec.ID, Hostname: tunnelName, Names: []string{tunnelName},
		Kubeconfig: v1alpha1.KubeconfigStatus{
			Mode: v1alpha1.KubeconfigModeSNI, Server: s.way.Server, TLSServerName: tunnelName,
		},
		Tokens: []v1alpha1.TokenStatus{{
			SHA256: enrol.HashToken(goodToken), ExpiresAt: metav1.NewTime(now.Add(time.Hour)), MaxUses: 5, Uses: 1,
		}},
		Edges: []v1alpha1.EdgeStatus{{
			NodeID: model.NodeID("e1"), Host: "host-1", CertificateNotAfter: metav1.NewTime(now.Add(20 * time.Hour)),
			EnrolledAt: metav1.NewTime(now.Add(-time.Hour)), LastSeen: ptr.To(metav1.NewTime(now)),
			Gateways: []v1alpha1.EdgeGatewayStatus{{Name: "gateway-0", Tunnels: 1}, {Name: "gateway-1", Tunnels: 1}},
		}},
		Conditions: []metav1.Condition{condition(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)},
	}
	s.bootstrap = &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "c1" + v1alpha1.BootstrapSecretSuffix},
		Data:       map[string][]byte{v1alpha1.BootstrapTokenKey: []byte(goodToken)},
	}
	s.secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "c1" + kubeconfig.Suffix}}
	s.lease = &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: defaultInstallation, Name: collect.LeaseName},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To("controller-0"), LeaseDurationSeconds: ptr.To(int32(15)),
			RenewTime: ptr.To(metav1.NewMicroTime(now)),
		},
	}
	s.webhook = &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.WebhookConfigurationName},
	}
	s.observe()
	return s
}

// observe fills in what the xds-servers report of a healthy path.
func (s *situation) observe() {
	api := &observed.APIServer{
		Address: "10.0.0.1:6443", Healthy: true, CertificateNames: []string{tunnelName},
		CertificateEnd: s.now.Add(24 * time.Hour),
	}
	s.fleet = collect.Fleet{
		Servers: []collect.Server{{Name: "xds-server-0", Settled: true}, {Name: "xds-server-1", Settled: true}},
		Edges: []observed.Edge{{
			Node: "e1", ID: s.tunnel.Spec.ID, Connected: true, Since: s.now.Add(-time.Hour), APIServer: api,
		}},
	}
	for _, name := range []string{"gateway-0", "gateway-1"} {
		s.fleet.Gateways = append(s.fleet.Gateways, collect.Gateway{
			Name: name, Installed: true, Connected: true, Ready: true, Since: s.now.Add(-time.Hour),
			Resources: []collect.Resource{
				{Name: tunnelName, Status: collect.Synced}, {Name: peers.SNIListener, Status: collect.Synced},
			},
		})
		tunnel := collect.Tunnel{Gateway: name, Node: "e1", ID: s.tunnel.Spec.ID, Worker: "worker_0"}
		s.fleet.Tunnels = append(s.fleet.Tunnels, tunnel)
	}
	s.looks.looks = []collect.EdgeProbe{{Node: "e1", APIServer: api}}
}

func condition(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: "the controller has written this"}
}

// sees makes the edge's probe of the apiserver find this problem, before any certificate was presented.
func (s *situation) sees(reason model.APIServerReason) {
	seen := &observed.APIServer{Address: "10.0.0.1:6443", Reason: reason, Message: "it says: " + string(reason)}
	s.fleet.Edges[0].APIServer, s.looks.looks[0].APIServer = seen, seen
}

// withoutTunnels removes all tunnels, observed and recorded.
func (s *situation) withoutTunnels() {
	s.fleet.Tunnels, s.tunnel.Status.Edges[0].Gateways = nil, nil
	s.serve = cut
}

// awayEdge removes the edge with all of its tunnels.
func (s *situation) awayEdge() {
	s.withoutTunnels()
	s.fleet.Edges[0].Connected, s.looks.looks = false, nil
}

// noEdge removes every trace of an enrolled edge.
func (s *situation) noEdge() {
	s.awayEdge()
	s.fleet.Edges, s.tunnel.Status.Edges = nil, nil
}

// mute stops the reports of the edge's agent, while its tunnels stay.
func (s *situation) mute() { s.fleet.Edges[0].Connected, s.looks.looks = false, nil }

func (s *situation) refused(about, reason string) {
	s.fleet.Refusals = []collect.Refusal{{Address: "203.0.113.9", About: about, Reason: reason, Last: s.now}}
}

func (s *situation) noController() {
	s.lease.Spec.RenewTime = ptr.To(metav1.NewMicroTime(s.now.Add(-time.Hour)))
}

func (s *situation) quota() {
	one := corev1.ResourceList{corev1.ResourceSecrets: *resourceOne()}
	s.others = append(s.others, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "full"},
		Status:     corev1.ResourceQuotaStatus{Hard: one, Used: one},
	})
}

// check runs all hops.
func (s *situation) check(t *testing.T) Report {
	t.Helper()
	server := s.apiserver(t)
	objects := s.objects(t)
	checker := &Checker{
		Objects: objects, Asks: objects, Secrets: objects, Servers: s, Via: s.via, Watch: s.watch,
		Network: network{s, server.Listener.Addr().String()}, Now: func() time.Time { return s.now },
	}
	if s.noSecrets {
		checker.Secrets = nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.end = cancel
	if s.ended {
		cancel()
	}
	return checker.Check(ctx, s.key)
}

// Observe implements Servers.
func (s *situation) Observe(_ context.Context, id string, _ []string) (collect.Fleet, error) {
	fleet := s.fleet
	if f := s.sites[id]; f != nil {
		fleet = *f
	}
	fleet.Gateways = slices.Clone(fleet.Gateways) // the caller may change it
	return fleet, s.fleetErr
}

// Look implements Servers.
func (s *situation) ProbeAPIServers(ctx context.Context, id string) ([]collect.EdgeProbe, error) {
	if s.site != nil && id == s.site.network.Status.ID {
		return []collect.EdgeProbe{{Node: "n1", APIServer: s.site.forward}}, nil
	}
	return s.looks.ProbeAPIServers(ctx, id)
}

// network has the names of a situation, and connects every address to the apiserver.
type network struct {
	*situation
	server string
}

// Lookup implements Network.
func (n network) Lookup(_ context.Context, host string) ([]netip.Addr, error) {
	if found, ok := n.addresses[host]; ok || n.lookupErr != nil {
		return found, n.lookupErr
	}
	return nil, &net.DNSError{Name: host, Err: "no such host", IsNotFound: true}
}

// DialContext implements Network.
func (n network) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	host, _, _ := net.SplitHostPort(address)
	if err := n.dialErr[host]; err != nil {
		return nil, err
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", n.server)
}

// refuse makes every address of the gateways fail.
func (s *situation) refuse(err error) {
	s.dialErr = map[string]error{"192.0.2.1": err, "192.0.2.2": err, gatewayName: err}
}

var refusedDial = &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}

// wellServed answers like an apiserver.
func wellServed(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasSuffix(r.URL.Path, "selfsubjectreviews"):
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"status":{"userInfo":{"username":"admin"}}}`)
	case r.URL.Query().Get("watch") == "true":
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

// cut ends every connection without an answer, like a gateway without a tunnel.
func cut(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// answers answers GET / with a code, and all other requests like a healthy apiserver.
func answers(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			w.WriteHeader(code)
			return
		}
		wellServed(w, r)
	}
}

func (s *situation) apiserver(t *testing.T) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(w, r) }))
	chain, key := leaf(t, s.serving, tunnelName, s.now.Add(-time.Hour), s.servingEnds)
	certificate, err := tls.X509KeyPair(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	if s.tls != nil {
		s.tls(server.TLS)
	}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server
}

func newCA(t *testing.T) *certs.CA {
	t.Helper()
	ca, err := certs.NewCA("test", time.Now(), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// leaf returns a certificate and its key as PEM.
func leaf(t *testing.T, ca *certs.CA, name string, begins, ends time.Time) (chain, keyPEM []byte) {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err = ca.Issue(key.Public(), certs.Leaf{
		CommonName: "leaf", DNSNames: []string{name}, Server: true, Client: true, NotBefore: begins, NotAfter: ends,
	})
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return chain, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// kubeconfig writes the Secret's data.
func (s *situation) kubeconfig(t *testing.T) []byte {
	t.Helper()
	chain, key := leaf(t, s.user, "user.test", s.userBegins, s.userEnds)
	config := clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c1": {
			Server: s.way.Server, TLSServerName: s.way.TLSServerName, ProxyURL: s.way.ProxyURL,
			CertificateAuthorityData: s.authority,
		}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"admin": {ClientCertificateData: chain, ClientKeyData: key}},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "c1", AuthInfo: "admin"}}, CurrentContext: "x",
	}
	if s.edit != nil {
		s.edit(&config)
	}
	data, err := clientcmd.Write(config)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// objects is a management cluster with the objects of the situation.
func (s *situation) objects(t *testing.T) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, clusterv1.AddToScheme, v1alpha1.AddToScheme, coordinationv1.AddToScheme,
		certificatesv1.AddToScheme, admissionregistrationv1.AddToScheme, authorizationv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(s.interceptors())
	if s.secret != nil && s.secret.Data == nil {
		s.secret.Data = map[string][]byte{kubeconfig.Key: s.kubeconfig(t)}
	}
	authority := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "c1-ca"},
		Data:       map[string][]byte{corev1.TLSCertKey: s.ca.CertPEM()},
	}
	builder.WithObjects(authority)
	add := func(there bool, o client.Object) {
		if there {
			builder.WithObjects(o)
		}
	}
	add(s.cluster != nil, s.cluster)
	add(s.tunnel != nil, s.tunnel)
	add(s.secret != nil, s.secret)
	add(s.bootstrap != nil, s.bootstrap)
	add(s.lease != nil, s.lease)
	add(s.webhook != nil, s.webhook)
	return builder.WithObjects(s.others...).Build()
}

// interceptors add what the fake management cluster lacks: forbidden reads, access reviews, and calls of the webhook.
func (s *situation) interceptors() interceptor.Funcs {
	kinds := map[string]string{"*v1beta2.Cluster": "clusters", "*v1alpha1.Tunnel": "tunnels", "*v1.Secret": "secrets"}
	return interceptor.Funcs{
		List: func(
			ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption,
		) error {
			if err := s.refuses["remotenetworks"]; err != nil && typeName(list) == "*v1alpha1.RemoteNetworkList" {
				return err
			}
			return c.List(ctx, list, options...)
		},
		Get: func(
			ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption,
		) error {
			if err := s.refuses[kinds[typeName(o)]]; err != nil {
				return err
			}
			return c.Get(ctx, key, o, options...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if review, ok := o.(*authorizationv1.SubjectAccessReview); ok {
				review.Status.Allowed = !s.mayNot[review.Spec.ResourceAttributes.Verb]
				return nil
			}
			return c.Create(ctx, o, options...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			if secret, ok := o.(*corev1.Secret); ok && s.rewrites && s.secret != nil {
				secret.Data = s.secret.Data
			}
			return c.Update(ctx, o, options...)
		},
	}
}

func forbidden(resource string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "c1", nil)
}
