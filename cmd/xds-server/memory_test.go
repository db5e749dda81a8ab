package main

import "testing"

func TestMemoryBoundsTheConnectionsOfEdges(t *testing.T) {
	for name, tc := range map[string]struct {
		memory         uint64
		clusters, want int
	}{
		"no limit: controlchannel's own bound":       {clusters: 100_000, want: 0},
		"too little, and some edges are served":      {memory: 64 << 20, want: 1000},
		"just less than 1,000 connections":           {memory: 490 << 20, want: 1000},
		"half of the limit in the manifests":         {memory: 1 << 30, want: 6656},
		"0.9 of 2 GiB, the limit in the manifests":   {memory: 1932735283, want: 15394},
		"the same, with as many as objects includes": {memory: 1932735283, clusters: 10_000, want: 15394},
		"the same, with more":                        {memory: 1932735283, clusters: 50_000, want: 7866},
		"the same, with more than it has memory for": {memory: 1932735283, clusters: 100_000, want: 1000},
	} {
		if got := edgeConnections(tc.memory, tc.clusters); got != tc.want {
			t.Errorf("%s: %d connections, want %d", name, got, tc.want)
		}
	}
}

// TestSizesOfXDSServers checks the table of docs/install.md: without one replica the others serve all edges.
func TestSizesOfXDSServers(t *testing.T) {
	const most = 40_000 // of any xds-server
	for _, row := range []struct {
		clusters, edges, replicas int
		memory                    uint64
	}{
		{10_000, 20_000, 3, 2 << 30},
		{20_000, 20_000, 3, 2 << 30},
		{40_000, 40_000, 3, 4 << 30},
		{100_000, 100_000, 4, 6 << 30},
	} {
		if n := (row.replicas - 1) * min(most, edgeConnections(row.memory/10*9, row.clusters)); n < row.edges {
			t.Errorf("%d workload clusters: %d edges are served, want %d", row.clusters, n, row.edges)
		}
	}
}
