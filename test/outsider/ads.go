package outsider

import (
	"context"
	"errors"
	"io"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// ClusterType is the type URL of Envoy clusters.
const ClusterType = "type.googleapis.com/envoy.config.cluster.v3.Cluster"

// Fetch requests the Envoy clusters of a node from the xds-server, through the gateway's public port. It returns the
// names of the resources in the first answer.
func (o Outsider) Fetch(ctx context.Context, node string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := o.Control()
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node:    &corev3.Node{Id: node},
		TypeUrl: ClusterType,
	}); err != nil &&
		!errors.Is(err, io.EOF) {
		return nil, err
	} // EOF: the stream has ended, and Recv returns its status
	answer, err := stream.Recv()
	var names []string
	for _, resource := range answer.GetResources() {
		names = append(names, resource.Name)
	}
	return names, err
}
