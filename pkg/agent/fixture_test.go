package agent

import (
	"context"
	"maps"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/enrol"
	enrolserver "github.com/fairlead/fairlead/pkg/enrol/server"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	reporthub "github.com/fairlead/fairlead/pkg/report/hub"
	"github.com/fairlead/fairlead/pkg/xds"
)

const name = "gateway-0"

const domain model.TunnelDomain = "tunnels.example.com"

var (
	edgeSubject = model.Subject{Role: model.RoleEdge, Node: "edge-a", ID: model.NewID()}
	gateway0    = model.Subject{Role: model.RoleGateway, Node: name}
)

// control is an xds-server and acts as the controller: it signs with a real CA.
type control struct {
	t       *testing.T
	ca      *certs.CA
	token   string // of the tunnel of edgeSubject, and of gateways
	address model.Endpoint
	public  model.Endpoint // of the gateways in the configuration of edges; zero: their listener
	bind    envoy.GatewayBind
	edges   *recorder
	peers   []model.Gateway // other gateways of the installation
	lanes   int             // of each edge

	mu          sync.Mutex
	clusters    map[string]model.WorkloadCluster // by Tunnel.spec.id
	tokens      map[string]string                // id by token
	gone        map[string]time.Time             // ids of tunnels that are recorded as ended
	server      *xds.Server                      // the newest
	hub         *reporthub.Hub                   // likewise
	life        time.Duration                    // of leaves
	starts      bool                             // the server is starting and has no tunnels yet
	err         error                            // of the signer
	signs       *model.Subject                   // in every leaf, whatever was requested; nil: what was requested
	shown       int                              // number of times that a token was used
	requests    int                              // number of requests for leaves with a valid credential or key
	issued      int
	connections int // number of connections
}

func newControl(t *testing.T) *control {
	t.Helper()
	ca, err := certs.NewCA("test CA", time.Now().Add(-1000*time.Hour), 2000*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	c := &control{
		t: t, ca: ca, life: time.Hour, address: freeport.Endpoint(t), edges: &recorder{},
		clusters: map[string]model.WorkloadCluster{}, tokens: map[string]string{}, gone: map[string]time.Time{},
	}
	c.bind = envoy.GatewayBind{
		Public: freeport.Endpoint(t), APIServer: freeport.Endpoint(t), Connect: freeport.Endpoint(t),
	}
	c.token = c.tunnel("c1", edgeSubject.ID, freeport.Endpoint(t))
	return c
}

// tunnel adds a Cluster with a tunnel, and returns a token for it.
func (c *control) tunnel(cluster, id string, apiservers ...model.Endpoint) string {
	c.t.Helper()
	key := model.Key{Namespace: "prod", Name: cluster}
	hostname, err := domain.Hostname(key)
	if err != nil {
		c.t.Fatal(err)
	}
	token, err := enrol.RandomToken()
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	c.tokens[token] = id
	c.mu.Unlock()
	c.publish(
		model.WorkloadCluster{Key: key, ID: id, Hostname: hostname, APIServer: apiservers[0], Others: apiservers[1:]},
	)
	return token
}

// egress adds the tunnel of the apiservers of a Cluster, and returns a token for it.
func (c *control) egress(cluster, id string) string {
	c.t.Helper()
	token, err := enrol.RandomToken()
	if err != nil {
		c.t.Fatal(err)
	}
	c.set(func() { c.tokens[token] = id })
	c.publish(model.WorkloadCluster{Key: model.Key{Namespace: "prod", Name: cluster + ".egress"}, ID: id, Egress: true})
	return token
}

// publish replaces the configuration of a Cluster.
func (c *control) publish(wc model.WorkloadCluster) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clusters[wc.ID] = wc
	if c.server != nil {
		c.server.Publish(wc.Key, &wc)
	}
}

// end records a tunnel as ended.
func (c *control) end(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wc := c.clusters[id]
	delete(c.clusters, id)
	c.gone[id] = time.Now().Add(time.Hour)
	if c.server != nil {
		c.server.Ended(maps.Clone(c.gone))
		c.server.Publish(wc.Key, nil)
	}
}

func endpoint(t *testing.T, addr net.Addr) model.Endpoint {
	t.Helper()
	e, err := model.ParseEndpoint(addr.String())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func way(to ...model.Endpoint) *dial.Dialer { return &dial.Dialer{Addresses: to} }

// EdgeToken implements enrolserver.Tokens.
func (c *control) EdgeToken(hash, _ string) (enrol.Grant, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shown++
	for token, id := range c.tokens {
		if wc, ok := c.clusters[id]; ok && enrol.HashToken(token) == hash {
			return enrol.Grant{Tunnel: wc.Key, ID: id, Egress: wc.Egress}, nil
		}
	}
	return enrol.Grant{}, enrol.ErrUnknownToken
}

// PodToken implements enrolserver.PodTokens. Every token is of one Pod of edgeSubject's tunnel.
func (c *control) PodToken(string) (enrol.PodGrant, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return enrol.PodGrant{
		Grant: enrol.Grant{Tunnel: c.clusters[edgeSubject.ID].Key, ID: edgeSubject.ID}, Node: edgeSubject.Node,
	}, nil
}

// GatewayToken implements enrolserver.Tokens.
func (c *control) GatewayToken(hash string) error {
	_, err := c.EdgeToken(hash, "")
	return err
}

// Admit implements enrolserver.Renewals.
func (c *control) Admit(s model.Subject) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.starts {
		return grpcstatus.Error(codes.Unavailable, "this server does not know the tunnels yet")
	}
	return c.server.Admit(s)
}

// Tunnel implements enrolserver.Renewals.
func (c *control) Tunnel(id string) (model.Key, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server.Tunnel(id)
}

// Issue implements enrolserver.Issuer.
func (c *control) Issue(_ context.Context, r enrolserver.IssueRequest) ([]byte, error) {
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
	if c.signs != nil {
		r.Subject = *c.signs
	}
	now := time.Now()
	return c.ca.Issue(key, leaf(r.Subject, now.Add(-certs.ClockSkew), now.Add(c.life)))
}

func leaf(s model.Subject, begin, end time.Time) certs.Leaf {
	return certs.Leaf{
		CommonName: s.Node,
		DNSNames:   domain.DNSNames(s),
		Server:     true,
		Client:     true,
		NotBefore:  begin,
		NotAfter:   end,
	}
}

// identity returns a new identity with a leaf of this CA.
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

// Identity implements certs.Source. It is called for each connection.
func (c *control) Identity() (certs.Identity, error) {
	c.set(func() { c.connections++ })
	return c.fresh(model.ControlSubject()), nil
}

// connected returns the number of connections.
func (c *control) connected() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.connections
}

func (c *control) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// counts returns how many tokens were used and how many leaves were issued.
func (c *control) counts() (tokens, issued int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shown, c.issued
}
