package main

import (
	"context"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/controlchannel"
)

const (
	// objects is the memory for everything but connections of edges with objectsClusters workload clusters: 265 MB
	// (docs/benchmarks/scale.md), and some for the time of a restart, when all of them are read.
	objects, objectsClusters = 400 << 20, 10_000
	// cluster is the memory of each further workload cluster: the slope of the same measurements.
	cluster = 18_500
	// connection is the memory of one edge, which has one connection for its resources and its reports. Without a limit
	// it is 90 to 106 KB with 10,000 of them (docs/benchmarks/scale.md), of which 57 KB are in use. Near a limit less of
	// it is garbage.
	connection = 96 << 10
	// leastConnections are served with any memory, because a limit for a few edges must not exclude all of them.
	leastConnections = 1000
)

// edgesInterval is the interval at which the limit of edges follows the number of workload clusters.
const edgesInterval = time.Second

// edgeConnections returns how many connections of edges an xds-server serves with a memory in bytes and a number of
// workload clusters. More would not be slower but end the process, and with it all connections. It returns 0, the
// default of controlchannel, for a memory of 0.
func edgeConnections(memory uint64, clusters int) int {
	if memory == 0 {
		return 0
	}
	used := uint64(objects + max(0, clusters-objectsClusters)*cluster)
	if memory < used+leastConnections*connection {
		return leastConnections
	}
	return int((memory - used) / connection)
}

// boundEdges keeps the limit of edges at what the memory allows beside the present workload clusters, until ctx ends.
func (s *server) boundEdges(ctx context.Context, c *controlchannel.Channel) error {
	for s.memory > 0 && retry.Sleep(ctx, edgesInterval) == nil {
		c.SetEdgeConnections(edgeConnections(s.memory, s.ads.Tunnels()))
	}
	return nil
}
