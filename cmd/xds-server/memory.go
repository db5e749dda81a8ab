package main

const (
	// objects is the memory for everything but connections of edges: 265 MB with 10,000 workload clusters
	// (docs/benchmarks/scale.md), and some for the time of a restart, when all of them are read.
	objects = 400 << 20
	// connection is the memory of one edge, which has one connection for its resources and its reports. Without a limit
	// it is 90 to 106 KB with 10,000 of them (docs/benchmarks/scale.md), of which 57 KB are in use. Near a limit less of
	// it is garbage.
	connection = 96 << 10
	// leastConnections are served with any memory, because a limit for a few edges must not exclude all of them.
	leastConnections = 1000
)

// edgeConnections returns how many connections of edges an xds-server serves with a memory in bytes. More would not be
// slower but end the process, and with it all connections. It returns 0, the default of controlchannel, for 0.
func edgeConnections(memory uint64) int {
	if memory == 0 {
		return 0
	}
	if memory < objects+leastConnections*connection {
		return leastConnections
	}
	return int((memory - objects) / connection)
}
