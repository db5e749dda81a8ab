package envoy_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// hold opens a connection to a workload cluster by SNI, and keeps it until the test ends.
func (in *installation) hold(t *testing.T, g *gateway, host string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), envoytest.Patience)
	defer cancel()
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", g.bind.APIServer.String())
	if err != nil {
		return err
	}
	conn := tls.Client(raw, &tls.Config{RootCAs: in.workload.roots(), ServerName: host, MinVersion: tls.VersionTLS12})
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return err
	}
	t.Cleanup(func() { _ = conn.Close() })
	return nil
}

// limit applies limits as a gateway's agent does. It fails the test if the Envoy cluster would change.
func (g *gateway) limit(t *testing.T, in *installation, wc model.WorkloadCluster) {
	t.Helper()
	usual := wc
	usual.Limits = model.Limits{}
	for i, c := range envoy.TunnelClusters(in.Installation, wc) {
		tunnel, ok := envoy.TunnelOf(packed(t, c))
		if !ok || tunnel.ID != domain.TunnelID(wc.ID) {
			t.Fatalf("%s is %+v", c.GetName(), tunnel)
		}
		want := envoy.TunnelClusters(in.Installation, usual)[i]
		envoy.Complete(want)
		if string(tunnel.Plain.GetValue()) != string(packed(t, want).GetValue()) {
			t.Fatalf("limits change the Envoy cluster %s", c.GetName())
		}
		var query []string
		for key, value := range tunnel.Limits {
			query = append(query, url.QueryEscape(key)+"="+value)
		}
		if _, err := g.Admin(t.Context(), http.MethodPost, "/runtime_modify?"+strings.Join(query, "&")); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLimitsChangeInPlace opens connections to a workload cluster up to its limit, raises the limit, and repeats this.
// In Envoy 1.40 an Envoy cluster that is replaced keeps its reverse tunnels until their last stream ends, and after
// the second replacement there is none left.
func TestLimitsChangeInPlace(t *testing.T) {
	workload := newAuthority(t)
	hostname, other := "c1.prod."+string(domain), "c2.prod."+string(domain)
	api := newAPIServer(t, "api", workload, hostname, other)
	c1 := cluster(t, "c1", endpoint(t, api.Listener.Addr().String()))
	c2 := cluster(t, "c2", c1.APIServer)
	in := newInstallation(t, 1, c1, c2)
	in.workload = workload
	in.startEdge(t, c1)
	in.startEdge(t, c2)
	g := in.gateways[0]
	works(t, in.getBySNI, g, hostname, "api "+hostname)
	works(t, in.getBySNI, g, other, "api "+other)
	held := 0
	for _, most := range []int{3, 5, 6, 8} {
		c1.Limits = model.Limits{Connections: int64(most), Pending: int64(most)}
		g.limit(t, in, c1)
		for ; held < most; held++ {
			if err := in.hold(t, g, hostname); err != nil {
				t.Fatalf("connection %d of %d: %v", held+1, most, err)
			}
		}
		if err := in.hold(t, g, hostname); err == nil {
			t.Errorf("there is a connection beyond the limit of %d", most)
		}
		if got := connectStatus(t, g, hostname+":6443"); got != http.StatusServiceUnavailable {
			t.Errorf("beyond the limit of %d CONNECT is answered %d, want 503", most, got)
		}
		works(t, in.getBySNI, g, other, "api "+other)
	}
}

// TestANetworkLeavesTunnelsToItsCluster: its machines use reverse tunnels of the Cluster, and its limit is its own.
func TestANetworkLeavesTunnelsToItsCluster(t *testing.T) {
	for connections, want := range map[int64]string{0: "", 600: "600", 1024: "1024", 4000: "1024", 10_000: "1024"} {
		wc := siteOf()
		wc.Limits = model.Limits{Connections: connections}
		wc.Network.EgressID, wc.Network.APIServerID = "", "bbbbbbbbbbbbbbbbbbbb"
		clusters := envoy.TunnelClusters(model.Installation{Domain: domain, Workers: 4}, wc)
		tunnel, ok := envoy.TunnelOf(packed(t, clusters[0]))
		name := "apiserver/" + domain.TunnelID(wc.ID)
		if !ok || clusters[0].GetName() != name || tunnel.ID != domain.TunnelID(wc.Network.APIServerID) {
			t.Fatalf("got %v", clusters)
		}
		if got := tunnel.Limits["circuit_breakers."+name+".default.max_requests"]; got != want {
			t.Errorf("with connections: %d, the limit is %q, want %q", connections, got, want)
		}
	}
}

// TestBandwidthIsKept has an edge with a limit, which is then removed.
func TestBandwidthIsKept(t *testing.T) {
	const limit, size = 1 << 20, 4 << 20
	workload := newAuthority(t)
	hostname := "c1.prod." + string(domain)
	c1 := cluster(t, "c1", endpoint(t, newBulk(t, workload, hostname).Listener.Addr().String()))
	c1.Limits.Bandwidth = limit
	in := newInstallation(t, 1, c1)
	in.workload = workload
	s := model.Subject{Role: model.RoleEdge, Node: model.NewNodeName(), ID: c1.ID}
	dir := envoytest.Dir(t)
	agent := in.serveAgent(t, dir, envoy.EdgeClusters(in.Installation, c1, s.Node, envoy.EdgeDial{}), s)
	agent.listen(t, envoy.EdgeListeners(in.Installation, c1, s.Node, envoy.EdgeDial{}))
	envoytest.Start(
		t, dir, marshal(t, envoy.EdgeBootstrap(envoy.BootstrapConfig{})), "--component-log-level", envoy.ComponentLogLevel,
		"--drain-time-s", "3",
	)
	works(t, in.getBySNI, in.gateways[0], hostname, "")
	client := in.client(in.gateways[0], hostname)
	down := func() (*http.Response, error) { return client.Get(fmt.Sprintf("https://%s/?size=%d", hostname, size)) }
	up := func() (*http.Response, error) {
		return client.Post("https://"+hostname+"/", "", strings.NewReader(strings.Repeat("x", size)))
	}
	for what, request := range map[string]func() (*http.Response, error){"download": down, "upload": up} {
		took, err := timed(request)
		t.Logf("%s of %d bytes: %v", what, size, took)
		// A burst of one second is allowed.
		if err != nil || took < (size-limit)/limit*time.Second*3/4 || took > 4*size/limit*time.Second {
			t.Errorf("%s of %d bytes at %d in a second took %v, %v", what, size, limit, took, err)
		}
	}
	c1.Limits.Bandwidth = 0
	agent.listen(t, envoy.EdgeListeners(in.Installation, c1, s.Node, envoy.EdgeDial{}))
	envoytest.Eventually(t, "the limit is removed", func() error {
		client.CloseIdleConnections()
		took, err := timed(down)
		if err == nil && took > (size-limit)/limit*time.Second/2 {
			err = fmt.Errorf("it took %v", took)
		}
		return err
	})
}

// timed returns the duration of a request with its answer.
func timed(request func() (*http.Response, error)) (time.Duration, error) {
	began := time.Now()
	response, err := request()
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return time.Since(began), err
}

// client returns a client that reuses its connections.
func (in *installation) client(g *gateway, host string) *http.Client {
	return &http.Client{Timeout: 3 * envoytest.Patience, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: in.workload.roots(), ServerName: host, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, g.bind.APIServer.String())
		},
	}}
}

// newBulk returns an apiserver that answers with the requested number of bytes, and reads the request.
func newBulk(t *testing.T, ca authority, hostname string) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size := 0
		_, _ = fmt.Sscan(r.URL.Query().Get("size"), &size)
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, strings.Repeat("x", size))
	}))
	s.TLS = serverConfig(ca.leaf(t, certs.Leaf{CommonName: "bulk", DNSNames: []string{hostname}, Server: true}))
	s.TLS.MinVersion = tls.VersionTLS12
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}
