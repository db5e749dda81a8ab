package synthetic

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	proxyproto "github.com/pires/go-proxyproto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// Control is an edge's control channel: the gRPC connection to an xds-server, a stream that accepts all resources, and
// a report. The caller must close it.
type Control struct {
	conn  *grpc.ClientConn
	ended chan struct{} // closed with the stream of resources
}

// Open reports whether the stream of resources is open.
func (c *Control) Open() bool {
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

// Close closes the connection.
func (c *Control) Close() error { return c.conn.Close() }

// Follow opens the control channel of an edge and returns when the first resources of each type have arrived. dial
// connects to an xds-server directly. The connection claims to come through a gateway, from the address from. The edge
// accepts all later resources until Close.
func (e *Edge) Follow(
	ctx context.Context, from net.Addr, dial func(context.Context) (net.Conn, error),
) (*Control, error) {
	f := e.fleet
	conn, err := grpc.NewClient("passthrough:///"+f.options.Domain.Control(),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			raw, err := dial(ctx)
			if err != nil {
				return nil, err
			}
			if _, err := proxyproto.HeaderProxyFromAddrs(2, from, raw.RemoteAddr()).WriteTo(raw); err != nil {
				_ = raw.Close()
				return nil, err
			}
			return raw, nil
		}),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			RootCAs: f.options.Roots, ServerName: f.options.Domain.Control(), MinVersion: tls.VersionTLS13,
			Certificates: []tls.Certificate{*e.Certificate},
		})),
		grpc.WithReadBufferSize(copied), grpc.WithWriteBufferSize(copied))
	if err != nil {
		return nil, fmt.Errorf("preparing the control channel: %w", err)
	}
	c := &Control{conn, make(chan struct{})}
	if err := c.begin(ctx, e); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("opening the control channel of %s: %w", e.Node, err)
	}
	return c, nil
}

// Renew requests another leaf for the edge. csr is in DER. It returns the chain in PEM.
func (c *Control) Renew(ctx context.Context, csr []byte) ([]byte, error) {
	certificate, err := enrolv1.NewEnrolmentClient(c.conn).Renew(ctx, &enrolv1.RenewRequest{Csr: csr})
	if err != nil {
		return nil, fmt.Errorf("renewing a leaf: %w", err)
	}
	return certificate.GetChain(), nil
}

func (c *Control) begin(ctx context.Context, e *Edge) error {
	f := e.fleet
	resources, err := discoveryv3.NewAggregatedDiscoveryServiceClient(c.conn).DeltaAggregatedResources(f.ctx)
	if err != nil {
		return err
	}
	// receives nil when all types have arrived, and later the error that ends the stream, which is not read
	first := make(chan error, 2)
	defer context.AfterFunc(ctx, func() { _ = c.conn.Close() })()
	go func() {
		defer close(c.ended)
		first <- take(resources, first)
	}()
	node := &corev3.Node{Id: model.NodeID(e.Node), Cluster: f.options.Domain.TunnelID(e.ID)}
	for _, typeURL := range []string{resourcev3.ClusterType, resourcev3.ListenerType} {
		request := &discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: typeURL, ResourceNamesSubscribe: []string{"*"}}
		if err := resources.Send(request); err != nil {
			return <-first // the stream's own error
		}
		node = nil
	}
	if err := <-first; err != nil {
		return err
	}
	report, err := reportv1.NewReportClient(c.conn).Edge(f.ctx)
	if err != nil {
		return err
	}
	return report.Send(&reportv1.EdgeReport{
		Form: "Process", Version: "synthetic", ApiServer: &reportv1.APIServer{
			Address: "127.0.0.1:6443", Healthy: true,
			Version: "v1.34.0",
		},
	})
}

// take accepts all resources. It sends nil to first when the first resources of each type have arrived, and returns the
// error that ends the stream.
func take(resources discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, first chan<- error) error {
	for got := 1; ; got++ {
		response, err := resources.Recv()
		if err != nil {
			return err
		}
		if err := resources.Send(&discoveryv3.DeltaDiscoveryRequest{
			TypeUrl:       response.GetTypeUrl(),
			ResponseNonce: response.GetNonce(),
		}); err != nil {
			return err
		}
		if got == 2 { // Envoy clusters and listeners
			first <- nil
		}
	}
}
