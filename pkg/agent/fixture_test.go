package agent

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/enrol"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

const name = "gateway-0"

const domain model.TunnelDomain = "tunnels.example.com"

var edgeSubject = model.Subject{Role: model.RoleEdge, Node: "edge-a", ID: model.NewID()}

// control plays the xds-server and the controller: it enrols with a real CA, and serves one gateway's listeners by ADS.
type control struct {
	t       *testing.T
	ca      *certs.CA
	token   string
	address model.Endpoint
	bind    envoy.GatewayBind

	mu     sync.Mutex
	life   time.Duration // of leaves
	ended  bool          // the edge's tunnel
	starts bool          // the server, and so knows no tunnels yet
	err    error         // of the signer
	tokens int           // how often a token was shown
	issued int
}

func newControl(t *testing.T) *control {
	t.Helper()
	ca, err := certs.NewCA("test CA", time.Now().Add(-1000*time.Hour), 2000*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	token, err := enrol.RandomToken()
	if err != nil {
		t.Fatal(err)
	}
	c := &control{t: t, ca: ca, token: token, life: time.Hour, address: freePort(t)}
	c.bind = envoy.GatewayBind{Public: freePort(t), APIServer: freePort(t), Connect: freePort(t)}
	return c
}

func freePort(t *testing.T) model.Endpoint {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	endpoint, err := model.ParseEndpoint(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return endpoint
}

func (c *control) EdgeToken(hash string) (enrol.Grant, error) {
	return enrol.Grant{ID: edgeSubject.ID}, c.GatewayToken(hash)
}

func (c *control) GatewayToken(hash string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tokens++
	if hash != enrol.HashToken(c.token) {
		return enrol.ErrUnknownToken
	}
	return nil
}

func (c *control) Tunnel(id string) (model.Key, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return model.Key{}, id == edgeSubject.ID && !c.ended && !c.starts
}

func (c *control) Published() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.starts
}

func (c *control) Issue(_ context.Context, r enrol.IssueRequest) ([]byte, error) {
	key, err := certs.ParseCSR(r.CSR)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	c.issued++
	now := time.Now()
	return c.ca.Issue(key, leaf(r.Subject, now.Add(-certs.ClockSkew), now.Add(c.life)))
}

func leaf(s model.Subject, begin, end time.Time) certs.Leaf {
	return certs.Leaf{CommonName: s.Node, DNSNames: domain.DNSNames(s), Server: true, Client: true, NotBefore: begin, NotAfter: end}
}

// identity is a leaf of this CA.
func (c *control) identity(s model.Subject, begin, end time.Time) certs.Identity {
	c.t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		c.t.Fatal(err)
	}
	chain, err := c.ca.Issue(key.Public(), leaf(s, begin, end))
	if err != nil {
		c.t.Fatal(err)
	}
	identity, err := certs.NewIdentity(chain, key)
	if err != nil {
		c.t.Fatal(err)
	}
	return identity
}

func (c *control) fresh(s model.Subject) certs.Identity {
	c.t.Helper()
	return c.identity(s, time.Now().Add(-time.Minute), time.Now().Add(time.Hour))
}

// Identity implements certs.Source.
func (c *control) Identity() (certs.Identity, error) { return c.fresh(model.ControlSubject()), nil }

func (c *control) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// counts are how many tokens were shown and how many leaves issued.
func (c *control) counts() (tokens, issued int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tokens, c.issued
}

// serve runs the control channel until the test ends.
func (c *control) serve() {
	c.t.Helper()
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(certs.ServerTLS(c, certs.Bundle(c.ca.CertPEM()), 24*time.Hour))))
	enrolv1.RegisterEnrolmentServer(server, enrol.NewServer(enrol.Config{
		Domain: domain, Tokens: c, Issuer: c, Renewals: c, Trust: c.ca.CertPEM, Log: slog.New(slog.DiscardHandler),
	}))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, serverv3.NewServer(c.t.Context(), c.resources(), nil))
	listener, err := net.Listen("tcp", c.address.String())
	if err != nil {
		c.t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- server.Serve(listener) }()
	c.t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	})
}

func (c *control) resources() cachev3.SnapshotCache {
	c.t.Helper()
	installation := model.Installation{Domain: domain, Public: c.bind.Public, Control: c.address, Gateways: []model.Gateway{{Name: name}}}
	var listeners, clusters []types.Resource
	for _, l := range envoy.GatewayListeners(installation, name, c.bind) {
		listeners = append(listeners, l)
	}
	for _, cluster := range envoy.GatewayClusters(installation) {
		clusters = append(clusters, cluster)
	}
	snapshot, err := cachev3.NewSnapshot("1", map[resourcev3.Type][]types.Resource{resourcev3.ListenerType: listeners, resourcev3.ClusterType: clusters})
	if err != nil {
		c.t.Fatal(err)
	}
	cache := cachev3.NewSnapshotCache(false, cachev3.IDHash{}, nil)
	if err := cache.SetSnapshot(c.t.Context(), model.NodeID(name), snapshot); err != nil {
		c.t.Fatal(err)
	}
	return cache
}

// served is the serial number of the leaf that the gateway's public port shows to an edge.
func (c *control) served() (string, error) {
	roots, err := certs.Bundle(c.ca.CertPEM()).Roots()
	if err != nil {
		return "", err
	}
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: 5 * time.Second}, Config: &tls.Config{
		ServerName: domain.GatewayReplica(name), RootCAs: roots, Certificates: []tls.Certificate{c.fresh(edgeSubject).TLSCertificate()},
	}}
	conn, err := dialer.DialContext(c.t.Context(), "tcp", c.bind.Public.String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.Text(16), nil
}
