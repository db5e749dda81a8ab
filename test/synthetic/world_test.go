package synthetic_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/admission"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/sds"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/synthetic"
)

const domain model.TunnelDomain = "tunnels.example.com"

// world is a gateway with a real Envoy, and the parts of an installation that it needs.
type world struct {
	inst     model.Installation
	bind     envoy.GatewayBind
	ca       *certs.CA
	key      *ecdsa.PrivateKey // of all leaves
	clusters []model.WorkloadCluster
	api      *synthetic.API
	dir      string
	envoy    *envoytest.Envoy
	// statistics turns on Envoy's statistics of each Envoy cluster, whatever their number.
	statistics bool
}

func newWorld(t *testing.T, clusters int, change func(*model.Installation)) *world {
	t.Helper()
	envoytest.Path(t)
	w := &world{bind: envoy.GatewayBind{
		Public: freeport.Endpoint(t), APIServer: freeport.Endpoint(t), Connect: freeport.Endpoint(t),
	}}
	w.inst = model.Installation{
		Domain:   domain,
		Public:   w.bind.Public,
		Control:  freeport.Endpoint(t),
		Gateways: []model.Gateway{{Name: "gateway-0"}},
	}
	if change != nil {
		change(&w.inst)
	}
	var err error
	if w.ca, err = certs.NewCA("test", time.Now(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if w.key, err = certs.NewKey(); err != nil {
		t.Fatal(err)
	}
	for i := range clusters {
		key := model.Key{Namespace: "prod", Name: fmt.Sprintf("c%d", i)}
		hostname, err := domain.Hostname(key)
		if err != nil {
			t.Fatal(err)
		}
		w.clusters = append(w.clusters, model.WorkloadCluster{Key: key, ID: model.NewID(), Hostname: hostname})
	}
	serving := w.leaf(t, certs.Leaf{CommonName: "kubernetes", DNSNames: []string{"kubernetes"}, Server: true}).
		TLSCertificate()
	w.api = synthetic.NewAPI(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &serving, nil })
	t.Cleanup(func() { _ = w.api.Close() })
	w.dir = envoytest.Dir(t)
	w.serve(t)
	w.start(t)
	return w
}

func (w *world) leaf(t *testing.T, leaf certs.Leaf) certs.Identity {
	t.Helper()
	leaf.NotBefore, leaf.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	chain, err := w.ca.Issue(w.key.Public(), leaf)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := certs.NewIdentity(chain, w.key)
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

// serve simulates the gateway's agent.
func (w *world) serve(t *testing.T) {
	t.Helper()
	gateway := model.Subject{Role: model.RoleGateway, Node: "gateway-0"}
	issued := w.leaf(
		t, certs.Leaf{CommonName: gateway.Node, DNSNames: domain.DNSNames(gateway), Server: true, Client: true},
	)
	key, err := issued.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	identity, trust := sds.Names(gateway)
	all := map[string]map[string]types.Resource{
		resourcev3.SecretType: {
			identity: sds.Identity(identity, issued.ChainPEM(), key), trust: sds.Trust(trust, w.ca.CertPEM()),
		},
		resourcev3.ListenerType: {}, resourcev3.ClusterType: {},
	}
	control := admission.NewControl(0, 0)
	for _, l := range envoy.GatewayListeners(w.inst, gateway.Node, w.bind, model.Denied{}) {
		all[resourcev3.ListenerType][l.GetName()] = admitted(t, control, l)
	}
	clusters := envoy.GatewayClusters(w.inst)
	for _, wc := range w.clusters {
		clusters = append(clusters, envoy.TunnelClusters(w.inst, wc)...)
	}
	for _, c := range clusters {
		all[resourcev3.ClusterType][c.GetName()] = c
	}
	mux := &cachev3.MuxCache{
		Classify:      func(r *cachev3.Request) string { return r.GetTypeUrl() },
		ClassifyDelta: func(r *cachev3.DeltaRequest) string { return r.GetTypeUrl() },
		Caches:        map[string]cachev3.Cache{},
	}
	for typeURL, resources := range all {
		mux.Caches[typeURL] = cachev3.NewLinearCache(typeURL, cachev3.WithInitialResources(resources))
	}
	listener, err := net.Listen("unix", filepath.Join(w.dir, envoy.AgentSocket))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	server, resources := grpc.NewServer(), serverv3.NewServer(ctx, mux, nil)
	secretv3.RegisterSecretDiscoveryServiceServer(server, resources)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, resources)
	(&admission.Server{
		Control: control, Domain: domain, SourceKey: envoy.AdmissionSource, RelayedKey: envoy.AdmissionRelayed,
		Counts:  func(model.EdgeRef) (int, int, int) { return 0, 0, 0 }, // there is no table of edges
		Live:    func(netip.AddrPort, netip.AddrPort) bool { return false },
		Denied:  func(model.EdgeRef) bool { return false },
		Tunnels: func(string) int { return model.TunnelsPerEdge(1, 1) }, Decided: func(admission.Reason, netip.Addr,
			model.EdgeRef) {
		},
	}).Register(server)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
}

// admitted returns a listener as a gateway's agent passes it to Envoy.
func admitted(t *testing.T, control *admission.Control, l *listenerv3.Listener) *listenerv3.Listener {
	t.Helper()
	packed, err := anypb.New(l)
	if err != nil {
		t.Fatal(err)
	}
	rate, _, _ := envoy.PublicLimits(packed)
	with, ok := envoy.AddAdmission(packed)
	if !ok {
		return l
	}
	control.SetRate(rate)
	out := &listenerv3.Listener{}
	if err := with.UnmarshalTo(out); err != nil {
		t.Fatal(err)
	}
	return out
}

// start runs Envoy as a new process. It sends the configuration over xDS: thousands of Envoy clusters as YAML would
// take minutes to read.
func (w *world) start(t *testing.T) {
	t.Helper()
	few := len(w.clusters) < 100 // otherwise the default, because statistics of thousands take time and memory
	config, err := envoy.MarshalYAML(envoy.GatewayBootstrap(envoy.BootstrapConfig{ClusterStatistics: few || w.statistics}))
	if err != nil {
		t.Fatal(err)
	}
	w.envoy = envoytest.Start(t, w.dir, config, "--component-log-level", envoy.ComponentLogLevel)
}

// fleet returns a fleet with an edge for each workload cluster. They do not dial yet.
func (w *world) fleet(t *testing.T, change func(*synthetic.Options)) *synthetic.Fleet {
	t.Helper()
	options := synthetic.Options{
		Domain: domain, Gateway: "gateway-0", Roots: w.roots(), API: w.api,
		Dial: func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", w.bind.Public.String())
		},
	}
	if change != nil {
		change(&options)
	}
	f, err := synthetic.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func (w *world) roots() *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.ca.CertPEM())
	return roots
}

// edge adds one more edge of a workload cluster.
func (w *world) edge(
	t *testing.T, f *synthetic.Fleet, wc model.WorkloadCluster, fault func(synthetic.Moment) synthetic.Fault,
) *synthetic.Edge {
	t.Helper()
	edge := model.Subject{Role: model.RoleEdge, Node: model.NewNodeName(), ID: wc.ID}
	certificate := w.leaf(t, certs.Leaf{
		CommonName: edge.Node, DNSNames: domain.DNSNames(edge), Server: true,
		Client: true,
	}).
		TLSCertificate()
	return f.Add(synthetic.Spec{Node: edge.Node, ID: edge.ID, Certificate: &certificate, Fault: fault})
}

// up waits until the given number of tunnels are open, on the gateway's side too.
func up(t *testing.T, f *synthetic.Fleet, tunnels int) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	took, err := f.WaitUp(ctx, int64(tunnels))
	if err != nil {
		t.Fatalf("%v; %+v", err, f.Stats())
	}
	return took
}

// bySNI and byConnect connect to a workload cluster by one of the two routes, without TLS.
func (w *world) bySNI(ctx context.Context, _ string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", w.bind.APIServer.String())
}

func (w *world) byConnect(ctx context.Context, host string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", w.bind.Connect.String())
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	fmt.Fprintf(conn, "CONNECT %s:6443 HTTP/1.1\r\nHost: %s:6443\r\n\r\n", host, host)
	response, err := http.ReadResponse(bufio.NewReaderSize(conn, 1024), nil)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("CONNECT was answered %s", response.Status)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("CONNECT %s: %w", host, err)
	}
	return conn, conn.SetDeadline(time.Time{})
}

type connectFunc = func(ctx context.Context, host string) (net.Conn, error)

// get sends one request on its own connection.
func (w *world) get(ctx context.Context, connect connectFunc, host, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, synthetic.Patience)
	defer cancel()
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := connect(ctx, host)
			if err != nil {
				return nil, err
			}
			// verify checks it
			secure := tls.Client(conn, &tls.Config{ServerName: host, InsecureSkipVerify: true, VerifyConnection: w.verify})
			if err := secure.HandshakeContext(ctx); err != nil {
				return nil, fmt.Errorf("doing TLS with %s: %w", host, err)
			}
			return secure, nil
		},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+path, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// verify accepts the one certificate that all apiservers share, which contains none of their names.
func (w *world) verify(state tls.ConnectionState) error {
	_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: w.roots(), DNSName: "kubernetes"})
	return err
}
