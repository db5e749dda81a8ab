package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/test/lab"
)

const clusterType = "type.googleapis.com/envoy.config.cluster.v3.Cluster"

// configurationClaims proves that configuration is given only to the node that its certificate names.
func (w *world) configurationClaims(t *testing.T) {
	berlin, roots := identityOf(t, w.berlin.edge.StateDir)
	gateway, _ := identityOf(t, w.Gateway.StateDir)
	self, other := subjectOf(t, w.berlin.edge.StateDir), subjectOf(t, w.tokyo.edge.StateDir)
	foreign := foreignIdentity(t, self)

	promise(t, "an edge gets its own configuration", func(t *testing.T) {
		resources, err := w.fetch(t.Context(), roots, &berlin, self.NodeID())
		if err != nil || resources == 0 {
			t.Errorf("%d resources, error %v: the attacks below would prove nothing", resources, err)
		}
	})
	for name, attack := range map[string]struct {
		certificate *tls.Certificate
		node        string
	}{
		"an edge gets no other edge's configuration":             {&berlin, other.NodeID()},
		"an edge's certificate used as a gateway's gets nothing": {&berlin, "CN=gateway-0"},
		"a gateway's certificate used as an edge's gets nothing": {&gateway, self.NodeID()},
		"a certificate of another CA gets nothing":               {&foreign, self.NodeID()},
		"an edge without a certificate gets nothing":             {nil, self.NodeID()},
		"an edge that names no node gets nothing":                {&berlin, ""},
	} {
		promise(t, name, func(t *testing.T) { w.refusedConfiguration(t, roots, attack.certificate, attack.node) })
	}
}

// refusedConfiguration fails the test if a node gets any configuration.
func (w *world) refusedConfiguration(t *testing.T, roots *x509.CertPool, certificate *tls.Certificate, node string) {
	t.Helper()
	must(t, w.XDSServerReady(t.Context())) // one that is down refuses everything
	resources, err := w.fetch(t.Context(), roots, certificate, node)
	if code := status.Code(err); resources > 0 || (code != codes.PermissionDenied && code != codes.Unauthenticated && code != codes.Unavailable) {
		t.Errorf("%d resources, error %v, want a refusal", resources, err)
	}
}

// fetch asks the xds-server, through the gateway's public port, for the Envoy clusters of a node. It returns how many
// resources came in the first answer.
func (w *world) fetch(ctx context.Context, roots *x509.CertPool, certificate *tls.Certificate, node string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	config := &tls.Config{RootCAs: roots, ServerName: domain.Control()}
	if certificate != nil {
		config.Certificates = []tls.Certificate{*certificate}
	}
	conn, err := grpc.NewClient("passthrough:///"+hostPort(lab.PublicName, lab.PublicPort), grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return w.Network.Workload.DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return 0, err
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: node}, TypeUrl: clusterType}); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	} // EOF: the answer was faster, and Recv tells which
	answer, err := stream.Recv()
	return len(answer.GetResources()), err
}
