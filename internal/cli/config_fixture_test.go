package cli

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controlchannel"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	reporthub "github.com/fairlead/fairlead/pkg/report/hub"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/pkg/xds"
)

const configDomain model.TunnelDomain = "tunnels.example.com"

// xdsServer is an xds-server without Kubernetes: its control channel and its inspection listen on real sockets.
type xdsServer struct {
	*xds.Server
	ca         *certs.CA
	address    string // of the control channel
	inspection *net.TCPAddr
}

func newXDSServer(t testing.TB, clusters ...model.WorkloadCluster) *xdsServer {
	t.Helper()
	ca, err := certs.NewCA("test", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	at := func(port uint16) model.Endpoint { return model.Endpoint{Host: "10.0.0.9", Port: port} }
	log := slog.New(slog.DiscardHandler)
	s := &xdsServer{
		ca: ca,
		Server: xds.NewServer(
			model.Installation{Domain: configDomain, Public: at(443), Control: at(18000), Gateways: []model.Gateway{
				{Name: "gateway-0", Peer: at(444)}, {Name: "gateway-1", Peer: at(445)},
			}},
			log,
		),
	}
	s.Replace(clusters)
	hub := reporthub.New(configDomain, s.Server, log)
	front := controlchannel.New(
		controlchannel.Config{
			Domain:  configDomain,
			TLS:     certs.ServerTLS(s, certs.Bundle(ca.CertPEM()), time.Hour),
			Closing: func() { s.Close(); hub.Close() },
			Log:     log,
		},
	)
	s.Register(front)
	reportv1.RegisterReportServer(front, hub)
	control, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	inspection, err := collect.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address, s.inspection = control.Addr().String(), inspection.Addr().(*net.TCPAddr)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- front.Serve(ctx, control) }()
	go func() {
		ended <- collect.Serve(ctx, inspection, collect.Config{Domain: configDomain, Hub: hub, Published: s.Status()})
	}()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

// Identity implements certs.IdentitySource for the server.
func (s *xdsServer) Identity() (certs.Identity, error) { return s.identity(model.ControlSubject()) }

func (s *xdsServer) identity(subject model.Subject) (certs.Identity, error) {
	key, err := certs.NewKey()
	if err != nil {
		return certs.Identity{}, err
	}
	chain, err := s.ca.Issue(key.Public(), certs.Leaf{
		CommonName: subject.Node, DNSNames: configDomain.DNSNames(subject), Server: true, Client: true,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
	})
	if err != nil {
		return certs.Identity{}, err
	}
	return certs.NewIdentity(chain, key)
}

// gateway simulates the agent of a gateway with tunnels: it accepts every resource except refused.
func (s *xdsServer) gateway(t testing.TB, name, refused string, tunnels ...*reportv1.Tunnel) {
	t.Helper()
	subject := model.Subject{Role: model.RoleGateway, Node: name}
	identity, err := s.identity(subject)
	if err != nil {
		t.Fatal(err)
	}
	roots, err := certs.Bundle(s.ca.CertPEM()).Roots()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+s.address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs: roots, ServerName: configDomain.Control(), MinVersion: tls.VersionTLS13,
		Certificates: []tls.Certificate{identity.TLSCertificate()},
	})), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	reports, err := reportv1.NewReportClient(conn).Gateway(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := reports.Send(&reportv1.GatewayReport{Snapshot: true, Ready: true, Tunnels: tunnels}); err != nil {
		t.Fatal(err)
	}
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	local := func(port uint16) model.Endpoint { return model.Endpoint{Host: "127.0.0.1", Port: port} }
	bind := envoy.GatewayBind{Public: local(1443), APIServer: local(1644), Connect: local(1312)}
	node := &corev3.Node{Id: subject.NodeID(), Metadata: bind.Metadata()}
	for _, typeURL := range []string{resourcev3.ClusterType, resourcev3.ListenerType} {
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: typeURL}); err != nil {
			t.Fatal(err)
		}
		response, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		answer := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: response.GetNonce()}
		for _, r := range response.GetResources() {
			if r.GetName() == refused {
				answer.ErrorDetail = refusalOf(t, refused, r.GetVersion())
			}
		}
		if err := stream.Send(answer); err != nil {
			t.Fatal(err)
		}
	}
}

// pod creates the Pod of an xds-server on a node, ready or not.
func (s *xdsServer) pod(t *testing.T, p *person, node, name string, ready corev1.ConditionStatus) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: collect.DefaultNamespace,
			Name:      name,
			Labels:    map[string]string{"app.kubernetes.io/name": "xds-server"},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "xds-server", Image: "none", Ports: []corev1.ContainerPort{{Name: collect.PortName, ContainerPort: int32(
				s.inspection.Port)}},
		}}},
	}
	if err := p.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Delete(context.Background(), pod) })
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
	if err := p.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
}

func refusalOf(t testing.TB, name, version string) *statusv1.Status {
	t.Helper()
	return &statusv1.Status{Code: 3, Message: "Error adding/updating cluster(s) " + name + ": in " + version[:4]}
}
