package envoy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/outcomes"
	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/model"
)

const domain model.TunnelDomain = "tunnels.example.com"

// installation is an installation with real Envoys. A relay between edges and gateways records every byte.
type installation struct {
	model.Installation
	ca       authority // of Fairlead's own leaves
	workload authority // of the apiservers' serving certificates
	clusters []model.WorkloadCluster
	public   *relay            // forwards to the first gateway's public listener
	peers    map[string]*relay // by gateway: forwards to its public listener
	control  *countingListener
	received chan []byte       // the first bytes of a connection to control
	dotless  *countingListener // must not be dialled
	gateways []*gateway
}

type gateway struct {
	*envoytest.Envoy
	name  string
	bind  envoy.GatewayBind
	agent *agent
	log   string // its lifecycle events
}

// newInstallation starts gateways for workload clusters, without edges.
func newInstallation(t *testing.T, gateways int, clusters ...model.WorkloadCluster) *installation {
	t.Helper()
	return newInstallationOf(t, envoy.BootstrapConfig{}, gateways, clusters...)
}

// newInstallationOf is newInstallation with another bootstrap of its gateways.
func newInstallationOf(
	t *testing.T, config envoy.BootstrapConfig, gateways int, clusters ...model.WorkloadCluster,
) *installation {
	t.Helper()
	envoytest.Path(t)
	hangUp := func(conn net.Conn) { _ = conn.Close() }
	received := make(chan []byte, 64)
	listen := func(conn net.Conn) {
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(envoytest.Patience))
		first := make([]byte, 4096)
		n, _ := conn.Read(first)
		select {
		case received <- first[:n]:
		default:
		}
	}
	in := &installation{
		ca: newAuthority(t), workload: newAuthority(t), clusters: clusters, peers: map[string]*relay{},
		public: newRelay(
			t,
		), control: newCountingListener(t, "tcp", "127.0.0.1:0", listen), received: received, dotless: newCountingListener(t,
			"tcp", "127.0.0.1:0", hangUp),
	}
	// A name instead of an address: it resolves to 127.0.0.1 and ::1, and only one of them has a listener.
	public := model.Endpoint{Host: "localhost", Port: in.public.endpoint(t).Port}
	in.Installation = model.Installation{Domain: domain, Public: public, Control: in.control.endpoint(t)}
	for i := range gateways {
		name := "gateway-" + strconv.Itoa(i)
		in.peers[name] = newRelay(t)
		in.Gateways = append(in.Gateways, model.Gateway{Name: name, Peer: in.peers[name].endpoint(t)})
	}
	for _, g := range in.Gateways {
		in.startGateway(t, g.Name, config)
	}
	in.public.lead(in.gateways[0].bind.Public.String())
	return in
}

func (in *installation) startGateway(t *testing.T, name string, config envoy.BootstrapConfig) {
	t.Helper()
	g := &gateway{name: name, bind: envoy.GatewayBind{
		Public: freeport.Endpoint(t), APIServer: freeport.Endpoint(t), Connect: freeport.Endpoint(t),
	}}
	dir := envoytest.Dir(t)
	// An additional Envoy cluster whose name has no dot, as later code may add.
	clusters := append(gatewayClusters(in.fleet()), dotlessCluster(in.dotless))
	for _, c := range clusters {
		envoy.Complete(c)
	}
	g.agent = in.serveAgent(t, dir, clusters, model.Subject{Role: model.RoleGateway, Node: name})
	g.deny(t, in, model.Denied{})
	g.Envoy = envoytest.Start(
		t, dir, marshal(t, envoy.GatewayBootstrap(config)), "--component-log-level", envoy.ComponentLogLevel,
		"--file-flush-interval-msec", "200",
	)
	g.log = filepath.Join(dir, record.TunnelLog)
	in.peers[name].lead(g.bind.Public.String())
	in.gateways = append(in.gateways, g)
}

// deny sends the gateway its listeners again.
func (g *gateway) deny(t *testing.T, in *installation, denied model.Denied) {
	t.Helper()
	listeners := envoy.GatewayListeners(in.Installation, g.name, g.bind, denied)
	for _, l := range listeners {
		if !envoy.HasClients(l.GetName()) {
			continue
		}
		if counted, ok := outcomes.Count(packed(t, l)); ok {
			if err := counted.UnmarshalTo(l); err != nil {
				t.Fatal(err)
			}
		}
	}
	g.agent.listen(t, listeners)
}

func (in *installation) fleet() model.Fleet {
	return model.Fleet{Installation: in.Installation, Clusters: in.clusters}
}

// dotlessCluster is an Envoy cluster whose name is a single label.
func dotlessCluster(to *countingListener) *clusterv3.Cluster {
	at := model.Endpoint{Host: "127.0.0.1", Port: uint16(to.Addr().(*net.TCPAddr).Port)}
	dotless := envoy.GatewayClusters(model.Installation{Control: at, Gateways: []model.Gateway{{
		Name: "gateway-0",
		Peer: at,
	}}})[2]
	dotless.Name, dotless.LoadAssignment.ClusterName = "localhost", "localhost"
	return dotless
}

// startEdge starts an edge of a workload cluster, and returns without waiting for its reverse tunnels.
func (in *installation) startEdge(t *testing.T, wc model.WorkloadCluster) *envoytest.Envoy {
	t.Helper()
	return in.startDialling(t, wc, envoy.EdgeDial{})
}

// startDialling starts an edge with additional addresses.
func (in *installation) startDialling(t *testing.T, wc model.WorkloadCluster, dial envoy.EdgeDial) *envoytest.Envoy {
	t.Helper()
	s := model.Subject{Role: model.RoleEdge, Node: model.NewNodeName(), ID: wc.ID}
	if wc.Egress {
		s.Role = model.RoleEgress
	}
	dir := envoytest.Dir(t)
	in.serveAgent(t, dir, nil, s)
	return envoytest.Start(
		t, dir, marshal(t, edgeConfig(in.Installation, wc, s.Node, dial)), "--component-log-level", envoy.ComponentLogLevel,
		"--drain-time-s", "3",
	)
}

// cluster returns a workload cluster with an apiserver.
func cluster(t *testing.T, name string, apiserver model.Endpoint, extra ...string) model.WorkloadCluster {
	t.Helper()
	key := model.Key{Namespace: "prod", Name: name}
	hostname, err := domain.Hostname(key)
	if err != nil {
		t.Fatal(err)
	}
	return model.WorkloadCluster{Key: key, ID: model.NewID(), Hostname: hostname, ExtraNames: extra, APIServer: apiserver}
}

// getBySNI sends one request, on its own connection, by the SNI route of a gateway.
func (in *installation) getBySNI(ctx context.Context, g *gateway, host string) (string, error) {
	return in.get(ctx, host, &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, g.bind.APIServer.String())
	}})
}

// getByConnect sends one request, on its own connection, by the CONNECT route of a gateway.
func (in *installation) getByConnect(ctx context.Context, g *gateway, host string) (string, error) {
	return in.get(
		ctx, host, &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: g.bind.Connect.String()})},
	)
}

func (in *installation) get(ctx context.Context, host string, transport *http.Transport) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, envoytest.Patience)
	defer cancel()
	transport.TLSClientConfig = &tls.Config{RootCAs: in.workload.roots(), ServerName: host}
	transport.DisableKeepAlives = true
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+":6443/", nil)
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

// connectStatus returns the status of the CONNECT route. Without an answer it fails the test.
func connectStatus(t *testing.T, g *gateway, authority string) int {
	t.Helper()
	conn, err := net.DialTimeout("tcp", g.bind.Connect.String(), envoytest.Patience)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(envoytest.Patience))
	fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", authority, authority)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Errorf("CONNECT %q: %v", authority, err)
		return 0
	}
	defer response.Body.Close()
	return response.StatusCode
}

// works waits until a request is answered.
func works(t *testing.T, get func(context.Context, *gateway, string) (string, error), g *gateway, host, want string) {
	t.Helper()
	envoytest.Eventually(t, host+" answers", func() error {
		got, err := get(t.Context(), g, host)
		if err == nil && got != want {
			t.Fatalf("%s answered %q, want %q", host, got, want)
		}
		return err
	})
}

func (a authority) roots() *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.ca.CertPEM())
	return roots
}

func serverConfig(identity certs.Identity) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{identity.TLSCertificate()}}
}
