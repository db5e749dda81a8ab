package xds_test

import (
	"context"
	"crypto/tls"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/logtest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controlchannel"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/xds"
)

const (
	domain   = model.TunnelDomain("tunnels.example.com")
	patience = 30 * time.Second // the timeout of expected events
	pause    = 100 * time.Millisecond
)

var (
	inst = model.Installation{
		Domain:  domain,
		Public:  model.Endpoint{Host: "gateways.example.com", Port: 443},
		Control: model.Endpoint{Host: "10.0.0.9", Port: 18000},
		Gateways: []model.Gateway{
			{Name: "gateway-0", Peer: model.Endpoint{Host: "10.0.0.1", Port: 443}},
			{Name: "gateway-1", Peer: model.Endpoint{Host: "10.0.0.2", Port: 443}},
		},
	}
	gateway = model.Subject{Role: model.RoleGateway, Node: "gateway-0"}
	bind    = envoy.GatewayBind{
		Public:    model.Endpoint{Host: "127.0.0.1", Port: 443},
		APIServer: model.Endpoint{Host: "127.0.0.1", Port: 6443},
		Connect:   model.Endpoint{Host: "127.0.0.1", Port: 3128},
	}
	// The Envoy clusters that every gateway has.
	common = []string{"control_channel", "no_such_tunnel", "peer_gateway-0", "peer_gateway-1"}
	// What an edge has.
	edgeClusters  = []string{"apiserver_edge-a", "gateway-0_edge-a", "gateway-1_edge-a"}
	edgeListeners = []string{"tunnel_edge-a_gateway-0", "tunnel_edge-a_gateway-1"}
)

func workload(name string, extra ...string) model.WorkloadCluster {
	return model.WorkloadCluster{
		Key: model.Key{Namespace: "prod", Name: name}, ID: name + strings.Repeat("0", 20-len(name)),
		Hostname: name + ".prod.tunnels.example.com", ExtraNames: extra,
		APIServer: model.Endpoint{Host: "10.1.0.1", Port: 6443},
	}
}

func edgeOf(wc model.WorkloadCluster) model.Subject {
	return model.Subject{Role: model.RoleEdge, Node: "edge-a", ID: wc.ID}
}

// bed is a server on a real socket, with a CA.
type bed struct {
	*xds.Server
	ca      *certs.CA
	address string
	log     *logtest.Journal
	stop    func() error // stops the server and waits until it has ended
}

func newBed(t testing.TB, clusters ...model.WorkloadCluster) *bed {
	t.Helper()
	b := newEmptyBed(t)
	b.Replace(clusters)
	return b
}

// newEmptyBed returns a bed before the first Replace.
func newEmptyBed(t testing.TB) *bed {
	t.Helper()
	return newBedOf(t, inst)
}

func newBedOf(t testing.TB, inst model.Installation) *bed {
	t.Helper()
	ca, err := certs.NewCA("test", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{ca: ca, log: &logtest.Journal{}}
	b.Server = xds.NewServer(inst, slog.New(slog.NewTextHandler(b.log, nil)))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.address = listener.Addr().String()
	control := fixed{b.identity(t, model.ControlSubject(), time.Now().Add(time.Hour))}
	c := controlchannel.New(controlchannel.Config{
		Domain: domain, TLS: certs.ServerTLS(control, certs.Bundle(ca.CertPEM()), time.Hour),
		Closing: b.Close, Log: slog.New(slog.DiscardHandler),
	})
	b.Register(c)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Serve(ctx, listener) }()
	b.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() {
		if err := b.stop(); err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	return b
}

type fixed struct{ identity certs.Identity }

func (f fixed) Identity() (certs.Identity, error) { return f.identity, nil }

func (b *bed) identity(t testing.TB, s model.Subject, notAfter time.Time) certs.Identity {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := b.ca.Issue(key.Public(), certs.Leaf{
		CommonName: s.Node, DNSNames: domain.DNSNames(s), Server: true, Client: true,
		NotBefore: time.Now().Add(-30 * time.Minute), NotAfter: notAfter,
	})
	if err != nil {
		t.Fatal(err)
	}
	identity, err := certs.NewIdentity(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

// dial connects with a certificate; nil: without one.
func (b *bed) dial(t testing.TB, identity *certs.Identity) discoveryv3.AggregatedDiscoveryServiceClient {
	t.Helper()
	roots, err := certs.Bundle(b.ca.CertPEM()).Roots()
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{RootCAs: roots, ServerName: domain.Control(), MinVersion: tls.VersionTLS13}
	if identity != nil {
		config.Certificates = []tls.Certificate{identity.TLSCertificate()}
	}
	conn, err := grpc.NewClient(
		b.address, grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
}

// ads acts as the agent of an Envoy: it subscribes, and acknowledges responses.
type ads struct {
	discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	node *corev3.Node // of the next request; nil after the first
	got  chan *discoveryv3.DeltaDiscoveryResponse
	end  chan error
}

// nodeOf returns the node that the agent of a subject claims.
func nodeOf(s model.Subject) *corev3.Node {
	if s.Role == model.RoleGateway {
		return &corev3.Node{Id: s.NodeID(), Metadata: bind.Metadata()}
	}
	return &corev3.Node{Id: s.NodeID()}
}

// envoy opens a stream for a subject that claims its own node id.
func (b *bed) envoy(t testing.TB, s model.Subject) *ads {
	t.Helper()
	identity := b.identity(t, s, time.Now().Add(time.Hour))
	return b.claim(t, &identity, nodeOf(s))
}

// claim opens a stream for a certificate, and claims the given node.
func (b *bed) claim(t testing.TB, identity *certs.Identity, node *corev3.Node) *ads {
	t.Helper()
	stream, err := b.dial(t, identity).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a := &ads{stream, node, make(chan *discoveryv3.DeltaDiscoveryResponse, 16), make(chan error, 1)}
	go func() {
		for {
			r, err := a.Recv()
			if err != nil {
				a.end <- err
				return
			}
			a.got <- r
		}
	}()
	return a
}

// subscribe requests all resources of a type, and states which versions the node has.
func (a *ads) subscribe(t testing.TB, typeURL string, have map[string]string) {
	t.Helper()
	a.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, InitialResourceVersions: have})
}

func (a *ads) send(t testing.TB, r *discoveryv3.DeltaDiscoveryRequest) {
	t.Helper()
	r.Node, a.node = a.node, nil
	if err := a.Send(r); err != nil {
		t.Logf("sending: %v", err) // receiving returns the reason
	}
}

// next waits for a response and acknowledges it.
func (a *ads) next(t testing.TB) *discoveryv3.DeltaDiscoveryResponse {
	t.Helper()
	select {
	case r := <-a.got:
		a.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()})
		return r
	case err := <-a.end:
		t.Fatalf("the stream has ended: %v", err)
	case <-time.After(patience):
		t.Fatal("nothing was sent")
	}
	return nil
}

// refusal waits for the end of the stream.
func (a *ads) refusal(t testing.TB) codes.Code {
	t.Helper()
	for {
		select {
		case <-a.got:
		case err := <-a.end:
			t.Logf("the stream has ended: %v", err)
			return status.Code(err)
		case <-time.After(patience):
			t.Fatal("the stream is still open")
		}
	}
}

// fetch subscribes to a type and returns the versions of all of its resources.
func (a *ads) fetch(t testing.TB, typeURL string) map[string]string {
	t.Helper()
	a.subscribe(t, typeURL, nil)
	return versions(a.next(t))
}

func versions(r *discoveryv3.DeltaDiscoveryResponse) map[string]string {
	all := map[string]string{}
	for _, resource := range r.GetResources() {
		all[resource.GetName()] = resource.GetVersion()
	}
	return all
}

func names(r *discoveryv3.DeltaDiscoveryResponse) []string {
	return slices.Sorted(maps.Keys(versions(r)))
}

const (
	cds = resourcev3.ClusterType
	lds = resourcev3.ListenerType
)
